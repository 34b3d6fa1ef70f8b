"""Steps that change logits: penalties, biases, bans, masks. Each works in place on [M, V] float32.

Each leaves the bits of a row that does not ask for it as they are (but for the sign of a zero), so
it may run on any rows together. Bans are finite and a grammar's mask is not: where a grammar
allows banned tokens only, its rule is kept and the ban is not.
"""

from __future__ import annotations

import torch
from torch import Tensor

from outrider_worker.sampling.padded import NO_TOKEN
from outrider_worker.sampling.rows import SampledRows
from outrider_worker.sampling.seats import SeatSampling

BAN = -1e30
"""Far below what logits and biases reach; still a number when every ban of a request falls on one
token."""
_WORD_BITS = 32


def penalise(logits: Tensor, rows: SampledRows, table: SeatSampling) -> None:
    """Push down what has been said before.

    Repetition (Keskar et al. 2019, section 4.1): positive logits of tokens in prompt or output
    are divided by the penalty, others multiplied. Presence and frequency (OpenAI's API reference):
    logit −= presence · [token in output] + frequency · its count in the output.
    """
    column = torch.arange(rows.history.shape[1], device=logits.device)
    past = column < rows.known[:, None]
    said = past & (column >= rows.prompt_tokens[rows.seat][:, None])
    tokens = rows.tokens().masked_fill_(~past, 0)
    seen, output = torch.zeros_like(logits), torch.zeros_like(logits)
    # Sums of ones: exact, so in whatever order a device adds.
    seen.scatter_add_(1, tokens, past.float())
    output.scatter_add_(1, tokens, said.float())
    repetition = torch.where(seen > 0, table.repetition[rows.seat][:, None], 1.0)
    logits.copy_(torch.where(logits > 0, logits / repetition, logits * repetition))
    logits.sub_((output > 0) * table.presence[rows.seat][:, None])
    logits.sub_(output * table.frequency[rows.seat][:, None])


def add_bias(logits: Tensor, rows: SampledRows, table: SeatSampling) -> None:
    """Add each request's biases to the logits of their tokens."""
    ids, values = table.biases(rows.seat)
    logits.scatter_add_(1, ids.clamp(min=0), values)


def ban_words(logits: Tensor, rows: SampledRows, table: SeatSampling) -> None:
    """Ban the last token of each bad word whose other tokens the history ends with."""
    ends, starts = table.bad_words(rows.seat)
    before = rows.last_tokens(starts.shape[2])[:, None, :]
    complete = ((starts == before) | (starts == NO_TOKEN)).all(-1)
    _ban(logits, ends, complete)


def ban_ends(logits: Tensor, rows: SampledRows, table: SeatSampling) -> None:
    """Ban what would end a request before its token `min_tokens`."""
    ids = table.end_ids(rows.seat)
    early = rows.index < table.min_tokens[rows.seat]
    _ban(logits, ids, early[:, None])


def apply_mask(logits: Tensor, mask: Tensor) -> None:
    """Rule out tokens whose bit is 0 in mask [M, ⌈V/32⌉] int32, the lowest bit first."""
    bits = torch.arange(_WORD_BITS, dtype=torch.int32, device=mask.device)
    allowed = ((mask[:, :, None] >> bits) & 1).flatten(1)[:, : logits.shape[1]]
    logits.masked_fill_(allowed == 0, float("-inf"))


def _ban(logits: Tensor, ids: Tensor, where: Tensor) -> None:
    """Push down tokens ids [M, X], of those that are any, where [M, X or 1] holds."""
    change = torch.where(where & (ids != NO_TOKEN), BAN, 0.0).to(logits.dtype)
    logits.scatter_add_(1, ids.clamp(min=0), change)
