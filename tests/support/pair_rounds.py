"""Texts that a drafter of pairs is led through round by round, without an engine.

What a target would accept is given from outside: the texts are fixed, and a round commits so many
of their tokens as the test says. Seats, pages, rows and the target's features are the real ones.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from outrider_worker.kv import PAGE_TOKENS, KvPool
from outrider_worker.model.loader import LoadedModel
from outrider_worker.rows import lay_out
from outrider_worker.seats import SeatState
from outrider_worker.speculate.device import Chosen, DeviceDrafts, DraftBatch, FedRows
from outrider_worker.speculate.pairs import PairDrafter

_CONTEXT_TOKENS = 256
_PAGES_EACH = _CONTEXT_TOKENS // PAGE_TOKENS


class Greedy:
    """A Chooser that takes the best and keeps the logits."""

    def __init__(self) -> None:
        self.logits: list[Tensor] = []

    def choose(self, logits: Tensor, step: int) -> Chosen:
        """See Chooser.choose."""
        assert step == len(self.logits)
        self.logits.append(logits)
        best = logits.softmax(-1).max(-1)
        return Chosen(best.indices, best.values)


class PairRounds:
    """One text for each seat; `known` tokens of each are committed."""

    def __init__(
        self,
        target: LoadedModel,
        drafter: PairDrafter,
        texts: Sequence[Sequence[int]],
        known: Sequence[int],
    ) -> None:
        seats = len(texts)
        self.drafter, self.seats = drafter, torch.arange(seats)
        self.state = SeatState.allocate(seats, _CONTEXT_TOKENS, 8)
        pages = 1 + seats * _PAGES_EACH
        order = 1 + torch.randperm(pages - 1, generator=torch.Generator().manual_seed(5))
        self.state.page_table[:seats, :_PAGES_EACH] = order.view(seats, -1)
        for seat, text in enumerate(texts):
            self.state.put(seat, torch.tensor(text), len(text), 0)
        self.features = self._features(target, KvPool.of_pages(target.config, pages, torch.float32))
        self.state.known[:seats] = torch.tensor(known)
        self.fed = torch.zeros(seats, dtype=torch.int64)
        drafter.allocate(seats, pages)

    @property
    def known(self) -> Tensor:
        """[n]"""
        return self.state.known[self.seats]

    def commit(self, tokens: Tensor) -> None:
        """tokens [n] more of each text are known."""
        self.state.known[self.seats] += tokens

    def feed(self, most_rows: int = _CONTEXT_TOKENS) -> None:
        """All that is new, at most so many rows of a text at a time, and two rows of padding."""
        while bool((self.fed < self.known - 1).any()):
            counts = (self.known - 1 - self.fed).clamp(max=most_rows)
            layout = lay_out(self.state, self.seats, self.fed, counts, int(counts.sum()) + 2)
            rows = layout.rows
            following = self.state.history[rows.sequence, rows.positions + 1]
            fed = FedRows(
                rows=rows,
                next_ids=following.masked_fill(rows.lengths == 0, 0),
                features=self.features[rows.sequence, rows.positions],
                seats=self.seats,
                counts=counts,
                last=layout.last_rows(counts),
            )
            self.drafter.feed(fed)
            self.fed += counts

    def batch(self, tokens: int, limit: Tensor | None = None) -> DraftBatch:
        """What the drafter is asked with."""
        return DraftBatch(
            seats=self.seats,
            history=self.state.history,
            known=self.known,
            limit=torch.full_like(self.known, tokens) if limit is None else limit,
            page_table=self.state.page_table,
            chooser=Greedy(),
        )

    def propose(self, tokens: int, limit: Tensor | None = None) -> tuple[DeviceDrafts, Tensor]:
        """The drafts, and the logits they were drawn from [steps, n, V]."""
        batch = self.batch(tokens, limit)
        drafts = self.drafter.propose(batch, tokens)
        assert isinstance(batch.chooser, Greedy)
        return drafts, torch.stack(batch.chooser.logits)

    def reseat(self, seat: int, like: int) -> None:
        """A request with the text of seat `like` sits down where another one was, unfed."""
        self.state.history[seat] = self.state.history[like]
        self.state.known[seat] = self.state.known[like]
        self.features[seat] = self.features[like]
        self.fed[seat] = 0

    def committed_kv(self, seat: int, behind: int = 0) -> Tensor:
        """What the drafter's pages hold of a text, all layers: [positions, entries].

        behind: places before the last pair that are not looked at.
        """
        pool, end = self.drafter.pool, int(self.state.known[seat]) - 1 - behind
        pages = self.state.page_table[seat, :_PAGES_EACH]
        keys = [layer[pages].permute(0, 3, 1, 2).flatten(0, 1).flatten(1) for layer in pool.keys]
        values = [v[pages].permute(0, 2, 1, 3).flatten(0, 1).flatten(1) for v in pool.values]
        return torch.cat([*keys, *values], dim=1)[:end]

    def _features(self, target: LoadedModel, pool: KvPool) -> Tensor:
        """[seats + 1, context, F] of whole texts, by the target's own forward."""
        counts = self.known
        first = torch.zeros_like(counts)
        rows = lay_out(self.state, self.seats, first, counts, int(counts.sum())).rows
        boundaries = self.drafter.feature_spec.boundaries
        _, found = target.model.forward_with_features(rows, pool, boundaries)
        features = found.new_zeros(len(counts) + 1, _CONTEXT_TOKENS, found.shape[1])
        features[rows.sequence, rows.positions] = found
        return features


def random_texts(lengths: Sequence[int], vocab: int, seed: int = 0) -> list[list[int]]:
    """Tokens without sense."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(3, vocab, (n,), generator=generator).tolist() for n in lengths]
