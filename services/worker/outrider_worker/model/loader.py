"""From a folder or GGUF file to a model that runs.

Knows: the order of steps. Does not know: file formats (checkpoint, gguf), architectures (registry),
where models come from (resolve).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from outrider_worker.attention import AttentionBackend, default_attention
from outrider_worker.model.base import CausalLM
from outrider_worker.model.checkpoint import Checkpoint
from outrider_worker.model.config import ModelConfig, ModelError
from outrider_worker.model.config_json import read_config
from outrider_worker.model.registry import find_architecture
from outrider_worker.model.weights import Weights

Progress = Callable[[str, float], None]
"""Called with what is being done and how much of it is, 0 to 1."""

_UNUSED = ("rotary_emb.inv_freq",)
"""Endings of tensors that some checkpoints carry though they follow from the configuration."""


@dataclass(frozen=True)
class LoadedModel:
    """A model ready to run, and the folder that its tokenizer is in."""

    model: CausalLM
    config: ModelConfig
    folder: Path
    mtp_tensors: tuple[str, ...] = ()
    """Names of the tensors in the folder that belong to layers behind the model's own, which
    draft (multi-token prediction). They are not read here."""


def load_model(
    path: Path,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
    progress: Progress = lambda step, done: None,
    backend: AttentionBackend | None = None,
) -> LoadedModel:
    """Load a folder in the Hugging Face layout, or a GGUF file (converted once, then cached).

    Weights are read, fused and packed layer by layer: beside the finished model, memory holds one
    layer at most. Raises ModelError saying what is wrong with the files.
    """
    folder = model_folder(path, progress)
    config = read_config(folder)
    architecture = find_architecture(config.architecture)
    shapes = architecture.tensor_shapes(config)
    with Checkpoint(folder, config.quantisation) as checkpoint:
        mtp = {name for name in checkpoint.names if name.startswith(_mtp(config))}
        checkpoint.check(shapes, lambda name: name in mtp or name.endswith(_unused(config)))
        reader = _counting(checkpoint, shapes, dtype, torch.device(device), progress)
        attention = backend or default_attention(torch.device(device))
        model = architecture.build(config, reader, attention)
    return LoadedModel(model, config, folder, tuple(sorted(mtp)))


def model_folder(path: Path, progress: Progress = lambda step, done: None) -> Path:
    """The folder that a model is read from: `path`, or what that GGUF file converts to.

    Raises ModelError for what is neither, or a file that is broken.
    """
    if path.is_dir():
        return path
    if path.suffix == ".gguf" and path.is_file():
        from outrider_worker.model.gguf import converted_folder

        return converted_folder(path, progress)
    raise ModelError(f"{path} is neither a model folder nor a .gguf file")


def _unused(config: ModelConfig) -> tuple[str, ...]:
    """A tied head may be stored all the same: it is the embedding again."""
    return (*_UNUSED, "lm_head.weight") if config.tie_embeddings else _UNUSED


def _mtp(config: ModelConfig) -> tuple[str, ...]:
    """What the names of the drafting layers' tensors begin with, in every family."""
    behind = range(config.layers, config.layers + config.mtp_layers)
    return (*(f"model.layers.{layer}." for layer in behind), "mtp.", "model.mtp_layers.")


def _counting(
    checkpoint: Checkpoint,
    shapes: Mapping[str, tuple[int, ...]],
    model_dtype: torch.dtype,
    device: torch.device,
    progress: Progress,
) -> Weights:
    """A reader of tensors by name that reports progress."""
    read = 0

    def tensor(name: str, dtype: torch.dtype | None = None) -> Tensor:
        nonlocal read
        read += 1
        progress("loading weights", min(1.0, read / len(shapes)))
        return checkpoint.tensor(name, dtype or model_dtype).to(device)

    return tensor
