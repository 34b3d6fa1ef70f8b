"""Architectures by the name their config.json gives, each imported only when it is chosen.

A new architecture is one file in this package and one line here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from torch import Tensor

from outrider_worker.attention.base import AttentionBackend
from outrider_worker.model.base import CausalLM
from outrider_worker.model.config import ModelConfig, ModelError


@dataclass(frozen=True)
class Architecture:
    """How to build one kind of model from a checkpoint."""

    tensor_shapes: Callable[[ModelConfig], Mapping[str, tuple[int, ...]]]
    """Every tensor the checkpoint must hold."""
    build: Callable[[ModelConfig, Callable[[str], Tensor], AttentionBackend], CausalLM]
    """From configuration, a reader of tensors by name, and the attention to use."""


def _llama() -> Architecture:
    from outrider_worker.model.llama import Llama, tensor_shapes

    return Architecture(tensor_shapes, Llama)


ARCHITECTURES: Mapping[str, Callable[[], Architecture]] = {"LlamaForCausalLM": _llama}


def find_architecture(name: str) -> Architecture:
    """The architecture called `name`. Raises ModelError listing the known ones."""
    try:
        factory = ARCHITECTURES[name]
    except KeyError:
        known = ", ".join(sorted(ARCHITECTURES))
        raise ModelError(f"architecture {name!r} is not supported; known: {known}") from None
    return factory()
