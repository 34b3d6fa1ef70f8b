"""From adjusted logits to a token: temperature, filters, and a race with fixed noise.

Order: temperature, then the filters (see `filters`), then the draw among what they kept.

A token is drawn by an exponential race among the survivors: the winner has the greatest p/E with
E = −log(1 − u) exponential noise, which is a draw from p. Noise depends on (seed, choice, index,
token) alone, so any draft that is checked against the target's own draw meets the same noise.
"""

from __future__ import annotations

from functools import lru_cache
from math import gcd
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from outrider_worker.kernels import have_kernels
from outrider_worker.philox import uniform, uniform_of_all
from outrider_worker.sampling.columns import DrawColumns
from outrider_worker.sampling.filters import CANDIDATES, survivors
from outrider_worker.sampling.rank import ranked
from outrider_worker.sampling.stages import Stages

if TYPE_CHECKING:
    from outrider_worker.sampling.draw_cpu import TeamDraw

_GREEDY_BLOCK, _LEAST_GREEDY_BLOCK = 512, 64


def draw(logits: Tensor, columns: DrawColumns, stages: Stages, sparse: bool) -> Tensor:
    """logits [R, V] float32 → tokens [R] int64.

    Greedy rows take the highest logit, at a tie the lowest id. A row's token depends on its own
    logits and its own entries of the columns only: `stages` and `sparse` say what has to be looked
    at and how, and change no token.
    """
    tokens = greedy(logits)
    if Stages.DRAW not in stages:
        return tokens
    if not sparse:
        drawn = _draw_sorted if Stages.FILTER in stages else _draw_any
        return torch.where(columns.draws, drawn(logits, columns), tokens)
    free, filtered = columns.draws & ~columns.filters, columns.draws & columns.filters
    for rows, drawn in ((free, _draw_any), (filtered, _draw_filtered)):
        chosen = rows.nonzero().squeeze(1)
        if chosen.numel():
            values = drawn(logits.index_select(0, chosen), columns.take(chosen))
            tokens.index_copy_(0, chosen, values)
    return tokens


def greedy(logits: Tensor) -> Tensor:
    """[R, V] → [R] the highest logit, the lowest id at a tie.

    First the best block, then the best within it: on CPUs seven times as fast as one argmax.
    """
    rows, vocabulary = logits.shape
    block = gcd(vocabulary, _GREEDY_BLOCK)
    if block < _LEAST_GREEDY_BLOCK:
        return logits.argmax(-1)
    blocks = logits.view(rows, vocabulary // block, block)
    best = blocks.amax(-1).argmax(-1)
    within = blocks[torch.arange(rows, device=logits.device), best].argmax(-1)
    return best * block + within


@lru_cache(maxsize=1)
def draw_on_cpu() -> TeamDraw | None:
    """How rows in memory are drawn, where kernels of our own serve.

    Compiled when it is asked for first, so a worker asks at its start.
    """
    if not have_kernels():
        return None
    from outrider_worker.kernels.team import find_team
    from outrider_worker.sampling.draw_cpu import TeamDraw

    team = find_team()
    return None if team is None else TeamDraw(team)


def _draw_any(logits: Tensor, columns: DrawColumns) -> Tensor:
    """[M, V] → [M]: a draw among all tokens, of rows that draw."""
    if logits.device.type == "cpu" and (team := draw_on_cpu()) is not None:
        return team.among_all(logits, columns)
    return draw_any(logits, columns)


def draw_any(logits: Tensor, columns: DrawColumns) -> Tensor:
    """The same in torch's operations, for every device."""
    noise = uniform_of_all(logits.shape[1], columns.seed, columns.choice, columns.index)
    return race(columns.scaled(logits), noise)


def _draw_filtered(logits: Tensor, columns: DrawColumns) -> Tensor:
    """[M, V] → [M]: a draw among the tokens that the filters keep, of rows that draw."""
    if logits.device.type == "cpu" and (team := draw_on_cpu()) is not None:
        return team.among_kept(logits, columns)
    return draw_filtered(logits, columns)


def draw_filtered(logits: Tensor, columns: DrawColumns) -> Tensor:
    """The same in torch's operations.

    Looks at the best `CANDIDATES` first. Where those cannot settle what is kept, all are sorted.
    """
    probabilities = columns.scaled(logits).softmax(-1)
    ids = ranked(logits, min(CANDIDATES, logits.shape[1]))
    scores, settled = survivors(logits, probabilities, ids, columns)
    tokens = race(scores, uniform(ids, columns.seed, columns.choice, columns.index), ids)
    rest = (~settled).nonzero().squeeze(1)
    if rest.numel():
        tokens[rest] = _draw_sorted(logits[rest], columns.take(rest))
    return tokens


def _draw_sorted(logits: Tensor, columns: DrawColumns) -> Tensor:
    """The same with all tokens as candidates; rows without filters keep them all."""
    probabilities = columns.scaled(logits).softmax(-1)
    ids = ranked(logits, logits.shape[1])
    scores, _ = survivors(logits, probabilities, ids, columns)
    noise = uniform_of_all(logits.shape[1], columns.seed, columns.choice, columns.index)
    return race(scores, noise.gather(1, ids), ids)


def race(scores: Tensor, u: Tensor, ids: Tensor | None = None) -> Tensor:
    """scores [M, C] float64 log-weights, −inf where out; u [M, C] uniform → winners [M].

    argmax p/E is taken as argmax log p − log E, which needs no normalisation and never underflows.
    ids [M, C] name the columns; without them a column is its own token.
    """
    log_noise = torch.log1p(u.neg_()).neg_().log_()
    winner = (scores - log_noise).argmax(-1)
    return winner if ids is None else ids.gather(1, winner.unsqueeze(1)).squeeze(1)
