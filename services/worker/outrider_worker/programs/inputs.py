"""What the programs are given and hand on: tensors on the device, and the shapes the host knows."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from outrider_worker.rows import RowLayout
from outrider_worker.sampling import Stages

Tensors = dict[str, Tensor]


@dataclass(frozen=True)
class Wanted:
    """What sampling has to do for a batch, as the host knows it.

    top_logprobs: alternatives reported for each token; None = no logprobs.
    """

    stages: Stages
    top_logprobs: int | None = None


@dataclass(frozen=True)
class PageInput:
    """Entries of the page table that change; [X] int64 each."""

    seats: Tensor
    columns: Tensor
    pages: Tensor


@dataclass(frozen=True)
class PickInput:
    """How drafts at hand are ranked; see speculate.pick."""

    survival: Tensor
    class_row: Tensor
    weight: Tensor


@dataclass(frozen=True)
class RoundInput:
    """A round over `seats` [n].

    rows: b. width: longest draft. verify_tokens: V. caps [n]: drafts verified at most.
    drafts [n, width], lengths [n]: the drafts to verify where the host knows them.
    picking: how to choose among drafts on the device; None = all that caps allow are verified.
    """

    seats: Tensor
    rows: int
    width: int
    verify_tokens: int
    caps: Tensor
    wanted: Wanted
    drafts: Tensor | None = None
    lengths: Tensor | None = None
    given: Tensor | None = None
    """[g] seats whose drafts the host made; those of other seats were drawn on the device."""
    picking: PickInput | None = None
    uniform: bool = False


@dataclass(frozen=True)
class RoundForward:
    """A round whose logits are there and whose rows are not judged yet."""

    layout: RowLayout
    verified: Tensor
    """[n] drafts that got a row"""
    logits: Tensor
    """[b, V] float32"""


@dataclass(frozen=True)
class PrefillInput:
    """Chunks of known text: seats, starts, counts [c]; `rows` = Σ counts.

    completing: [m] indices of the chunks whose last row emits a token.
    fed_rows: rows of the chunks that the drafter takes in; 0 = of none.
    fed: [f] indices of these chunks; None = all of them, if any.
    """

    seats: Tensor
    starts: Tensor
    counts: Tensor
    rows: int
    completing: Tensor
    wanted: Wanted
    fed_rows: int = 0
    fed: Tensor | None = None


@dataclass(frozen=True)
class FeedInput:
    """Seats [n] whose drafter is to see what is committed and new.

    rows: what they can be together at most; None = exactly those there are, which waits.
    """

    seats: Tensor
    rows: int | None


@dataclass(frozen=True)
class DraftInput:
    """Drafts wanted of `drafter` for seats [r], at most `asks` [r] each, in tables of `tokens`
    columns."""

    drafter: str
    seats: Tensor
    asks: Tensor
    tokens: int
    wanted: Wanted


@dataclass(frozen=True)
class SeatSize:
    """How much the device keeps: seats, tokens of a context and a draft, rows of one round."""

    seats: int
    max_context_tokens: int
    max_draft_tokens: int
    max_rows: int
