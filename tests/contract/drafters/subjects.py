"""Drafters of all kinds behind one face, for the contract that every one of them keeps.

A subject is told of requests what an engine tells a drafter, and asked as an engine asks it. Seats
are reused at once and not cleaned: what an earlier request left is there for a drafter to misread.

Knows: the seams of drafters. Does not know: what any drafter drafts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import torch

from outrider_worker.engine.types import (
    Draft,
    RequestKey,
    RequestSpec,
    SamplingParams,
)
from outrider_worker.feeding import FeatureShape, FedChunks, Feeding
from outrider_worker.kv import PAGE_TOKENS, KvPool
from outrider_worker.model.loader import LoadedModel
from outrider_worker.rows import lay_out
from outrider_worker.sampling import RowSampling, SampledRows, SeatSampling, stages_of
from outrider_worker.seats import SeatState
from outrider_worker.speculate.choosers import SamplerMatchChooser
from outrider_worker.speculate.device import DeviceDrafter, DraftBatch, StatefulDrafter
from outrider_worker.speculate.drafter import Ask, Drafter, DrafterTraits, ReadsRequests

SEATS, CONTEXT_TOKENS, K = 4, 160, 6
Texts = Mapping[str, Sequence[int]]
"""Requests by name: their prompts."""


class Subject(Protocol):
    """One drafter under test."""

    @property
    def traits(self) -> DrafterTraits: ...

    def start(self, name: str, prompt: Sequence[int], answer: Sequence[int]) -> None:
        """A request sits down; `answer` is what it says after its prompt, in the best of worlds."""
        ...

    def add(self, name: str, token_ids: Sequence[int]) -> None:
        """A round committed these."""
        ...

    def stop(self, name: str) -> None:
        """The request is over, or set aside."""
        ...

    def drafts(self, asked: Mapping[str, int], tokens: int = K) -> dict[str, Draft]:
        """Drafts for these requests, at most so many for each, in a round of at most `tokens`."""
        ...


class HostSubject:
    """A drafter on the host."""

    def __init__(self, drafter: Drafter) -> None:
        self.drafter = drafter

    @property
    def traits(self) -> DrafterTraits:
        return self.drafter.traits

    def start(self, name: str, prompt: Sequence[int], answer: Sequence[int]) -> None:
        if isinstance(self.drafter, ReadsRequests):
            spec = RequestSpec(
                _key(name), tuple(prompt), SamplingParams(), prediction_ids=tuple(answer)
            )
            self.drafter.begin(spec)
        self.drafter.prefill(_key(name), prompt)

    def add(self, name: str, token_ids: Sequence[int]) -> None:
        self.drafter.observe(_key(name), token_ids)

    def stop(self, name: str) -> None:
        self.drafter.release(_key(name))

    def drafts(self, asked: Mapping[str, int], tokens: int = K) -> dict[str, Draft]:
        asks = [Ask(_key(name), min(most, tokens)) for name, most in asked.items()]
        return dict(zip(asked, self.drafter.propose(asks), strict=True))


class DeviceSubject:
    """A drafter on the device that needs the history alone."""

    def __init__(self, drafter: DeviceDrafter) -> None:
        self.drafter = drafter
        self.state = SeatState.allocate(SEATS, CONTEXT_TOKENS, K)
        self.state.history.fill_(3)
        self._seats: dict[str, int] = {}

    @property
    def traits(self) -> DrafterTraits:
        return self.drafter.traits

    def start(self, name: str, prompt: Sequence[int], answer: Sequence[int]) -> None:
        seat = min(set(range(SEATS)) - set(self._seats.values()))
        self._seats[name] = seat
        self.state.put(seat, torch.tensor(prompt), len(prompt), CONTEXT_TOKENS - len(prompt))

    def add(self, name: str, token_ids: Sequence[int]) -> None:
        seat = torch.tensor([self._seats[name]])
        emitted = torch.tensor([token_ids], dtype=torch.int64)
        self.state.advance(seat, emitted, torch.tensor([len(token_ids) - 1]))

    def stop(self, name: str) -> None:
        """The seat is free; what was written on it stays."""
        self.state.room[self._seats.pop(name)] = 0

    def drafts(self, asked: Mapping[str, int], tokens: int = K) -> dict[str, Draft]:
        """With a padding row behind the requests, as a round may have: it gets no drafts."""
        seats = torch.tensor([*(self._seats[name] for name in asked), SEATS])
        limit = torch.tensor([*asked.values(), 0])
        made = self.drafter.propose(self._batch(seats, limit), tokens)
        assert made.token_ids.shape == made.bins.shape == (len(seats), tokens)
        *lengths, padding = made.lengths.tolist()
        assert padding == 0
        lines = zip(
            asked.items(), made.token_ids.tolist(), made.bins.tolist(), lengths, strict=False
        )
        return {
            name: Draft(tuple(ids[:length]), tuple(bins[:length]), min(most, tokens))
            for (name, most), ids, bins, length in lines
        }

    def _batch(self, seats: torch.Tensor, limit: torch.Tensor) -> DraftBatch:
        return DraftBatch(seats, self.state.history, self.state.known[seats], limit)


class StatefulSubject(DeviceSubject):
    """A drafter that is fed what a target says of every position, before it is asked."""

    def __init__(self, target: LoadedModel, drafter: StatefulDrafter) -> None:
        super().__init__(drafter)
        pages_each = self.state.page_table.shape[1]
        pages = 1 + SEATS * pages_each
        drafter.allocate(SEATS, pages)
        self.state.page_table[:SEATS] = torch.arange(1, pages).view(SEATS, -1)
        assert self.state.history.shape[1] <= pages_each * PAGE_TOKENS
        self._target = target.model
        self._pool = KvPool.of_pages(target.config, pages, torch.float32)
        shape = FeatureShape(target.config.hidden_size, torch.float32, torch.device("cpu"))
        self._feeding = Feeding.allocate(drafter, SEATS, K + 1, shape)
        self._options = SeatSampling(SEATS)

    def start(self, name: str, prompt: Sequence[int], answer: Sequence[int]) -> None:
        super().start(name, prompt, answer)
        self._feeding.seat(self._seats[name], 0)
        self._options.put(self._seats[name], SamplingParams(), 0, frozenset())

    def drafts(self, asked: Mapping[str, int], tokens: int = K) -> dict[str, Draft]:
        self._feed(torch.tensor([self._seats[name] for name in asked]))
        return super().drafts(asked, tokens)

    def _feed(self, seats: torch.Tensor) -> None:
        """Run the target over what it has not seen, and hand that over."""
        first = self._feeding.fed[seats]
        counts = self.state.known[seats] - 1 - first
        layout = lay_out(self.state, seats, first, counts, int(counts.sum()))
        if not layout.rows.token_ids.numel():
            return
        _, features = self._target.forward_with_features(
            layout.rows, self._pool, self._feeding.boundaries
        )
        chunks = FedChunks(seats, first, counts, int(counts.sum()))
        self._feeding.feed_chunks(self.state, layout, features, chunks)

    def _batch(self, seats: torch.Tensor, limit: torch.Tensor) -> DraftBatch:
        state = self.state
        known = state.known[seats]
        index = known - state.prompt_tokens[seats]
        rows = SampledRows(seats, known, index, state.history, state.prompt_tokens)
        sampling = RowSampling(rows, self._options, stages_of(SamplingParams()))
        chooser = SamplerMatchChooser(sampling)
        return DraftBatch(seats, state.history, known, limit, state.page_table, chooser)


Make = Callable[[Texts], Subject]
"""Builds a subject that may know the best continuation of each prompt (for scripted drafters)."""


def _key(name: str) -> RequestKey:
    return RequestKey("contract", name)
