"""Checkpoints whose weights are FP8 with one scale per block."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from outrider_worker.kv import KvPool
from outrider_worker.model import ModelError, load_model
from outrider_worker.model.config import Fp8Blocks
from outrider_worker.model.fp8 import dequantise, scale_shape
from tests.support.tiny_models import make_tiny_model
from tests.unit.worker.tensors.row_tables import random_text, rows_of

BLOCKS = Fp8Blocks(32, 64)
UP = "model.layers.1.mlp.up_proj.weight"
LARGEST = torch.finfo(torch.float8_e4m3fn).max

Tensors = dict[str, Tensor]


def spread(scales: Tensor, shape: torch.Size) -> Tensor:
    """One scale per entry."""
    by_row = scales.repeat_interleave(BLOCKS.rows, 0).repeat_interleave(BLOCKS.columns, 1)
    return by_row[: shape[0], : shape[1]]


def quantised(weight: Tensor) -> tuple[Tensor, Tensor]:
    """The weight in FP8, and its scales such that every block fills the range."""
    padding = (0, -weight.shape[1] % BLOCKS.columns, 0, -weight.shape[0] % BLOCKS.rows)
    padded = torch.nn.functional.pad(weight, padding)
    blocks = padded.unflatten(0, (-1, BLOCKS.rows)).unflatten(2, (-1, BLOCKS.columns))
    scales = blocks.abs().amax((1, 3)) / LARGEST
    return (weight / spread(scales, weight.shape)).to(torch.float8_e4m3fn), scales


def logits_of(folder: Path) -> Tensor:
    model = load_model(folder).model
    pool = KvPool.of_pages(model.config, 2, torch.float32)
    return model.logits(model.forward(rows_of([random_text(9)], [[1]], [(0, range(9))]), pool))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """All products in FP8; no size is a multiple of the blocks'."""
    folder = make_tiny_model(tmp_path / "fp8", "qwen3", intermediate_size=100)
    tensors: Tensors = {}
    for name, tensor in load_file(folder / "model.safetensors").items():
        tensors[name] = tensor
        if "_proj" in name:
            tensors[name], tensors[f"{name}_scale_inv"] = quantised(tensor)
    save_file(tensors, folder / "model.safetensors")
    config = json.loads((folder / "config.json").read_text())
    blocks = [BLOCKS.rows, BLOCKS.columns]
    config["quantization_config"] = {"quant_method": "fp8", "weight_block_size": blocks}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def edit(folder: Path, change: Callable[[Tensors], object]) -> None:
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors")


def test_a_checkpoint_in_fp8_is_the_dequantised_model(folder: Path) -> None:
    from_fp8 = logits_of(folder)
    tensors = load_file(folder / "model.safetensors")
    scales = {name: tensors.pop(name) for name in list(tensors) if name.endswith("_scale_inv")}
    assert len(scales) == 14
    for name, scale in scales.items():
        weight = name.removesuffix("_scale_inv")
        tensors[weight] = tensors[weight].float() * spread(scale, tensors[weight].shape)
    save_file(tensors, folder / "model.safetensors")
    assert torch.equal(logits_of(folder), from_fp8)


@pytest.mark.parametrize("shape", [(32, 64), (33, 65), (1, 1), (96, 64), (31, 200)])
def test_blocks_at_the_edges_may_be_smaller(shape: tuple[int, int]) -> None:
    weight = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    stored, scales = quantised(weight)
    assert tuple(scales.shape) == scale_shape(shape, BLOCKS)
    plain = dequantise(stored, scales, BLOCKS, torch.float32)
    assert torch.equal(plain, stored.float() * spread(scales, weight.shape))
    torch.testing.assert_close(plain, weight, rtol=1 / 16, atol=float(scales.max()) / 2**9)
    halves = dequantise(stored, scales, BLOCKS, torch.bfloat16)
    assert torch.equal(halves, plain.to(torch.bfloat16))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.pop(f"{UP}_scale_inv"), f"missing: {UP}_scale_inv"),
        (
            lambda t: t.update({f"{UP}_scale_inv": torch.ones(4, 2)}),
            rf"{UP}_scale_inv is \(4, 2\), expected \(4, 1\)",
        ),
        (lambda t: t.update({UP: t[UP].float()}), f"surplus: {UP}_scale_inv"),
        (
            lambda t: t.update({"model.norm.weight": torch.ones(48).to(torch.float8_e4m3fn)}),
            r"unknown way: model\.norm\.weight is F8_E4M3",
        ),
        (
            lambda t: t.update({UP: t[UP].float().to(torch.float8_e5m2)}),
            rf"unknown way: {UP} is F8_E5M2",
        ),
    ],
)
def test_scales_that_do_not_fit(
    folder: Path, change: Callable[[Tensors], object], message: str
) -> None:
    edit(folder, change)
    with pytest.raises(ModelError, match=message):
        load_model(folder)


def test_fp8_that_the_configuration_does_not_mention(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    del config["quantization_config"]
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError, match=r"surplus: .*_scale_inv.*; .* is F8_E4M3"):
        load_model(folder)
