"""Features: the residual stream between blocks, against the reference library and in any batch."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from outrider_worker.attention import make_attention
from outrider_worker.kv import KvPool
from outrider_worker.model import CausalLM, load_model
from outrider_worker.model.decoder import Decoder
from outrider_worker.model.taps import Taps
from tests.support.tiny_models import make_tiny_llama, make_tiny_model
from tests.support.tiny_sparse_models import make_tiny_sparse
from tests.unit.worker.tensors.parity import PAGES, PROMPT, reference_model
from tests.unit.worker.tensors.row_tables import rows_of

BLOCKS = 3
EVERYWHERE = tuple(range(BLOCKS + 1))

Make = Callable[[Path], Path]
FAMILIES: dict[str, Make] = {
    "llama": lambda folder: make_tiny_llama(folder, num_hidden_layers=BLOCKS),
    "qwen3": lambda folder: make_tiny_model(folder, "qwen3", num_hidden_layers=BLOCKS),
    "qwen3_moe": lambda folder: make_tiny_sparse(folder, "qwen3_moe"),
    "deepseek_v3": lambda folder: make_tiny_sparse(folder, "deepseek_v3"),
}


def features_of(
    model: CausalLM, boundaries: tuple[int, ...], parts: list[range] | None = None, padding: int = 0
) -> tuple[Tensor, Tensor]:
    """Hidden states and features of the whole prompt, run in `parts` with padding rows each."""
    pool = KvPool.of_pages(model.config, 5, torch.float32)
    found = []
    for part in parts or [range(len(PROMPT))]:
        rows = rows_of([PROMPT], PAGES, [(0, part)]).padded_to(len(part) + padding)
        ran = model.forward_with_features(rows, pool, boundaries)
        found.append([each[: len(part)] for each in ran])
    hidden, features = (torch.cat(each) for each in zip(*found, strict=True))
    return hidden, features


def reference_stream(folder: Path) -> Tensor:
    """[boundaries, tokens, d] of the reference library: the last one on its way into the norm."""
    reference = reference_model(folder)
    before_norm: list[Tensor] = []
    reference.model.norm.register_forward_pre_hook(
        lambda _norm, given: before_norm.append(given[0][0])
    )
    found = reference(torch.tensor([PROMPT]), output_hidden_states=True).hidden_states
    return torch.stack([*(states[0] for states in found[:-1]), *before_norm])


@pytest.mark.parametrize("family", FAMILIES)
@torch.inference_mode()
def test_boundaries_are_the_reference_librarys_hidden_states(family: str, tmp_path: Path) -> None:
    folder = FAMILIES[family](tmp_path)
    model, expected = load_model(folder).model, reference_stream(folder)
    assert expected.shape[0] == BLOCKS + 1
    _, features = features_of(model, EVERYWHERE)
    scale = float(expected.abs().max())
    found = features.unflatten(1, (BLOCKS + 1, -1)).transpose(0, 1)
    torch.testing.assert_close(found, expected, rtol=0, atol=2e-5 * scale)
    assert torch.equal(found[0], model.embed(torch.tensor(PROMPT)))


@pytest.fixture(scope="module", params=["rows", "blocks", "deepseek_v3", "qwen3_moe"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> CausalLM:
    """A plain decoder as one job and layer by layer, and two that always run layer by layer."""
    folder = tmp_path_factory.mktemp(request.param)
    if request.param in FAMILIES:
        return load_model(FAMILIES[request.param](folder)).model
    found = load_model(FAMILIES["llama"](folder), backend=make_attention(request.param)).model
    assert isinstance(found, Decoder)
    assert found.is_fused is (request.param == "rows")
    return found


def test_hidden_states_keep_their_bits_whatever_is_taken(model: CausalLM) -> None:
    pool = KvPool.of_pages(model.config, 5, torch.float32)
    plain = model.forward(rows_of([PROMPT], PAGES, [(0, range(len(PROMPT)))]), pool)
    for boundaries in ((), (0,), (1,), (BLOCKS,), (2, 1), EVERYWHERE):
        hidden, features = features_of(model, boundaries)
        assert torch.equal(hidden, plain), boundaries
        if not boundaries:
            assert torch.equal(features, plain)


def test_features_stand_in_the_order_asked_for(model: CausalLM) -> None:
    width = model.config.hidden_size
    every = features_of(model, EVERYWHERE)[1].split(width, dim=1)
    some = features_of(model, (2, 0, BLOCKS, 2))[1].split(width, dim=1)
    assert all(torch.equal(some[at], every[b]) for at, b in enumerate((2, 0, BLOCKS, 2)))


@pytest.mark.parametrize("chunk", [1, 7, 64])
def test_features_do_not_depend_on_company(model: CausalLM, chunk: int) -> None:
    parts = [range(at, min(at + chunk, len(PROMPT))) for at in range(0, len(PROMPT), chunk)]
    _, whole = features_of(model, EVERYWHERE)
    assert torch.equal(features_of(model, EVERYWHERE, parts)[1], whole)
    assert torch.equal(features_of(model, EVERYWHERE, padding=chunk)[1], whole)


@pytest.mark.parametrize("backend", ["rows", "blocks"])
def test_a_boundary_is_the_end_of_a_model_that_has_no_more_blocks(
    backend: str, tmp_path: Path
) -> None:
    """Bit for bit, so nothing is lost by stopping a job of many layers to take a copy."""
    shallow, deep = (
        load_model(
            make_tiny_llama(tmp_path / str(blocks), num_hidden_layers=blocks),
            backend=make_attention(backend),
        ).model
        for blocks in (2, BLOCKS)
    )
    assert torch.equal(features_of(deep, (2,))[1], features_of(shallow, (2,))[1])


def test_one_job_and_layer_by_layer_give_the_same_features(tmp_path: Path) -> None:
    folder = FAMILIES["llama"](tmp_path)
    fused, plain = (
        features_of(load_model(folder, backend=make_attention(name)).model, EVERYWHERE)[1]
        for name in ("rows", "blocks")
    )
    torch.testing.assert_close(fused, plain, rtol=1e-5, atol=1e-5 * float(plain.abs().max()))
    width = fused.shape[1] // len(EVERYWHERE)
    assert torch.equal(fused[:, :width], plain[:, :width])


@pytest.mark.parametrize("outside", [-1, BLOCKS + 1])
def test_a_boundary_that_no_model_has_is_refused(outside: int) -> None:
    x = torch.zeros(1, 4)
    with pytest.raises(ValueError, match=f"3 blocks has no boundary {outside}"):
        Taps((0, outside), BLOCKS, x)


def test_jobs_end_where_something_is_taken() -> None:
    def parts(*boundaries: int) -> list[tuple[int, int]]:
        return list(Taps(boundaries, BLOCKS, torch.zeros(1, 4)).parts())

    assert parts() == parts(0) == parts(BLOCKS) == [(0, 3)]
    assert parts(2, 1, 2) == [(0, 1), (1, 2), (2, 3)]
