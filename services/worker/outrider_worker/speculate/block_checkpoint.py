"""Opening the checkpoints of block drafters, DFlash and DSpark, in every published layout.

Knows: which of their tensors must be there, what is the target's and what the drafter's own.
Does not know: how settings are spelled (block_config), names (block_tensors), arithmetic.

Heads make a DSpark: the configuration says whether there are any, and the tensors must agree.
DeepSpec publishes its DFlash as a DSpark without heads, so one way of opening serves both.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

import torch
from torch import Tensor

from outrider_worker.attention import AttentionBackend
from outrider_worker.model.checkpoint import Checkpoint
from outrider_worker.model.config import ModelError
from outrider_worker.model.draft.block_config import BlockConfig, read_block_config
from outrider_worker.model.draft.block_tensors import (
    SplitWeights,
    block_names,
    has_heads,
    has_stages,
)
from outrider_worker.model.draft.dflash import BlockNetwork, block_shapes
from outrider_worker.model.draft.dspark import (
    CALIBRATION_FILE,
    head_shapes,
    read_confidence_head,
    read_markov_head,
    read_temperatures,
)
from outrider_worker.model.draft.tables import (
    VOCABULARY_MAPS,
    embedding,
    output_table,
    read_kept_ids,
)
from outrider_worker.model.draft.tensors import DraftTensors
from outrider_worker.model.loader import LoadedModel
from outrider_worker.model.shapes import Shape
from outrider_worker.speculate.dflash import BlockModel, DFlashDrafter
from outrider_worker.speculate.dspark import DSparkDrafter

_EMBEDDING, _HEAD = "model.embed_tokens.weight", "lm_head.weight"
_APART = (*VOCABULARY_MAPS, "verifier_norm.weight", "verifier_lm_head.weight")
"""Tables that are no weights, and copies of the target's that older speculators files carry."""

_STAGE_PARTS = {
    ".hc_": "hyper-connections",
    ".attn_sink": "attention sinks",
    ".wo_a.": "grouped output projections",
    ".experts.": "routed experts",
}


def looks_like_dflash(names: Iterable[str]) -> bool:
    """Whether tensors of these names are a block drafter without heads."""
    ours = block_names(names)
    return bool(ours) and not has_heads(ours)


def looks_like_dspark(names: Iterable[str]) -> bool:
    """Whether tensors of these names are a block drafter with heads, under whatever prefix.

    DeepSeek-V4's own form, with a layer in each of `mtp.0`, `mtp.1`, …, is one too.
    """
    present = list(names)
    return has_stages(present) or has_heads(block_names(present))


def open_dflash(
    folder: Path,
    target: LoadedModel,
    max_draft_tokens: int,
    dtype: torch.dtype,
    device: torch.device,
    backend: AttentionBackend,
) -> DFlashDrafter:
    """The block drafter in `folder`, whose target is `target`; with heads it is a DSpark.

    Raises ModelError for anything that is missing, surplus, unknown or made for another target.
    """
    with Checkpoint(folder) as checkpoint:
        _refuse_stages(folder, checkpoint.names)
        config = read_block_config(folder, target.config)
        tensors = DraftTensors(checkpoint, block_names(checkpoint.names), dtype, device)
        return _Opening(folder, config, tensors, target).drafter(max_draft_tokens, backend)


class _Opening:
    """One checkpoint while it is read."""

    def __init__(
        self, folder: Path, config: BlockConfig, tensors: DraftTensors, target: LoadedModel
    ) -> None:
        self._folder, self._config, self._tensors = folder, config, tensors
        self._target = target
        self._weights = SplitWeights(tensors, self._shapes())
        tensors.check({**self._weights.stored_shapes, **self._tables()}, _APART)

    def drafter(self, max_draft_tokens: int, backend: AttentionBackend) -> DFlashDrafter:
        """Made of what is in the file, and of the target's tables where it has none."""
        config, tensors, heads = self._config, self._tensors, self._config.heads
        kept_ids, temperatures = self._kept_ids(), self._temperatures()
        model = BlockModel(
            config=config,
            network=BlockNetwork(config, self._weights, backend),
            embed=embedding(tensors, _EMBEDDING, self._target),
            logits=output_table(tensors, _HEAD, self._target, kept_ids),
            kept_ids=kept_ids,
            dtype=tensors.dtype,
            device=tensors.device,
        )
        if not heads.present:
            return DFlashDrafter(model, max_draft_tokens)
        return DSparkDrafter(
            model,
            max_draft_tokens,
            read_markov_head(heads, self._weights, kept_ids),
            read_confidence_head(heads, self._weights, temperatures),
        )

    def _shapes(self) -> Mapping[str, Shape]:
        """Of the network and its heads."""
        config, layers = self._config, self._config.layers
        feature_size = len(config.boundaries) * self._target.config.hidden_size
        drafted = config.draft_vocab_size or layers.vocab_size
        return {
            **block_shapes(layers, feature_size),
            **head_shapes(config.heads, layers.hidden_size, layers.vocab_size, drafted),
        }

    def _tables(self) -> Mapping[str, Shape]:
        """Of embedding and head, where there are or must be own ones."""
        layers, reduced = self._config.layers, self._config.draft_vocab_size
        other_size = layers.hidden_size != self._target.config.hidden_size
        tables: dict[str, Shape] = {}
        if other_size or _EMBEDDING in self._tensors:
            tables[_EMBEDDING] = (layers.vocab_size, layers.hidden_size)
        if other_size or reduced or _HEAD in self._tensors:
            tables[_HEAD] = (reduced or layers.vocab_size, layers.hidden_size)
        return tables

    def _kept_ids(self) -> Tensor | None:
        """[Vd] the target's token of each of the drafter's; None where it has them all."""
        size, vocab = self._config.draft_vocab_size, self._config.layers.vocab_size
        return None if size is None else read_kept_ids(self._tensors, size, vocab)

    def _temperatures(self) -> tuple[float, ...] | None:
        found = read_temperatures(self._folder, self._config.drafts)
        if found and not self._config.heads.confidence:
            raise ModelError(
                f"{self._folder / CALIBRATION_FILE} calibrates a confidence head that is not there"
            )
        return found


def _refuse_stages(folder: Path, names: Iterable[str]) -> None:
    """DeepSeek-V4's own form needs layers of DeepSeek-V4's. Raises ModelError naming them."""
    present = list(names)
    if block_names(present) or not has_stages(present):
        return
    needed = [what for mark, what in _STAGE_PARTS.items() if any(mark in n for n in present)]
    raise ModelError(
        f"{folder} holds the DSpark of a DeepSeek-V4, whose stages this worker cannot run: "
        f"missing are {', '.join(needed) or 'its layers'}"
    )
