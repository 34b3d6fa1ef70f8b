"""Embedding and output table of a drafting network: the target's, or its own.

Knows: that checkpoints often repeat the target's tables, which are then not kept twice, and how a
reduced vocabulary lies in the target's. Does not know: layers, layouts.

Letters: b rows, n requests, d hidden size, V the target's vocabulary, Vd a reduced one.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import pad

from outrider_worker.linear import make_linear
from outrider_worker.model.checkpoint import Checkpoint
from outrider_worker.model.config import ModelError
from outrider_worker.model.draft.tensors import DraftTensors
from outrider_worker.model.loader import LoadedModel

Table = Callable[[Tensor], Tensor]

VOCABULARY_MAPS = ("d2t", "t2d")
"""[Vd] what to add to an output's number for the target's token, and [V] which tokens are kept."""

_EMBEDDING = "model.embed_tokens.weight"
_HEAD = "lm_head.weight"


def embedding(tensors: DraftTensors, name: str, target: LoadedModel) -> Table:
    """Token ids [b] → [b, d]: the table called `name`, else (or if it is the same) the target's."""
    own = _own(tensors, name, target, _EMBEDDING)
    if own is None:
        return target.model.embed
    last = len(own) - 1  # the target may have more rows of padding than this table
    return lambda token_ids: own.index_select(0, token_ids.clamp(max=last))


def output_table(
    tensors: DraftTensors, name: str, target: LoadedModel, kept_ids: Tensor | None = None
) -> Table:
    """Hidden states [n, d] → logits [n, V] float32 over the target's vocabulary.

    kept_ids: see `read_kept_ids`; −inf for all other tokens. Without a table called `name` the
        target's rows of these tokens are read (FR-Spec, Zhao et al. 2025).
    """
    shared = _EMBEDDING if target.config.tie_embeddings else _HEAD
    own, vocab = _own(tensors, name, target, shared), target.config.vocab_size
    if own is None and kept_ids is None:
        return target.model.logits
    if own is None:
        own = _targets(tensors, target, shared)[kept_ids]
    product = make_linear(own)
    if kept_ids is None:
        return lambda hidden: _padded(product(hidden).float(), vocab)
    return lambda hidden: _spread(product(hidden).float(), kept_ids, vocab)


def read_kept_ids(tensors: DraftTensors, draft_vocab: int, vocab: int) -> Tensor:
    """[Vd] int64, the target's token of each output of a reduced vocabulary.

    Raises ModelError where the map is missing, for a token that the target does not have or that
    two outputs stand for, and where the file's two tables contradict one another.
    """
    if "d2t" not in tensors:
        raise ModelError(f"d2t is missing: which tokens {draft_vocab} outputs stand for is unknown")
    offsets = tensors("d2t", torch.int64)
    ids = offsets + torch.arange(len(offsets), device=offsets.device)
    if len(ids) != draft_vocab or not bool(((ids >= 0) & (ids < vocab)).all()):
        raise ModelError(f"d2t does not map {draft_vocab} outputs into a vocabulary of {vocab}")
    if len(ids.unique()) < len(ids):
        raise ModelError("d2t maps two outputs to one token")
    if "t2d" in tensors:
        kept = tensors("t2d", torch.bool).nonzero().flatten()
        if not torch.equal(kept, ids.sort().values):
            raise ModelError("d2t and t2d do not name the same tokens")
    return ids


def _own(tensors: DraftTensors, name: str, target: LoadedModel, shared: str) -> Tensor | None:
    """The tensor called `name`; None where there is none, or the target's `shared` is equal."""
    if name not in tensors:
        return None
    own = tensors(name)
    return None if torch.equal(_targets(tensors, target, shared), own) else own


def _targets(tensors: DraftTensors, target: LoadedModel, shared: str) -> Tensor:
    """The target's table `shared`, as a drafter's tensors are."""
    with Checkpoint(target.folder, target.config.quantisation) as checkpoint:
        return checkpoint.tensor(shared, tensors.dtype).to(tensors.device)


def _padded(logits: Tensor, vocab: int) -> Tensor:
    """[n, any] → [n, V]: rows of padding cut or filled up."""
    return pad(logits, (0, vocab - logits.shape[1]), value=float("-inf"))


def _spread(logits: Tensor, kept_ids: Tensor, vocab: int) -> Tensor:
    """[n, Vd] → [n, V]"""
    whole = logits.new_full((len(logits), vocab), float("-inf"))
    return whole.index_copy_(1, kept_ids, logits)
