"""The number of rows per tile: every place in a tile must give the same bits."""

import pytest
import torch

from outrider_worker.attention import tile_choice
from outrider_worker.attention.tile_choice import KeyShape, places_alike, tile_rows_for
from outrider_worker.kv import PAGE_TOKENS, values_within

PLAIN = [KeyShape(16, 16), KeyShape(64, 64), KeyShape(128, 128)]
LATENT = KeyShape(576, 512, values_in_keys=True)


@pytest.mark.parametrize(
    ("group", "shape"),
    [(g, s) for g in (1, 2, 3, 4, 7, 8, 16) for s in PLAIN] + [(16, LATENT), (128, LATENT)],
)
def test_a_row_has_the_same_bits_in_every_place_of_a_tile(group: int, shape: KeyShape) -> None:
    rows = tile_rows_for(group, shape)
    keys = torch.randn(3, 1, shape.key_dim, PAGE_TOKENS)
    values = torch.randn(3, 1, PAGE_TOKENS, shape.value_dim)
    if shape.values_in_keys:
        values = values_within(keys, shape.value_dim)
    for pages in (keys[:, 0], values[:, 0]):
        row = torch.randn(1, group, pages.shape[1])
        out = torch.bmm(row.repeat(3, rows, 1), pages).unflatten(1, (rows, group))
        assert torch.equal(out, out[:, :1].expand_as(out))


def test_a_tile_size_that_treats_places_differently_is_passed_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def choice(group: int) -> int:
        chosen: int = tile_choice._checked_choice.__wrapped__(group, PLAIN[1], 1)
        return chosen

    def only(good: range) -> None:
        monkeypatch.setattr(
            tile_choice, "_treats_places_alike", lambda rows, group, shape: rows * group in good
        )

    only(range(28, 29))
    assert choice(7) == 4
    only(range(7))
    assert (choice(3), choice(1), choice(7)) == (2, 6, 1)


def test_a_large_group_is_a_tile_by_itself() -> None:
    assert tile_rows_for(128, LATENT) == 1


def test_places_that_differ_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = torch.bmm

    def uneven(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        out = plain(left, right)
        out[:, -1] *= 1 + 1e-6
        return out

    assert places_alike(1, 4, torch.randn(5, 16, 64))
    monkeypatch.setattr(torch, "bmm", uneven)
    assert not places_alike(2, 4, torch.randn(5, 16, 64))
