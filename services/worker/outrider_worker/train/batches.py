"""Texts become padded batches, and a few of their pairs the rows that are trained on.

Batch number n is a function of seed and n alone: training can stop anywhere and go on.

Knows: padding, drawing rows. Does not know: heads, losses, files.

Letters: B texts, T tokens of the longest, P = T − 1 pairs, A rows, F a feature's width, d hidden
size.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from outrider_worker.train.dataset import Text, TextInfo

Numbers = np.ndarray[tuple[int], np.dtype[np.int64]]


@dataclass(frozen=True)
class Columns:
    """Which columns of what is stored are what; slices of d columns each, side by side."""

    features: slice
    """What the head is fed"""
    last: slice
    """The target's residual stream behind its last block"""
    before: slice | None = None
    """The same before its last block, where a head's beginning is fitted to it"""


@dataclass(frozen=True)
class Batch:
    """One step's data (a heads.Unrolled)."""

    token_ids: Tensor
    """[B, T] int64, zeros behind a text's end"""
    stored: Tensor
    """[B, P, m·d] float32 of the pairs"""
    columns: Columns
    lengths: Tensor
    """[B] int64, tokens of each text"""
    rows: Tensor
    """[B, A] int64, pairs to draft from; 0 where there are none left"""
    live: Tensor
    """[B, A] bool, which of them count"""
    infos: tuple[TextInfo, ...] = ()
    """Of the B texts, for evaluation"""

    @property
    def features(self) -> Tensor:
        """[B, P, F]"""
        return self.stored[..., self.columns.features]

    def targets(self, step: int) -> tuple[Tensor, Tensor]:
        """Of draft `step` (0 is the first): the text's token [B, A], and whether it has one."""
        place = self.rows + 2 + step
        there = self.live & (place < self.lengths[:, None])
        return self.token_ids.gather(1, place.clamp(max=self.token_ids.shape[1] - 1)), there

    def teacher(self, step: int) -> Tensor:
        """[B, A, d] the stream behind the last block from which the target tells that token."""
        last = self.stored[..., self.columns.last]
        place = (self.rows + 1 + step).clamp(max=last.shape[1] - 1)
        return last.gather(1, place[..., None].expand(-1, -1, last.shape[-1]))

    def to(self, device: torch.device | str) -> Batch:
        """The same on a device."""
        return Batch(
            self.token_ids.to(device),
            self.stored.to(device),
            self.columns,
            self.lengths.to(device),
            self.rows.to(device),
            self.live.to(device),
            self.infos,
        )


def drawn(
    texts: Sequence[Text], size: int, rows_per_text: int, columns: Columns, seed: int, step: int
) -> Batch:
    """Batch number `step` of an endless shuffle of `texts`, with rows drawn from the answers."""
    epoch, place = divmod(step * size, len(texts))
    order = _order(len(texts), seed, epoch)
    if place + size > len(texts):
        order = np.concatenate([order, _order(len(texts), seed, epoch + 1)])
    generator = np.random.default_rng([seed, 1, step])
    chosen = [texts[index] for index in order[place : place + size]]
    rows = [_some(_draftable(text), rows_per_text, generator) for text in chosen]
    return _padded(chosen, rows, columns)


def whole(texts: Sequence[Text], size: int, columns: Columns) -> Iterator[Batch]:
    """All texts once, and all pairs that serve: for evaluation."""
    ordered = sorted(texts, key=lambda text: text.info.tokens)
    for start in range(0, len(ordered), size):
        chosen = ordered[start : start + size]
        yield _padded(chosen, [_draftable(text) for text in chosen], columns)


def _order(texts: int, seed: int, epoch: int) -> Numbers:
    return np.random.default_rng([seed, 0, epoch]).permutation(texts)


def _draftable(text: Text) -> Numbers:
    """Pairs from which an answer's token is drafted, when at least one is known already."""
    return np.arange(text.info.prompt_tokens - 1, text.info.tokens - 2)


def _some(pairs: Numbers, most: int, generator: np.random.Generator) -> Numbers:
    return np.sort(generator.permutation(pairs)[:most])


def _padded(
    texts: Sequence[Text],
    rows: Sequence[Numbers],
    columns: Columns,
) -> Batch:
    T = max(text.info.tokens for text in texts)
    A = max(1, *(len(each) for each in rows))
    width = texts[0].features.shape[1]
    token_ids = torch.zeros(len(texts), T, dtype=torch.int64)
    stored = torch.zeros(len(texts), T - 1, width)
    table, live = torch.zeros(len(texts), A, dtype=torch.int64), torch.zeros(len(texts), A)
    for line, (text, pairs) in enumerate(zip(texts, rows, strict=True)):
        tokens = text.info.tokens
        token_ids[line, :tokens] = torch.from_numpy(text.token_ids.astype(np.int64))
        stored[line, : tokens - 1] = torch.from_numpy(text.features[:-1].astype(np.float32))
        table[line, : len(pairs)] = torch.from_numpy(pairs)
        live[line, : len(pairs)] = 1
    lengths = torch.tensor([text.info.tokens for text in texts])
    infos = tuple(text.info for text in texts)
    return Batch(token_ids, stored, columns, lengths, table, live.bool(), infos)
