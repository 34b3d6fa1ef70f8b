"""What training needs of a target's weights, as ordinary tensors (a running model's are packed).

Knows: names in the Hugging Face layout. Does not know: heads, data.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from outrider_worker.model.checkpoint import Checkpoint
from outrider_worker.model.config import ModelConfig, ModelError
from outrider_worker.model.loader import LoadedModel


@dataclass(frozen=True)
class TargetWeights:
    """All float32, on one device; d is the hidden size, V the vocabulary."""

    config: ModelConfig
    embedding: Tensor
    """[V, d]"""
    head: Tensor
    """[V, d]; the embedding itself where it is tied"""
    norm: Tensor
    """[d]"""
    last_layer: Mapping[str, Tensor]
    """Of the target's last block, by names without the layer's prefix."""

    @classmethod
    def read(cls, target: LoadedModel, device: torch.device | str = "cpu") -> TargetWeights:
        """From the target's folder. Raises ModelError for a target whose blocks are of a kind that
        heads are not trained from."""
        config = target.config
        if config.moe is not None or config.mla is not None:
            raise ModelError(
                f"{config.architecture}: heads are made from a plain block, not from one with "
                "experts or latent attention"
            )
        prefix = f"model.layers.{config.layers - 1}."
        with Checkpoint(target.folder, config.quantisation) as checkpoint:

            def read(name: str) -> Tensor:
                return checkpoint.tensor(name, torch.float32).to(device)

            embedding = read("model.embed_tokens.weight")
            return cls(
                config=config,
                embedding=embedding,
                head=embedding if config.tie_embeddings else read("lm_head.weight"),
                norm=read("model.norm.weight"),
                last_layer={
                    name.removeprefix(prefix): read(name)
                    for name in checkpoint.names
                    if name.startswith(prefix) and name.endswith((".weight", ".bias"))
                },
            )

    def normed(self, stream: Tensor) -> Tensor:
        """[…, d] residual stream behind the last block → the hidden state that the head reads."""
        size = (self.config.hidden_size,)
        return torch.nn.functional.rms_norm(stream, size, self.norm, self.config.rms_eps)
