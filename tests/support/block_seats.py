"""Seats of texts whose every target feature is known, to feed a drafter from in any portions.

A text's features do not depend on what follows, so one forward of the target over all of it gives
what rounds and chunks would have given, accepted token by accepted token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from outrider_worker.attention.base import Rows
from outrider_worker.kv import PAGE_TOKENS, KvPool
from outrider_worker.model.loader import LoadedModel
from outrider_worker.rows import lay_out
from outrider_worker.seats import SeatState
from outrider_worker.speculate.device import (
    Chosen,
    DeviceDrafts,
    DraftBatch,
    FedRows,
    StatefulDrafter,
)

CONTEXT_TOKENS = 320
PAGES_EACH = CONTEXT_TOKENS // PAGE_TOKENS


@dataclass
class BestChooser:
    """Takes the best token, unless told to take another, and remembers what it was shown."""

    forced: Tensor | None = None
    """[n, d] tokens to draw instead."""
    shown: list[Tensor] = field(default_factory=list)
    """The logits of each step, [n, V]."""

    def choose(self, logits: Tensor, step: int) -> Chosen:
        """See Chooser; its confidence is always 0.6."""
        self.shown.append(logits)
        tokens = logits.argmax(1) if self.forced is None else self.forced[:, step]
        return Chosen(tokens, torch.full((len(logits),), 0.6))


class BlockSeats:
    """One seat for each text; how much of it is known changes from round to round."""

    def __init__(
        self, target: LoadedModel, drafter: StatefulDrafter, texts: Sequence[Tensor], seed: int = 0
    ) -> None:
        spec = drafter.feature_spec
        assert spec is not None
        self.drafter = drafter
        count, self.pages = len(texts), 1 + len(texts) * PAGES_EACH
        self.state = SeatState.allocate(count, CONTEXT_TOKENS, 8)
        order = torch.Generator().manual_seed(seed)
        pages = 1 + torch.randperm(count * PAGES_EACH, generator=order)
        self.state.page_table[:count, :PAGES_EACH] = pages.view(count, -1)
        for seat, text in enumerate(texts):
            self.state.put(seat, text, len(text), 1)
        self.seats = torch.arange(count)
        self.features = [self._features(target, seat, spec.boundaries) for seat in range(count)]
        self.fed = torch.zeros(count, dtype=torch.int64)
        drafter.allocate(count, self.pages)

    def feed(self, upto: Tensor, padding: int = 2) -> None:
        """Feed positions fed … upto − 1 of every seat, and a few padding rows."""
        counts = upto - self.fed
        layout = lay_out(self.state, self.seats, self.fed, counts, int(counts.sum()) + padding)
        self.drafter.feed(
            FedRows(
                rows=layout.rows,
                next_ids=torch.zeros_like(layout.rows.token_ids),
                features=self._features_at(layout.rows),
                seats=self.seats,
                counts=counts,
                last=layout.last_rows(counts).clamp(min=0),
            )
        )
        self.fed = upto.clone()

    def propose(
        self, known: Tensor, tokens: int, chooser: BestChooser, limit: int | Tensor = 99
    ) -> DeviceDrafts:
        """Draft behind the first `known` [n] tokens of each text."""
        limits = torch.as_tensor(limit).expand(len(known))
        batch = DraftBatch(
            self.seats, self.state.history, known, limits, self.state.page_table, chooser
        )
        return self.drafter.propose(batch, tokens)

    def _features_at(self, rows: Rows) -> Tensor:
        """[b, F]; padding rows have noise."""
        known = zip(rows.sequence.tolist(), rows.positions.tolist(), strict=True)
        width = self.features[0].shape[1]
        return torch.stack(
            [
                self.features[seat][place] if seat < len(self.features) else torch.randn(width)
                for seat, place in known
            ]
        )

    def _features(self, target: LoadedModel, seat: int, boundaries: Sequence[int]) -> Tensor:
        tokens = self.state.known[seat : seat + 1]
        pool = KvPool.of_pages(target.config, self.pages, torch.float32)
        start = torch.zeros(1, dtype=torch.int64)
        rows = lay_out(self.state, self.seats[seat : seat + 1], start, tokens, int(tokens)).rows
        return target.model.forward_with_features(rows, pool, boundaries)[1]
