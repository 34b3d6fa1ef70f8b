"""A row's product must have the same bits whatever the number of rows."""

import pytest
import torch
import torch.nn.functional as F

from outrider_worker.linear import (
    PackedLinear,
    PlainLinear,
    SplitLinear,
    _split_keeps_bits,
    has_prepacked_linear,
    make_linear,
)

SHAPES = [(960, 576), (576, 1536), (96, 48), (33, 100), (259, 48), (2048, 600)]


def random_linear(out: int, inner: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(out * inner)
    weight = torch.randn(out, inner, generator=generator)
    bias = torch.randn(out, generator=generator)
    return weight, bias, torch.randn(128, inner, generator=generator)


@pytest.mark.parametrize(("out", "inner"), SHAPES)
@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("kernels", [False, True])
def test_every_row_count_gives_the_same_bits(
    out: int, inner: int, with_bias: bool, kernels: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("outrider_worker.linear.have_kernels", lambda: kernels)
    weight, bias, x = random_linear(out, inner)
    linear = make_linear(weight, bias if with_bias else None)
    whole = linear(x)
    for rows in range(1, 129):
        assert torch.equal(linear(x[:rows]), whole[:rows]), f"{rows} rows"
    for start in (1, 63, 127):
        assert torch.equal(linear(x[start:]), whole[start:]), f"from row {start}"


@pytest.mark.parametrize(("out", "inner"), SHAPES)
def test_agrees_with_the_plain_product(out: int, inner: int) -> None:
    weight, bias, x = random_linear(out, inner)
    assert has_prepacked_linear()
    expected = F.linear(x.double(), weight.double(), bias.double()).float()
    torch.testing.assert_close(PackedLinear(weight, bias)(x), expected, rtol=1e-4, atol=1e-4)
    for kind in (PlainLinear, SplitLinear):
        torch.testing.assert_close(kind(weight, bias)(x), expected, rtol=1e-4, atol=1e-4)


def test_large_weights_are_packed_and_shapes_whose_rows_differ_are_not_split(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("outrider_worker.linear.have_kernels", lambda: False)
    large, _, _ = random_linear(2048, 600)
    small, _, _ = random_linear(96, 48)
    assert isinstance(make_linear(large), PackedLinear)
    monkeypatch.setattr(SplitLinear, "_product", lambda _, x: torch.full((len(x), 96), len(x)))
    _split_keeps_bits.cache_clear()
    assert isinstance(make_linear(small), PackedLinear)
    monkeypatch.undo()
    _split_keeps_bits.cache_clear()


@pytest.mark.parametrize("threads", [1, 2])
def test_outputs_are_shared_out_by_threads(threads: int) -> None:
    weight, bias, x = random_linear(192, 48)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        linear = SplitLinear(weight, bias)
        torch.testing.assert_close(linear(x), F.linear(x, weight, bias), rtol=1e-4, atol=1e-4)
        assert linear.shares == threads
    finally:
        torch.set_num_threads(before)


def test_the_plain_product_stands_in_where_onednn_is_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    weight, _, _ = random_linear(8, 16)
    assert not isinstance(make_linear(weight), PlainLinear)
    monkeypatch.setattr("outrider_worker.linear.has_prepacked_linear", lambda: False)
    assert isinstance(make_linear(weight), PlainLinear)
