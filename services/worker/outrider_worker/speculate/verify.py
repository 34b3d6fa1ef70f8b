"""Judging drafts: which rows the target agrees with, on padded tables.

Shapes: n requests, K drafts at most, b flat rows, V the vocabulary; tables [n, K] for drafts and
[n, K+1] for what rows give (row 0 is the anchor's). All of it runs where the tables are, without a
host copy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from outrider_worker.rows import RowLayout
from outrider_worker.sampling import RowSampling
from outrider_worker.speculate.choosers import SamplerMatchChooser
from outrider_worker.speculate.cuts import Cut, LossyCut
from outrider_worker.speculate.device import Chooser
from outrider_worker.speculate.drafter import DrafterCost, DrafterTraits

Look = Callable[[RowSampling, Tensor, Tensor], Tensor]
"""(sampling, logits [M, V], drafts [M]) → [M]"""

_ROWS_AT_ONCE = 128
"""Rows whose laws exist at a time: bounds what a large vocabulary needs."""


@dataclass(frozen=True, slots=True)
class JudgedRows:
    """One round's rows and drafts. What a verifier does not look at is not computed."""

    logits: Tensor
    """[b, V] float32 of the target, as it gave them."""
    sampling: RowSampling
    """Of the b rows, with their masks."""
    layout: RowLayout
    drafts: Tensor
    """[n, K] int64, anything beyond a request's length."""
    lengths: Tensor
    """[n] int64, drafts verified of each request."""
    seats: Tensor
    """[n] int64, each request's line in the device's state."""
    known: Tensor
    """[n] int64, tokens known before the round, the anchor included."""

    @property
    def places(self) -> Tensor:
        """[K] int64"""
        return torch.arange(self.drafts.shape[1], device=self.drafts.device)

    @property
    def index(self) -> Tensor:
        """[n] int64, of the token that row 0 emits, counted from the end of the prompt."""
        return self.known - self.sampling.rows.prompt_tokens[self.seats]

    def samples(self) -> Tensor:
        """[n, K+1] the target's own token at every row."""
        return self._padded(self.sampling.sample(self.logits))

    def draft_masses(self) -> Tensor:
        """[n, K] float64, the target's probability of each draft at the row that judges it."""
        return self.of_drafts(_mass)

    def of_drafts(self, look: Look) -> Tensor:
        """[n, K] what `look` says of some rows [M] and the drafts [M] they judge, part by part."""
        judged = self.layout.to_flat(self._judged())
        rows = torch.arange(judged.shape[0], device=judged.device)
        seen = [
            look(self.sampling.take(part), self.logits[part], judged[part])
            for part in rows.split(_ROWS_AT_ONCE)
        ]
        return self._padded(torch.cat(seen))[:, :-1]

    def law(self, rows: Tensor) -> Tensor:
        """[M, V] float64, the target's law at some of the b rows, by index [M]."""
        return self.sampling.take(rows).law(self.logits[rows])

    def row_at(self, place: Tensor) -> Tensor:
        """[n] index among the b rows of each request's row `place` [n]."""
        rows = self._padded(torch.arange(self.logits.shape[0], device=place.device))
        return rows.gather(1, place[:, None]).squeeze(1)

    def draft_at(self, place: Tensor) -> Tensor:
        """[n] each request's draft `place` [n], a valid id also where there is none."""
        return self._judged().gather(1, place[:, None]).squeeze(1)

    def _judged(self) -> Tensor:
        """[n, K+1] the draft that each row judges; behind a draft's end any valid id."""
        zeros = self.drafts.new_zeros(self.drafts.shape[0], 1)
        return torch.cat([self.drafts, zeros], dim=1).clamp(0, self.logits.shape[1] - 1)

    def _padded(self, flat: Tensor) -> Tensor:
        return self.layout.to_padded(flat, self.drafts.shape[1] + 1)


@dataclass(frozen=True, slots=True)
class Verdict:
    """accepted [n] int64; emitted [n, K+1] int64, valid in columns 0…accepted.

    relaxed: [n] int64, how many of the accepted drafts the target would not have drawn itself;
    None of a verifier that keeps the target's law.
    """

    accepted: Tensor
    emitted: Tensor
    relaxed: Tensor | None = None


class Verifier(Protocol):
    """Decides what is emitted, and how drafts are drawn that it is to judge.

    A verifier may keep laws by seat: drafts that were drawn by its chooser stay with their seat
    until the verdict. Whoever puts other drafts there says so with `given`.
    """

    @property
    def name(self) -> str:
        """For settings, messages and metrics."""
        ...

    @property
    def lossless_cut(self) -> Cut:
        """The most a cut may look at without changing what is emitted; see `check_cuts`."""
        ...

    def chooser(self, sampling: RowSampling) -> Chooser:
        """For one batch of drafts: `sampling` is of the n requests' next token, without a mask.

        Its rows see all that is known (the anchor included), over the real history, which the
        chooser writes drafts into. To be asked for before every batch that the device drafts, also
        where the drafter then draws nothing. The stages are joined over the n requests.
        """
        ...

    def given(self, seats: Tensor) -> None:
        """The drafts now in `seats` [n] came from elsewhere (the host) and were not drawn."""
        ...

    def verify(self, rows: JudgedRows) -> Verdict:
        """Judge the drafts of one round.

        Logprobs are of the emitted tokens, so they are looked up when this is done: at row j of a
        request, `emitted[:, j]` and the target's logits of that row.
        """
        ...


def check_cuts(verifier: Verifier, drafters: Iterable[DrafterTraits]) -> None:
    """Refuse drafters whose scores, by which drafts are cut, look at more than a verifier allows.

    Drafts of the host are a function of the text: they have no law that a cut could bias.

    Raises:
        LossyCut: with what to do instead.
    """
    for traits in drafters:
        drawn = traits.cost is not DrafterCost.HOST
        if drawn and traits.score_cut > verifier.lossless_cut:
            raise LossyCut(verifier.name, traits.name)


class Coupled:
    """What verifiers have in common that judge by the target's own samples."""

    @property
    def lossless_cut(self) -> Cut:
        return Cut.OWN_TOKEN

    def chooser(self, sampling: RowSampling) -> Chooser:
        """Drafts drawn with the target's noise, see `SamplerMatchChooser`."""
        return SamplerMatchChooser(sampling)

    def given(self, seats: Tensor) -> None:
        """All drafts are alike."""


class SamplerMatch(Coupled):
    """Accept a draft while it equals the target's own sample, whose noise is fixed by the seed.

    What is emitted is always the target's sample, so the text depends on no draft, plan or pick
    (worker.md "Exactness"). Greedy is the case without noise.
    """

    name = "sampler_match"

    def verify(self, rows: JudgedRows) -> Verdict:
        """See Verifier.verify; neither seats nor lengths of text make a difference."""
        samples = rows.samples()
        return Verdict(accepted=leading(samples[:, :-1] == rows.drafts, rows), emitted=samples)


def leading(agreed: Tensor, rows: JudgedRows) -> Tensor:
    """agreed [n, K] bool → [n] int64, drafts of each request before the first disagreement."""
    held = agreed & (rows.places < rows.lengths[:, None])
    return held.to(torch.int64).cumprod(dim=1).sum(dim=1)


def _mass(sampling: RowSampling, logits: Tensor, drafts: Tensor) -> Tensor:
    return sampling.law(logits).gather(1, drafts[:, None]).squeeze(1)
