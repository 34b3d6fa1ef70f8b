"""Launches steps: uploads the host's orders, submits the device's work, hands back what to read.

The only place between the engine's plain values and the device's tensors. A step is submitted in
two pieces, so that the host can do something between a round's forward and its judgement (read the
step before it, make grammar masks); all results of a step come back in one copy.

Knows: orders, uploads, the stream. Does not know: what the device does with them (programs), when
steps are launched and what follows from their results (engine).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import or_

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from outrider_worker.engine.orders import (
    ChunkOrder,
    DraftOrder,
    FeedOrder,
    PickScores,
    RoundOrder,
    SeatPages,
    StepOrder,
)
from outrider_worker.engine.types import Request
from outrider_worker.programs import (
    DraftInput,
    FeedInput,
    PageInput,
    PickInput,
    PrefillInput,
    Programs,
    RoundForward,
    RoundInput,
    Tensors,
    Wanted,
)
from outrider_worker.results import NOTHING, StepResult, step_result
from outrider_worker.sampling import Stages, stages_of
from outrider_worker.seats import page_changes
from outrider_worker.speculate.pick import survival_table
from outrider_worker.streams import DeviceStream, Pending, Stopwatch

Mask = NDArray[np.int32]
"""[rows, ⌈V/32⌉] allowed tokens as bits."""

_EVERYTHING = -1
"""All 32 bits of a mask's word."""


@dataclass
class Step:
    """A step in flight. `run` is the device's: written by the forward, used up by the judgement."""

    round: RoundInput | None = None
    run: RoundForward | None = None
    begun: Pending | None = None
    finished: Pending | None = None

    def read(self) -> StepResult:
        """Wait for the step's results; to be asked once. Empty where nothing was launched."""
        if self.finished is None:
            return NOTHING
        begun = self.begun.result() if self.begun else None
        return step_result(begun, self.finished.result())


class Runner:
    """One device's programs and its stream."""

    def __init__(self, programs: Programs, stream: DeviceStream) -> None:
        self._programs = programs
        self._stream = stream
        self._shown_pages: dict[int, list[int]] = {}
        self._wanted: dict[int, Wanted] = {}
        self._survival: tuple[object, Tensor] | None = None

    @property
    def asynchronous(self) -> bool:
        """Whether the host can run ahead of the device."""
        return self._stream.asynchronous

    def bucket_rows(self, rows: int) -> int:
        """Rows that the device computes for a round of `rows`."""
        return self._programs.forwards.bucket(rows)

    @property
    def graph_fallbacks(self) -> Mapping[int, int]:
        """Rounds that should have been a captured graph's and were not, by row bucket."""
        return self._programs.forwards.fallbacks

    def seat(
        self, request: Request, end_ids: frozenset[int], fed_tokens: int | None = None
    ) -> None:
        """A request sits down on its seat with all that is known of it.

        end_ids: tokens that end it, which `min_tokens` forbids. fed_tokens: how many of its tokens
        a drafter with a state knows already; None where none is to know any.
        """
        seat, params = request.seat, request.spec.sampling
        self._wanted[seat] = Wanted(stages_of(params), params.top_logprobs)
        token_ids = self._upload(request.token_ids)
        prompt_tokens, room = len(request.spec.prompt_ids), request.room_tokens
        choice = request.spec.key.choice_index
        programs = self._programs

        def work(_watch: Stopwatch) -> Tensors:
            programs.seats.put(seat, token_ids, prompt_tokens, room)
            programs.sampling.put(seat, params, choice, end_ids)
            if programs.feeding is not None and fed_tokens is not None:
                programs.feeding.seat(seat, fed_tokens)
            return {}

        self._stream.submit(work)

    def begin(self, order: RoundOrder | None) -> Step:
        """Launch a round's forward; None for a step without a round."""
        if order is None:
            return Step()
        step = Step(self._round_input(order))
        pages = self._page_input(order.seats)
        programs, round_ = self._programs, step.round
        assert round_ is not None

        def work(watch: Stopwatch) -> Tensors:
            programs.show_pages(pages)
            step.run = programs.forward_round(round_)
            watch.lap("target")
            return {}

        step.begun = self._stream.submit(work)
        return step

    def finish(
        self,
        step: Step,
        order: StepOrder,
        masks: Sequence[Mask | None] = (),
        first_masks: Sequence[Mask | None] = (),
    ) -> None:
        """Launch the rest of a step: judgement, prefill, feed, the next drafts, the copy back.

        masks: for each request of the round, a row for its anchor and one for each of its drafts.
        first_masks: for each completing chunk, one row.
        """
        programs, round_ = self._programs, step.round
        if round_ is None and order.empty:
            return
        mask = self._round_mask(masks, round_.width + 1) if round_ else None
        pages = self._page_input(order.pages) if order.pages else None
        chunks = self._prefill_input(order.chunks) if order.chunks else None
        first_mask = self._first_mask(first_masks)
        feed = self._feed_input(order.feed) if order.feed else None
        drafts = [self._draft_input(each) for each in order.drafts]

        def work(watch: Stopwatch) -> Tensors:
            results: Tensors = {}
            if round_ is not None and step.run is not None:
                results |= programs.judge_round(round_, step.run, mask)
                step.run = None
                watch.lap("target")
            if pages is not None:
                programs.show_pages(pages)
            if chunks is not None:
                results |= programs.prefill(chunks, first_mask)
                watch.lap("prefill")
            if feed is not None:
                programs.feed(feed)
                watch.lap("feed")
            if drafts:
                results |= programs.draft(drafts)
                watch.lap("draft")
            return results

        step.finished = self._stream.submit(work)

    def close(self) -> None:
        """End after what has been launched."""
        self._stream.close()

    def _round_input(self, order: RoundOrder) -> RoundInput:
        seats = [line.seat for line in order.seats]
        lengths = None if order.drafts is None else [len(draft) for draft in order.drafts]
        given = [seats[line] for line in order.given]
        return RoundInput(
            seats=self._upload(seats),
            rows=order.rows,
            width=order.width,
            verify_tokens=order.verify_tokens,
            caps=self._upload(order.caps),
            wanted=self._wanted_of(seats),
            drafts=None if order.drafts is None else self._table(order.drafts, order.width),
            lengths=None if lengths is None else self._upload(lengths),
            given=self._upload(given) if given else None,
            picking=self._picking(order),
            uniform=lengths is not None and min(lengths) == max(lengths),
        )

    def _picking(self, order: RoundOrder) -> PickInput | None:
        """None where everything at hand gets a row."""
        scores = order.scores
        if scores is None or order.drafts is not None or sum(order.caps) <= order.verify_tokens:
            return None
        return PickInput(
            survival=self._survival_table(scores, order.width),
            class_row=self._upload(scores.class_row),
            weight=self._upload(scores.weight, torch.float64),
        )

    def _survival_table(self, scores: PickScores, width: int) -> Tensor:
        """Uploaded once per plan, not once per round."""
        key = (scores.version, scores.maps, width)
        if self._survival is None or self._survival[0] != key:
            table = self._upload(survival_table(scores.maps, width), torch.float64)
            self._survival = (key, table)
        return self._survival[1]

    def _prefill_input(self, chunks: Sequence[ChunkOrder]) -> PrefillInput:
        completing = [index for index, chunk in enumerate(chunks) if chunk.completes]
        fed = [index for index, chunk in enumerate(chunks) if chunk.feeds]
        return PrefillInput(
            seats=self._upload([chunk.seat.seat for chunk in chunks]),
            starts=self._upload([chunk.start for chunk in chunks]),
            counts=self._upload([chunk.tokens for chunk in chunks]),
            rows=sum(chunk.tokens for chunk in chunks),
            completing=self._upload(completing),
            wanted=self._wanted_of(chunks[index].seat.seat for index in completing),
            fed_rows=sum(chunks[index].tokens for index in fed),
            fed=self._upload(fed) if len(fed) < len(chunks) else None,
        )

    def _feed_input(self, order: FeedOrder) -> FeedInput:
        """On a device that has finished when a launch returns, nothing is padded."""
        seats = self._upload([line.seat for line in order.seats])
        return FeedInput(seats, order.rows if self.asynchronous else None)

    def _draft_input(self, order: DraftOrder) -> DraftInput:
        seats = [line.seat for line in order.seats]
        return DraftInput(
            order.drafter,
            self._upload(seats),
            self._upload(order.asks),
            order.tokens,
            self._wanted_of(seats),
        )

    def _page_input(self, lines: Sequence[SeatPages]) -> PageInput:
        changes = page_changes(
            self._shown_pages, [line.seat for line in lines], [line.pages for line in lines]
        )
        return PageInput(*(self._upload(column) for column in changes))

    def _wanted_of(self, seats: Iterable[int]) -> Wanted:
        """What sampling must do so that each of the seats gets what it asked for."""
        wanted = [self._wanted[seat] for seat in seats]
        tops = [each.top_logprobs for each in wanted if each.top_logprobs is not None]
        return Wanted(
            stages=reduce(or_, (each.stages for each in wanted), Stages.NONE),
            top_logprobs=max(tops) if tops else None,
        )

    def _round_mask(self, masks: Sequence[Mask | None], width: int) -> Tensor | None:
        """[n, W, words] with every bit set where nothing is forbidden; None if nothing ever is."""
        words = next((mask.shape[1] for mask in masks if mask is not None), None)
        if words is None:
            return None
        table = np.full((len(masks), width, words), _EVERYTHING, dtype=np.int32)
        for line, mask in zip(table, masks, strict=True):
            if mask is not None:
                line[: len(mask)] = mask[: len(line)]
        return self._upload(torch.from_numpy(table), torch.int32)

    def _first_mask(self, masks: Sequence[Mask | None]) -> Tensor | None:
        table = self._round_mask(masks, 1)
        return None if table is None else table[:, 0]

    def _table(self, lines: Sequence[Sequence[int]], width: int) -> Tensor:
        """[n, width], each line filled up with zeros."""
        padded = [[*line, *[0] * (width - len(line))] for line in lines]
        return self._upload(padded).view(len(lines), width)

    def _upload(
        self, values: Sequence[object] | Tensor, dtype: torch.dtype = torch.int64
    ) -> Tensor:
        return self._stream.upload(values, dtype)
