"""A row's product must have the same bits whatever the number of rows."""

import pytest
import torch
import torch.nn.functional as F

from outrider_worker.linear import PackedLinear, PlainLinear, has_prepacked_linear, make_linear

SHAPES = [(960, 576), (576, 1536), (96, 48), (33, 100), (259, 48)]


def random_linear(out: int, inner: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(out * inner)
    weight = torch.randn(out, inner, generator=generator)
    bias = torch.randn(out, generator=generator)
    return weight, bias, torch.randn(128, inner, generator=generator)


@pytest.mark.parametrize(("out", "inner"), SHAPES)
@pytest.mark.parametrize("with_bias", [False, True])
def test_every_row_count_gives_the_same_bits(out: int, inner: int, with_bias: bool) -> None:
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
    torch.testing.assert_close(PlainLinear(weight, bias)(x), expected, rtol=1e-4, atol=1e-4)


def test_the_plain_product_stands_in_where_onednn_is_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    weight, _, _ = random_linear(8, 16)
    assert isinstance(make_linear(weight), PackedLinear)
    monkeypatch.setattr("outrider_worker.linear.has_prepacked_linear", lambda: False)
    assert isinstance(make_linear(weight), PlainLinear)
