"""Captured forwards: buckets, static buffers and fall-backs, with a capture that only repeats."""

import dataclasses
import itertools
from collections.abc import Callable, Sequence
from functools import cache

import pytest
import torch
from torch import Tensor

from outrider_worker.attention.base import Rows
from outrider_worker.graphs import (
    CUDA_ROW_LADDER,
    CannotCapture,
    CapturedForwards,
    EagerForwards,
    Hidden,
    buckets_up_to,
    make_forwards,
)
from outrider_worker.kv import KvPool
from outrider_worker.model.base import CausalLM
from outrider_worker.model.loader import load_model
from tests.support.tiny_models import shared_tiny_llama
from tests.unit.worker.tensors.row_tables import random_text, rows_of, without

BUCKETS = (1, 2, 4, 8)
BOUNDARIES = (2, 0)
TEXTS = [random_text(20, seed) for seed in range(8)]
PAGES = [[page] for page in range(1, 9)]
COLUMNS = ("token_ids", "positions", "slots", "sequence", "lengths")


@cache
def tiny_model() -> CausalLM:
    return load_model(shared_tiny_llama()).model


class FakeCapture:
    """Repeats the work itself, as a graph would: on the same rows, into the same result."""

    def __init__(self, refused: tuple[int, ...] = ()) -> None:
        self.recorded: list[int] = []
        self._refused = refused

    def __call__(self, work: Callable[[], Hidden]) -> Callable[[], Hidden]:
        result = tuple(each.clone() for each in work())
        rows = result[0].shape[0]
        if rows in self._refused:
            raise CannotCapture("operation would make the stream wait")
        self.recorded.append(rows)

        def replay() -> Hidden:
            hidden, features = (old.copy_(new) for old, new in zip(result, work(), strict=True))
            return hidden, features

        return replay


class Watched:
    """A model that remembers the row tables it was given."""

    def __init__(self) -> None:
        self._model = tiny_model()
        self.config = self._model.config
        self.seen: list[Rows] = []

    def embed(self, token_ids: Tensor) -> Tensor:
        return self._model.embed(token_ids)

    def forward(self, rows: Rows, pool: KvPool) -> Tensor:
        return self.forward_with_features(rows, pool, ())[0]

    def forward_with_features(
        self, rows: Rows, pool: KvPool, boundaries: Sequence[int]
    ) -> tuple[Tensor, Tensor]:
        columns = {name: getattr(rows, name).clone() for name in COLUMNS}
        self.seen.append(without(rows, **columns))
        return self._model.forward_with_features(rows, pool, boundaries)

    def logits(self, hidden: Tensor) -> Tensor:
        return self._model.logits(hidden)


class Scene:
    """Forwards with their own pool, and an eager twin on another pool to compare with."""

    def __init__(self, capture: FakeCapture | None = None) -> None:
        self.model = Watched()
        self.capture = capture or FakeCapture()
        self.table = torch.tensor(PAGES)
        self.pool, self._twin_pool = (
            KvPool.of_pages(self.model.config, 9, torch.float32) for _ in range(2)
        )
        self.forwards = CapturedForwards(
            self.model, self.pool, self.table, BUCKETS, self.capture, BOUNDARIES
        )
        self._eager = EagerForwards(tiny_model(), BOUNDARIES)

    def check(self, count: int, at: int) -> None:
        """One row each of the first `count` texts at position `at`: equals the eager forward."""
        rows = self.rows(count, at)
        for expected, found in zip(
            self._eager(rows, self._twin_pool), self.forwards(rows, self.pool), strict=True
        ):
            assert torch.equal(found, expected)

    def rows(self, count: int, at: int) -> Rows:
        spans = [(which, range(at, at + 1)) for which in range(count)]
        return dataclasses.replace(rows_of(TEXTS, PAGES, spans), page_table=self.table)


def test_every_bucket_is_captured_at_start_the_largest_first() -> None:
    scene = Scene()
    assert scene.capture.recorded == [8, 4, 2, 1]
    assert all(rows.lengths.count_nonzero() == 0 for rows in scene.model.seen)


def test_a_shrinking_batch_equals_eager_and_leaves_no_row_behind() -> None:
    """From eight rows down to one, through every bucket and every count between."""
    scene = Scene()
    for at, count in enumerate((8, 7, 6, 5, 4, 3, 2, 1)):
        scene.check(count, at)
        ran = scene.model.seen[-1]
        assert ran.count == scene.forwards.bucket(count)
        for name in COLUMNS:
            assert getattr(ran, name)[count:].count_nonzero() == 0, name
    assert scene.forwards.fallbacks == {}


def test_poisoned_buffers_are_reset_before_they_are_read() -> None:
    scene = Scene()
    with torch.inference_mode():
        scene.forwards._buffers.columns.fill_(2**40)
    scene.check(3, at=0)
    assert scene.model.seen[-1].count == 4


def test_alternating_row_counts_capture_nothing_after_the_start() -> None:
    scene = Scene()
    for at in range(12):
        scene.check((8, 1, 3)[at % 3] if at % 2 else 2, at)
    assert scene.capture.recorded == [8, 4, 2, 1]
    assert scene.forwards.fallbacks == {}


def test_rows_beyond_the_largest_bucket_run_eagerly_and_are_counted() -> None:
    scene = Scene()
    spans = [(which, range(2)) for which in range(5)]
    rows = dataclasses.replace(rows_of(TEXTS, PAGES, spans), page_table=scene.table)
    for _ in range(2):
        hidden, features = scene.forwards(rows, scene.pool)
    assert (hidden.shape, features.shape) == ((10, 48), (10, 96))
    assert scene.forwards.fallbacks == {10: 2}
    assert scene.forwards.bucket(10) == 10


def test_a_bucket_that_cannot_be_captured_says_why_and_is_counted() -> None:
    scene = Scene(FakeCapture(refused=(4,)))
    assert scene.forwards.refusals == {4: "operation would make the stream wait"}
    scene.check(3, at=0)
    assert scene.model.seen[-1].count == 3
    scene.check(2, at=1)
    assert scene.forwards.fallbacks == {4: 1}


def test_another_pool_or_page_table_is_refused() -> None:
    scene = Scene()
    rows = scene.rows(2, at=0)
    other_pool = KvPool.of_pages(scene.model.config, 9, torch.float32)
    with pytest.raises(ValueError, match="captured with"):
        scene.forwards(rows, other_pool)
    with pytest.raises(ValueError, match="captured with"):
        scene.forwards(dataclasses.replace(rows, page_table=scene.table.clone()), scene.pool)


def test_buckets_rise_in_narrow_steps_up_to_the_most_rows_of_a_round() -> None:
    assert buckets_up_to(5) == (1, 2, 4, 5)
    assert buckets_up_to(512)[-2:] == (480, 512)
    assert buckets_up_to(4096) == CUDA_ROW_LADDER
    steps = [b - a for a, b in itertools.pairwise(CUDA_ROW_LADDER)]
    assert min(steps) >= 1
    assert max(steps) <= 64


def test_a_cpu_launches_eagerly_and_pads_nothing() -> None:
    model = tiny_model()
    pool = KvPool.of_pages(model.config, 2, torch.float32)
    forwards = make_forwards(model, pool, torch.tensor([[1]]), max_rows=64)
    assert [forwards.bucket(rows) for rows in (1, 5, 300)] == [1, 5, 300]
    assert forwards.fallbacks == {}
