"""A row's logits: the same bits in any batch, chunking, row count and page layout."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from outrider_worker.kv import KvPool
from outrider_worker.linear import PlainLinear
from outrider_worker.model import CausalLM, load_model
from outrider_worker.numerics import choose_dtype, probe_batch_invariance
from tests.support.tiny_models import make_tiny_llama, make_tiny_model, shared_tiny_llama
from tests.support.tiny_sparse_models import shared_tiny_sparse
from tests.unit.worker.tensors.row_tables import Span, random_text, rows_of

LENGTH = 140
TEXTS = [random_text(LENGTH, seed) for seed in range(4)]
PAGES = [[1, 2, 3], [11, 5, 9], [4, 6, 7], [8, 10, 12]]


SPARSE = ("qwen3_moe", "deepseek_v3")
"""DeepSeek-V2 differs from V3 in routing alone, which has tests of its own."""


@pytest.fixture(scope="module", params=("llama", "sliding", *SPARSE))
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> CausalLM:
    if request.param in SPARSE:
        return load_model(shared_tiny_sparse(request.param)).model
    if request.param == "llama":
        return load_model(shared_tiny_llama()).model
    folder = tmp_path_factory.mktemp("sliding")
    return load_model(make_tiny_model(folder, "mistral", sliding_window=37)).model


class Session:
    """A model with a pool of its own."""

    def __init__(self, model: CausalLM, pages: list[list[int]] | None = None) -> None:
        self._model = model
        self._pages = pages or PAGES
        self._pool = KvPool.of_pages(model.config, 16, torch.float32)

    def run(self, *spans: Span, padded_to: int = 0) -> Tensor:
        rows = rows_of(TEXTS, self._pages, spans)
        hidden = self._model.forward(rows.padded_to(padded_to), self._pool)
        return self._model.logits(hidden)[: rows.count]


@pytest.fixture(scope="module")
def reference(model: CausalLM) -> Tensor:
    """[sequence, position, V]: every prompt in one prefill of its own."""
    return torch.stack([Session(model).run((s, range(LENGTH))) for s in range(len(TEXTS))])


@pytest.mark.parametrize("chunk", [1, 2, 3, 5, 6, 7, 8, 9, 16, 17, 31, 33, 63, 64, 65, 139])
def test_prefill_in_chunks_equals_one_prefill(
    model: CausalLM, reference: Tensor, chunk: int
) -> None:
    session = Session(model)
    parts = [
        session.run((0, range(start, min(LENGTH, start + chunk))))
        for start in range(0, LENGTH, chunk)
    ]
    assert torch.equal(torch.cat(parts), reference[0])


def test_every_row_count_gives_the_same_bits(model: CausalLM, reference: Tensor) -> None:
    session = Session(model)
    session.run((0, range(LENGTH)))
    for count in (*range(1, 26), *range(62, 67), *range(126, 130)):
        start = LENGTH - count
        assert torch.equal(session.run((0, range(start, LENGTH))), reference[0, start:]), count


def test_neighbours_and_their_order_do_not_matter(model: CausalLM, reference: Tensor) -> None:
    session = Session(model)
    for sequence in range(len(TEXTS)):
        session.run((sequence, range(100)))
    spans = [(2, range(100, 101)), (0, range(100, 109)), (3, range(100, 104)), (1, range(100, 130))]
    for order in (spans, spans[::-1], spans[1:], spans[2:3]):
        out = session.run(*order)
        expected = torch.cat([reference[s, p.start : p.stop] for s, p in order])
        assert torch.equal(out, expected)


@pytest.mark.parametrize("count", [2, 5, 16, 128])
def test_padding_rows_do_not_matter(model: CausalLM, reference: Tensor, count: int) -> None:
    session = Session(model)
    session.run((1, range(LENGTH - 1)))
    out = session.run((1, range(LENGTH - 1, LENGTH)), padded_to=count)
    assert torch.equal(out, reference[1, LENGTH - 1 :])


@pytest.mark.parametrize("own", [[3, 2, 1], [15, 1, 8], [7, 8, 9]])
def test_pages_do_not_matter(model: CausalLM, reference: Tensor, own: list[int]) -> None:
    out = Session(model, [own, *PAGES[1:]]).run((0, range(LENGTH)))
    assert torch.equal(out, reference[0])


def test_what_the_null_page_holds_does_not_matter(model: CausalLM, reference: Tensor) -> None:
    session = Session(model)
    session.run((0, range(LENGTH - 2)), padded_to=LENGTH + 50)
    out = session.run((0, range(LENGTH - 2, LENGTH)), padded_to=77)
    assert torch.equal(out, reference[0, LENGTH - 2 :])


def test_rejected_rows_leave_no_trace(model: CausalLM, reference: Tensor) -> None:
    """Rows written and then cut off are overwritten by those that take their place."""
    session = Session(model)
    session.run((0, range(90)))
    wrong = Session(model)
    wrong.run((0, range(90)))
    rows = rows_of([TEXTS[1], *TEXTS[1:]], PAGES, [(0, range(90, 98))])
    model.forward(rows, wrong._pool)
    assert torch.equal(wrong.run((0, range(90, 98))), session.run((0, range(90, 98))))
    assert torch.equal(wrong.run((0, range(98, LENGTH))), reference[0, 98:])


@pytest.mark.parametrize(
    "odd", [{"intermediate_size": 100}, {"hidden_size": 50}, {"num_key_value_heads": 3}]
)
def test_odd_sizes_are_invariant_too(
    odd: dict[str, int], tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = make_tiny_llama(tmp_path_factory.mktemp("odd"), **odd)
    report = probe_batch_invariance(load_model(folder).model)
    assert report.ok, report.summary()
    assert "bit for bit" in report.summary()


@pytest.mark.parametrize("folder", [shared_tiny_llama, lambda: shared_tiny_sparse("deepseek_v3")])
def test_two_threads_are_invariant_too(folder: Callable[[], Path]) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        report = probe_batch_invariance(load_model(folder()).model, row_counts=(2, 17))
    finally:
        torch.set_num_threads(before)
    assert report.ok, report.summary()


def test_the_probe_finds_a_forward_that_depends_on_company(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class RowCounting(PlainLinear):
        def __call__(self, x: Tensor) -> Tensor:
            return super().__call__(x) * (1 + 1e-6 * (x.shape[0] == 8))

    monkeypatch.setattr("outrider_worker.model.weights.make_linear", RowCounting)
    report = probe_batch_invariance(load_model(shared_tiny_llama()).model)
    assert not report.ok
    assert "among 8 rows" in {check.name for check in report.failed}
    assert report.summary().startswith("not batch invariant: ")


def test_cpus_run_float32() -> None:
    cpu = torch.device("cpu")
    assert choose_dtype(cpu) is torch.float32
    assert choose_dtype(cpu, "float32") is torch.float32
    with pytest.raises(ValueError, match="not served on CPUs"):
        choose_dtype(cpu, "bfloat16")
    with pytest.raises(ValueError, match="known: auto"):
        choose_dtype(cpu, "int3")
