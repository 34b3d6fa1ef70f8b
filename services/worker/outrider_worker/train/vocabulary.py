"""The part of the vocabulary that a head drafts: what its target really says.

A full output table is a fifth of a small target's weights, read again for every draft. The most
frequent tokens of generated text are nearly all of it (FR-Spec, Zhao et al. 2025).

Knows: counting. Does not know: tokenizers, heads.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch
from torch import Tensor

from outrider_worker.train.dataset import Text


def answer_counts(texts: Iterable[Text], vocab_size: int) -> Tensor:
    """[V] int64, how often each token stands in an answer."""
    counts = np.zeros(vocab_size, np.int64)
    for text in texts:
        answer = text.token_ids[text.info.prompt_tokens :]
        counts += np.bincount(answer, minlength=vocab_size)
    return torch.from_numpy(counts)


def most_frequent(counts: Tensor, size: int, always: Iterable[int] = ()) -> Tensor:
    """[size] int64 in ascending order: `always`, and the most frequent others.

    Tokens that never occurred come by their number: tokenizers made by merging number frequent
    pieces first. Raises ValueError where there are not so many tokens.
    """
    if size > len(counts):
        raise ValueError(f"a draft vocabulary of {size} is more than the target's {len(counts)}")
    ranked = counts.clone()
    ranked[list(always)] = counts.sum() + 1
    order = ranked.argsort(descending=True, stable=True)
    return order[:size].sort().values


def coverage(counts: Tensor, kept_ids: Tensor) -> float:
    """The share of what was said that can be drafted."""
    return float(counts[kept_ids].sum() / counts.sum().clamp(min=1))


def offsets(kept_ids: Tensor) -> Tensor:
    """[Vd] int64, `d2t` as it is published: what to add to an output's number."""
    return kept_ids - torch.arange(len(kept_ids), device=kept_ids.device)


def kept_mask(kept_ids: Tensor, vocab_size: int) -> Tensor:
    """[V] bool, `t2d` as it is published."""
    mask = torch.zeros(vocab_size, dtype=torch.bool, device=kept_ids.device)
    mask[kept_ids] = True
    return mask
