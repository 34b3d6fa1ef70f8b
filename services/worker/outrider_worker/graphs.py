"""How a round's target forward is launched: eagerly, or as a CUDA graph per row bucket.

A graph repeats recorded work on the memory it was recorded on. So each bucket's rows live in static
buffers: a launch clears them, copies the live rows in, and replays; rows beyond the live ones are
padding (length 0, null page) and compute nothing that anyone reads. All graphs are recorded at
start, the largest first, in one memory pool. A launch that no graph serves runs eagerly and is
counted by its key: falling back is slow, and must be seen.

Knows: buckets, buffers, capture and replay, fall-backs. Does not know: what the rows mean, what a
forward costs (whoever launches measures each key), how prefill runs (always eagerly, not here).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

import torch
from torch import Tensor

from outrider_worker.attention.base import Rows
from outrider_worker.kv import KvPool
from outrider_worker.model.base import CausalLM

CUDA_ROW_LADDER = (
    *(1, 2, 4),
    *range(8, 64, 8),
    *range(64, 256, 16),
    *range(256, 512, 32),
    *range(512, 1025, 64),
)
"""Buckets on a GPU. Larger rounds run eagerly: their products take longer than their launches."""

Hidden = tuple[Tensor, Tensor]
"""Of R rows: hidden states [R, d] after the final norm, and features [R, F] for a drafter; the
hidden states again where nobody asked for others."""

T = TypeVar("T")


class CannotCapture(Exception):
    """The work cannot be recorded, and why: it waits for the device, for one."""


class Capture(Protocol):
    """Records work once, to be repeated on the same memory."""

    def __call__(self, work: Callable[[], Hidden]) -> Callable[[], Hidden]:
        """Run `work` until it is warm, record it, hand back its repetition.

        The repetition returns the same static tensors each time. Raises CannotCapture.
        """
        ...


class Forwards(Protocol):
    """Runs the target over the rows of a round, at the boundaries it was made with; the shape of
    CausalLM.forward_with_features.
    """

    def __call__(self, rows: Rows, pool: KvPool) -> Hidden:
        """Hidden states and features of `rows`, valid until the next call."""
        ...

    def bucket(self, rows: int) -> int:
        """Rows the device really computes when `rows` are launched: this launch's key."""
        ...

    @property
    def fallbacks(self) -> Mapping[int, int]:
        """Launches that should have been a graph's and were not, by key."""
        ...


class EagerForwards:
    """Runs the model as it is, unpadded: what a CPU does, for which every row count is a key."""

    def __init__(self, model: CausalLM, boundaries: Sequence[int] = ()) -> None:
        self._model = model
        self._boundaries = boundaries

    def __call__(self, rows: Rows, pool: KvPool) -> Hidden:
        """See Forwards."""
        return self._model.forward_with_features(rows, pool, self._boundaries)

    def bucket(self, rows: int) -> int:
        """`rows`: nothing is padded."""
        return rows

    @property
    def fallbacks(self) -> Mapping[int, int]:
        """None: nothing was to be captured."""
        return {}


@dataclass(frozen=True)
class _RowBuffers:
    """The static row columns that all graphs read, each its first rows. Zero means padding."""

    columns: Tensor
    """[5, rows of the largest bucket] int64: token_ids, positions, slots, sequence, lengths"""
    page_table: Tensor
    """[S, P] int64, kept up to date by its owner."""

    @classmethod
    def allocate(cls, rows: int, page_table: Tensor) -> _RowBuffers:
        columns = torch.zeros(5, rows, dtype=torch.int64, device=page_table.device)
        return cls(columns, page_table)

    def rows(self, bucket: int) -> Rows:
        token_ids, positions, slots, sequence, lengths = self.columns[:, :bucket].unbind()
        return Rows(token_ids, positions, slots, sequence, lengths, self.page_table)

    def fill(self, rows: Rows) -> None:
        """Copy rows in; everything behind them, of whatever launch before, becomes padding."""
        live = (rows.token_ids, rows.positions, rows.slots, rows.sequence, rows.lengths)
        self.columns.zero_()
        torch._foreach_copy_(list(self.columns[:, : rows.count]), list(live))

    def shares_pages_with(self, rows: Rows) -> bool:
        """Whether `rows` names pages in the table that the graphs read, or in its first columns."""
        ours, theirs = self.page_table, rows.page_table
        return ours.data_ptr() == theirs.data_ptr() and ours.stride() == theirs.stride()


class CapturedForwards:
    """Replays the smallest captured bucket that holds the rows (a Forwards).

    page_table: the seats' own table, [S, P] int64; `rows` of every call must name pages in it.
    """

    @torch.inference_mode()
    def __init__(
        self,
        model: CausalLM,
        pool: KvPool,
        page_table: Tensor,
        buckets: Sequence[int],
        capture: Capture,
        boundaries: Sequence[int] = (),
    ) -> None:
        self._eager = EagerForwards(model, boundaries)
        self._pool = pool
        self._buckets = sorted(buckets)
        self._buffers = _RowBuffers.allocate(self._buckets[-1], page_table)
        self._replays: dict[int, Callable[[], Hidden]] = {}
        self._refusals: dict[int, str] = {}
        self._fallbacks: Counter[int] = Counter()
        for bucket in reversed(self._buckets):
            self._record(bucket, capture)

    @torch.inference_mode()
    def __call__(self, rows: Rows, pool: KvPool) -> Hidden:
        """See Forwards. Raises ValueError for another pool or page table than the captured."""
        if pool is not self._pool or not self._buffers.shares_pages_with(rows):
            raise ValueError("graphs replay on the pool and page table they were captured with")
        bucket = self.bucket(rows.count)
        replay = self._replays.get(bucket)
        if replay is None or rows.tail_mask is not None:
            self._fallbacks[bucket] += 1
            return self._eager(rows, pool)
        self._buffers.fill(rows)
        hidden, features = replay()
        return hidden[: rows.count], features[: rows.count]

    def bucket(self, rows: int) -> int:
        """The smallest bucket that holds `rows`; `rows` itself beyond the largest."""
        return next((bucket for bucket in self._buckets if bucket >= rows), rows)

    @property
    def fallbacks(self) -> Mapping[int, int]:
        """See Forwards."""
        return self._fallbacks

    @property
    def refusals(self) -> Mapping[int, str]:
        """Buckets that could not be captured, and why."""
        return self._refusals

    def _record(self, bucket: int, capture: Capture) -> None:
        rows = self._buffers.rows(bucket)
        try:
            self._replays[bucket] = capture(lambda: self._eager(rows, self._pool))
        except CannotCapture as error:
            self._refusals[bucket] = str(error)


def make_forwards(
    model: CausalLM,
    pool: KvPool,
    page_table: Tensor,
    max_rows: int,
    boundaries: Sequence[int] = (),
) -> Forwards:
    """How rounds of up to `max_rows` rows are launched where the pool is.

    boundaries: where features are taken, see CausalLM.forward_with_features.
    """
    if page_table.device.type != "cuda":
        return EagerForwards(model, boundaries)
    buckets = buckets_up_to(max_rows)
    return CapturedForwards(model, pool, page_table, buckets, CudaCapture(), boundaries)


def buckets_up_to(max_rows: int) -> tuple[int, ...]:
    """The ladder's buckets below `max_rows`, and `max_rows` itself if the ladder reaches so far."""
    below = tuple(bucket for bucket in CUDA_ROW_LADDER if bucket < max_rows)
    return (*below, max_rows) if max_rows <= CUDA_ROW_LADDER[-1] else below


class CudaCapture:
    """Captures into CUDA graphs that share one memory pool (a Capture).

    Results stay referenced, so that no later graph is given their memory; everything else a graph
    uses is free for the others, for they never run at the same time.
    """

    def __init__(self) -> None:
        self._memory = torch.cuda.graph_pool_handle()
        self._stream = torch.cuda.Stream()

    def __call__(self, work: Callable[[], T]) -> Callable[[], T]:
        """See Capture."""
        self._warm_up(work)
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(
                graph,
                pool=self._memory,
                stream=self._stream,
                capture_error_mode="thread_local",
            ):
                result = work()
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            raise CannotCapture(_first_line(error)) from error

        def replay() -> T:
            graph.replay()
            return result

        return replay

    def _warm_up(self, work: Callable[[], object]) -> None:
        """Let kernels compile and libraries allocate; then check that nothing waits.

        A capture that fails may leave the stream unusable, so what would fail is found before it.
        """
        self._stream.wait_stream(torch.cuda.current_stream())
        mode = torch.cuda.get_sync_debug_mode()
        with torch.cuda.stream(self._stream):
            work()
            torch.cuda.set_sync_debug_mode("error")
            try:
                work()
            except torch.OutOfMemoryError:
                raise
            except RuntimeError as error:
                raise CannotCapture(_first_line(error)) from error
            finally:
                torch.cuda.set_sync_debug_mode(mode)
        torch.cuda.current_stream().wait_stream(self._stream)


def _first_line(error: BaseException) -> str:
    return str(error).partition("\n")[0]
