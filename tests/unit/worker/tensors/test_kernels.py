"""The CPU's own kernels beside torch's code, and the bits of rows on both."""

from typing import Any

import numpy as np
import pytest
import torch

from outrider_worker.attention import make_attention
from outrider_worker.kernels.compiled import shared
from outrider_worker.kernels.exponential import exp
from outrider_worker.kernels.panel_linear import PanelLinear
from outrider_worker.model import load_model
from outrider_worker.model.decoder import Decoder
from outrider_worker.numerics import probe_batch_invariance
from tests.support.tiny_models import make_tiny_model, shared_tiny_llama
from tests.unit.worker.tensors.parity import PROMPT, logits_of

SHAPES = [(960, 576), (80, 48), (16, 100), (144, 1000)]


@shared
def _exp_of(x: np.ndarray, out: np.ndarray) -> None:
    for place in range(x.shape[0]):
        out[place] = exp(x[place])


def test_exp_is_right_to_the_last_place() -> None:
    x = np.linspace(-87, 88, 500_001).astype(np.float32)
    found = np.empty_like(x)
    _exp_of(x, found)
    exact = np.exp(x.astype(np.float64))
    assert (np.abs(found - exact) <= np.spacing(exact.astype(np.float32))).all()


def test_exp_at_its_ends() -> None:
    x = np.array([0, -88, -np.inf, 89, np.inf, np.nan], np.float32)
    found = np.empty_like(x)
    _exp_of(x, found)
    assert found[:3].tolist() == [1, 0, 0]
    assert found[3] == found[4] == pytest.approx(np.exp(88.0), rel=1e-6)
    assert np.isnan(found[5])


@pytest.mark.parametrize(("out", "inner"), SHAPES)
@pytest.mark.parametrize("with_bias", [False, True])
def test_panels_multiply_and_keep_a_rows_bits(out: int, inner: int, with_bias: bool) -> None:
    generator = torch.Generator().manual_seed(out)
    weight, x = (torch.randn(n, inner, generator=generator) for n in (out, 70))
    bias = torch.randn(out, generator=generator) if with_bias else None
    linear = PanelLinear(weight, bias)
    whole = linear(x)
    exact = x.double() @ weight.double().T + (0 if bias is None else bias)
    torch.testing.assert_close(whole, exact.float(), rtol=1e-4, atol=1e-4)
    for rows in (*range(1, 18), 64, 65):
        assert torch.equal(linear(x[-rows:]), whole[-rows:]), rows


def test_panels_refuse_outputs_that_fill_no_vector() -> None:
    with pytest.raises(ValueError, match="multiples of 16, not 33"):
        PanelLinear(torch.zeros(33, 8))


FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {"attention_bias": True, "mlp_bias": True},
    "mistral": {"sliding_window": 37},
    "qwen2": {},
    "qwen3": {},
}


@pytest.mark.parametrize("family", FAMILIES)
def test_layers_as_one_job_are_the_layers(
    family: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = make_tiny_model(tmp_path_factory.mktemp(family), family, **FAMILIES[family])
    fused = load_model(folder, backend=make_attention("rows")).model
    plain = load_model(folder, backend=make_attention("blocks")).model
    assert isinstance(fused, Decoder)
    assert isinstance(plain, Decoder)
    assert fused.is_fused
    assert not plain.is_fused
    found, expected = logits_of(fused, PROMPT), logits_of(plain, PROMPT)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5 * float(expected.abs().max()))


@pytest.mark.parametrize("backend", ["rows", "blocks"])
def test_both_ways_are_batch_invariant(backend: str) -> None:
    model = load_model(shared_tiny_llama(), backend=make_attention(backend)).model
    report = probe_batch_invariance(model)
    assert report.ok, report.summary()


def test_layers_that_are_not_plain_run_one_by_one(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = make_tiny_model(tmp_path_factory.mktemp("odd"), "llama", hidden_size=50)
    model = load_model(folder, backend=make_attention("rows")).model
    assert isinstance(model, Decoder)
    assert not model.is_fused
    assert logits_of(model, PROMPT).isfinite().all()
