"""The seam of drafters on the host, and what all drafters declare of themselves.

Knows the protocol, the traits and the registry of names; knows no drafter's insides. Drafters on
the device have a seam of their own (`speculate.device`).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from importlib import import_module
from importlib.metadata import entry_points
from typing import Protocol, runtime_checkable

from outrider_worker.engine.types import Draft, RequestKey, RequestSpec
from outrider_worker.speculate.cuts import Cut

NO_DRAFTER = "none"
PREDICTED = "predicted"
"""The drafter that serves what the client predicts; its counts are reported apart."""


class DrafterCost(Enum):
    """How a drafter's time is spent."""

    HOST = "host"
    AUTOREGRESSIVE = "autoregressive"
    PARALLEL = "parallel"


@dataclass(frozen=True, slots=True)
class DrafterTraits:
    """A drafter's abilities, declared once.

    sparse: often proposes fewer drafts than asked for. score_bins: bins in use, 1 without scores.
    writes_kv: writes K/V of its own into the pages: for d drafts into d slots from the anchor's on.
    lookahead_tokens: how many tokens behind a position its state there depends on.
    max_context_tokens: positions it can handle; None: as many as the target.
    score_cut: the most that its scores look at, see `cuts`. A confidence of the batch's chooser is
        no more than PAST wherever that matters; a drafter that scores by its own probability of
        the token it drew says OWN_TOKEN.
    """

    name: str
    cost: DrafterCost
    max_draft_tokens: int
    needs_hidden: bool = False
    sparse: bool = False
    score_bins: int = 1
    writes_kv: bool = False
    lookahead_tokens: int = 0
    max_context_tokens: int | None = None
    score_cut: Cut = Cut.PAST


@dataclass(frozen=True, slots=True)
class Ask:
    """A request that wants at most `tokens` drafts."""

    key: RequestKey
    tokens: int


class Drafter(Protocol):
    """A drafter on the host. It proposes tokens, the target decides: it can only change speed,
    never text. Its state is a function of the tokens handed over, so there is nothing to roll back.
    """

    @property
    def traits(self) -> DrafterTraits: ...

    def prefill(self, key: RequestKey, token_ids: Sequence[int]) -> None:
        """Start (or go on with the next chunk of) a request's committed history."""
        ...

    def propose(self, asks: Sequence[Ask]) -> list[Draft]:
        """One draft for each ask, in order, no longer than asked; empty ones are allowed."""
        ...

    def observe(self, key: RequestKey, token_ids: Sequence[int]) -> None:
        """Append what a round really committed."""
        ...

    def release(self, key: RequestKey) -> None:
        """Forget a request; a key that is unknown is no error."""
        ...


@runtime_checkable
class ReadsRequests(Protocol):
    """What a host drafter offers besides, if it wants to know more of a request than its tokens:
    what its client predicts, where its answer begins, whose it is."""

    def begin(self, spec: RequestSpec) -> None:
        """The request whose history comes next; always followed by `prefill`."""
        ...


@runtime_checkable
class GivesUp(Protocol):
    """What a host drafter offers besides, if there are requests it can do nothing more for."""

    def given_up(self, key: RequestKey) -> bool:
        """Whether it has drafted for that request for the last time; another one may go on."""
        ...


DrafterFactory = Callable[[int], Drafter]
"""Builds a drafter from the deployment's longest draft length, in tokens."""

_BUILT_IN: Mapping[str, str] = {
    "ngram": "outrider_worker.speculate.ngram:NgramDrafter",
    "suffix": "outrider_worker.speculate.suffix:SuffixDrafter",
    "suffix-shared": "outrider_worker.speculate.suffix:sharing_suffix_drafter",
    PREDICTED: "outrider_worker.speculate.predicted:PredictedDrafter",
}


class UnknownDrafter(ValueError):
    """The name is neither built in nor announced by an installed package."""


def known_drafters() -> list[str]:
    """Names that `load_drafter` takes."""
    outside = {point.name for point in entry_points(group="outrider.drafters")}
    return sorted({NO_DRAFTER, *_BUILT_IN, *outside})


def load_drafter(name: str, max_draft_tokens: int) -> Drafter | None:
    """The drafter of that name, imported only now; None for "none".

    Raises:
        UnknownDrafter: with the names that are known.
    """
    if name == NO_DRAFTER:
        return None
    if name in _BUILT_IN:
        module, attribute = _BUILT_IN[name].split(":")
        factory: DrafterFactory = getattr(import_module(module), attribute)
        return factory(max_draft_tokens)
    for point in entry_points(group="outrider.drafters"):
        if point.name == name:
            outside: DrafterFactory = point.load()
            return outside(max_draft_tokens)
    raise UnknownDrafter(f"unknown drafter {name!r}: known are {', '.join(known_drafters())}")
