"""The sampling chain, one and the same on every row: anchors, drafts, last rows of a prefill.

Order, and why:

1. repetition, presence and frequency penalties: they act on what the model said, not on what the
   request added to it. The repetition penalty comes first, as it depends on a logit's sign;
2. logit bias: a bias of ±100 outweighs any penalty, as clients expect;
3. bad words, then min tokens: bans, which no bias lifts;
4. the grammar's mask: last of what changes logits, since nothing may lift it either. Where it
   leaves banned tokens only, one of those is drawn: an answer is legal before it is anything else;
5. temperature, min-p, top-k, top-p, draw (see `draw`): they look at what is still possible.

Log-probabilities are of the logits before 1, unless a deployment wants those after 4 (`adjust`).

A row sees its own history, seat and index only; what others ask for never reaches it. A step that
no row of the batch asks for is not run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from outrider_worker.sampling.adjust import add_bias, apply_mask, ban_ends, ban_words, penalise
from outrider_worker.sampling.draw import draw
from outrider_worker.sampling.rows import SampledRows, change_rows, picks_rows
from outrider_worker.sampling.seats import SeatSampling
from outrider_worker.sampling.stages import ADJUSTING, Stages

_ROWS_AT_ONCE = 128
"""Rows per pass: bounds what sorting and noise need at large vocabularies."""

_Change = Callable[[Tensor, SampledRows, SeatSampling], None]
_CHANGES: tuple[tuple[Stages, _Change], ...] = (
    (Stages.PENALTIES, penalise),
    (Stages.BIAS, add_bias),
    (Stages.BAD_WORDS, ban_words),
    (Stages.MIN_TOKENS, ban_ends),
)


def sample(
    logits: Tensor,
    rows: SampledRows,
    table: SeatSampling,
    stages: Stages,
    mask: Tensor | None = None,
    sparse: bool | None = None,
) -> Tensor:
    """logits [R, V] float32 → tokens [R] int64; the logits are left as they are.

    Args:
        rows: R rows.
        table: what their seats ask for.
        stages: joined over the seats' requests (`stages_of`); MASK with a mask, and only then.
        mask: [R, ⌈V/32⌉] int32, bit set = allowed; all ones where there is no grammar.
        sparse: work on some rows, or on all of them without waiting for the device. Left out: what
            fits the device. Changes no token.

    Raises:
        ValueError: stages and mask disagree.
    """
    picks = picks_rows(logits) if sparse is None else sparse
    tokens = []
    for part in _parts(logits.shape[0]):
        some, part_mask = rows.take(part), None if mask is None else mask[part]
        adjusted = adjust(logits[part], some, table, stages, part_mask, picks)
        tokens.append(draw(adjusted, table.draw_columns(some.seat, some.index), stages, picks))
    return torch.cat(tokens)


def adjust(
    logits: Tensor,
    rows: SampledRows,
    table: SeatSampling,
    stages: Stages,
    mask: Tensor | None = None,
    sparse: bool | None = None,
) -> Tensor:
    """The chain up to the mask: [R, V] → [R, V], the same tensor where nothing was asked for.

    Arguments and errors are those of `sample`.
    """
    if (Stages.MASK in stages) != (mask is not None):
        raise ValueError("a grammar mask and the stage MASK come together")
    if not stages & ADJUSTING:
        return logits
    picks = picks_rows(logits) if sparse is None else sparse
    adjusted = logits.clone()
    for stage, change in _CHANGES:
        if stage in stages:
            wanted = table.asks(stage, rows.seat)
            change_rows(adjusted, rows, wanted, _with(table, change), picks)
    if mask is not None:
        apply_mask(adjusted, mask)
    return adjusted


def _with(table: SeatSampling, change: _Change) -> Callable[[Tensor, SampledRows], None]:
    return lambda logits, rows: change(logits, rows, table)


def _parts(rows: int) -> Iterator[slice]:
    """At least one, so that no rows give no tokens."""
    for start in range(0, max(rows, 1), _ROWS_AT_ONCE):
        yield slice(start, start + _ROWS_AT_ONCE)
