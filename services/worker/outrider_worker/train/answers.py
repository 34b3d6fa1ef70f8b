"""The target answers prompts offline, many at a time, on the engine's own programs.

Every request has a seat and pages of its own from the start, so there is nothing to schedule; a
seat that falls free takes the next prompt. What is written depends on a prompt and its seed alone,
never on who else was there (batch invariance), so a run can be cut anywhere and taken up again.

Knows: programs, seats, the recorder. Does not know: files, prompts' texts, training.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import or_

import torch
from torch import Tensor

from outrider_worker.engine.types import SamplingParams
from outrider_worker.kv import PAGE_TOKENS, KvPool
from outrider_worker.model.loader import LoadedModel
from outrider_worker.programs import PrefillInput, Programs, RoundInput, SeatSize, Wanted
from outrider_worker.sampling import stages_of
from outrider_worker.speculate.verify import SamplerMatch
from outrider_worker.train.recorder import Recorder

PREFILL_ROWS = 512
"""Prompt tokens of one forward at most; a prompt is never cut."""


@dataclass(frozen=True)
class Question:
    """A prompt, and how it is to be answered."""

    prompt_ids: tuple[int, ...]
    sampling: SamplingParams


@dataclass(frozen=True)
class Answer:
    """A whole text and what the target thought while it wrote it."""

    number: int
    """Of its question, in the order asked."""
    token_ids: tuple[int, ...]
    """Prompt and answer, T of them."""
    features: Tensor
    """[T − 1, m·d] float16: the last token was never run over."""


@dataclass
class _Writing:
    """An answer that is being written."""

    number: int
    question: Question
    token_ids: list[int]

    def ended(self, eos_ids: Sequence[int]) -> bool:
        last, asked = self.token_ids[-1], self.question.sampling
        written = len(self.token_ids) - len(self.question.prompt_ids)
        return last in eos_ids or last in asked.stop_token_ids or written == asked.max_tokens


class Respondent:
    """One target with `seats` answers in the making."""

    def __init__(
        self,
        target: LoadedModel,
        boundaries: Sequence[int],
        seats: int = 32,
        context_tokens: int = 512,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> None:
        """dtype, device: the target's. boundaries: see Recorder."""
        self._eos_ids = target.config.eos_ids
        self._device = torch.device(device)
        self._context_tokens = context_tokens
        self._recorder = Recorder(boundaries, target.config.hidden_size, context_tokens)
        pages = -(-(context_tokens + 2) // PAGE_TOKENS)
        pool = KvPool.of_pages(target.config, 1 + seats * pages, dtype, device)
        size = SeatSize(seats, context_tokens, 0, seats)
        self._programs = Programs.over(target.model, pool, size, SamplerMatch(), [self._recorder])
        own = torch.arange(1, 1 + seats * pages, device=self._device).view(seats, pages)
        self._programs.seats.page_table[:seats, :pages] = own
        self._free = list(range(seats))
        self._writing: dict[int, _Writing] = {}

    @torch.inference_mode()
    def answer(self, questions: Iterable[Question]) -> Iterator[Answer]:
        """Answers as they are finished. Raises ValueError for what the context cannot hold."""
        waiting = deque(enumerate(questions))
        while waiting or self._writing:
            while waiting and self._free:
                self._begin(self._next(waiting))
                yield from self._finished()
            if self._writing:
                self._round()
                yield from self._finished()

    def _next(self, waiting: deque[tuple[int, Question]]) -> list[int]:
        """Seat as many as fit one prefill; returns their seats."""
        seats, rows = list[int](), 0
        while waiting and self._free:
            number, question = waiting[0]
            rows += len(question.prompt_ids)
            if seats and rows > PREFILL_ROWS:
                break
            waiting.popleft()
            seats.append(self._seat(number, question))
        return seats

    def _seat(self, number: int, question: Question) -> int:
        prompt, params = question.prompt_ids, question.sampling
        if len(prompt) + params.max_tokens > self._context_tokens:
            raise ValueError(
                f"a prompt of {len(prompt)} tokens and an answer of {params.max_tokens} are more "
                f"than a context of {self._context_tokens}"
            )
        seat = self._free.pop()
        self._writing[seat] = _Writing(number, question, list(prompt))
        self._programs.seats.put(seat, self._tensor(prompt), len(prompt), params.max_tokens)
        self._programs.sampling.put(seat, params, 0, frozenset())
        assert self._programs.feeding is not None
        self._programs.feeding.seat(seat, 0)
        return seat

    def _begin(self, seats: Sequence[int]) -> None:
        """Run over whole prompts, each of which emits its answer's first token."""
        counts = [len(self._writing[seat].token_ids) for seat in seats]
        found = self._programs.prefill(
            PrefillInput(
                seats=self._tensor(seats),
                starts=self._tensor([0] * len(seats)),
                counts=self._tensor(counts),
                rows=sum(counts),
                completing=self._tensor(range(len(seats))),
                wanted=self._wanted(seats),
                fed_rows=sum(counts),
            ),
            None,
        )
        self._write(seats, found["first"])

    def _round(self) -> None:
        """One more token of every answer."""
        seats = list(self._writing)
        lines, nothing = self._tensor(seats), self._tensor([0] * len(seats))
        order = RoundInput(
            seats=lines,
            rows=len(seats),
            width=0,
            verify_tokens=0,
            caps=nothing,
            wanted=self._wanted(seats),
            lengths=nothing,
            uniform=True,
        )
        run = self._programs.forward_round(order)
        found = self._programs.judge_round(order, run, None)
        assert self._programs.feeding is not None
        self._programs.feeding.feed(self._programs.seats, lines, len(seats))
        self._write(seats, found["emitted"][:, 0])

    def _write(self, seats: Sequence[int], tokens: Tensor) -> None:
        for seat, token in zip(seats, tokens.tolist(), strict=True):
            self._writing[seat].token_ids.append(token)

    def _finished(self) -> Iterator[Answer]:
        """Those that have ended leave their seats."""
        for seat, writing in list(self._writing.items()):
            if writing.ended(self._eos_ids):
                del self._writing[seat]
                self._free.append(seat)
                token_ids = tuple(writing.token_ids)
                features = self._recorder.recorded(seat, len(token_ids) - 1)
                yield Answer(writing.number, token_ids, features)

    def _wanted(self, seats: Sequence[int]) -> Wanted:
        asked = (stages_of(self._writing[seat].question.sampling) for seat in seats)
        return Wanted(reduce(or_, asked))

    def _tensor(self, values: Iterable[int]) -> Tensor:
        return torch.tensor(list(values), dtype=torch.int64, device=self._device)
