"""Writing one generation as an answer: whole, or as a stream of events.

Both ways take the same deltas, so a stream joined is the whole answer.
"""

from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from typing import Any

from outrider_router.generation import Delta, Ending, Generation, GenerationFailed, Order
from outrider_router.metrics import RequestRecord
from outrider_router.openai.dialect import Answer, Frame, Usage
from outrider_router.openai.errors import ApiError, of_failure
from outrider_router.openai.stream import DONE, event
from outrider_runtime.logs import get_logger

log = get_logger(__name__)


@dataclass
class _Choice:
    """A whole answer in the making."""

    text: list[str] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    ending: Ending | None = None

    def add(self, delta: Delta) -> None:
        self.text.append(delta.text)
        self.token_ids += delta.token_ids
        self.ending = delta.ending or self.ending


@dataclass(frozen=True)
class AnswerWriter:
    """Writes one generation; gives its record the outcome."""

    generation: Generation
    order: Order
    frame: Frame
    record: RequestRecord
    prompt_param: str

    async def whole(self) -> dict[str, Any]:
        """The complete answer.

        Raises:
            GenerationFailed: a choice failed on the way.
        """
        choices = [_Choice() for _ in self.order.submissions]
        async for deltas in self.generation.rounds():
            for delta in deltas:
                choices[delta.index].add(delta)
        self.record.end(self.generation.outcome)
        answers = [
            Answer(index, "".join(choice.text), tuple(choice.token_ids), choice.ending)
            for index, choice in enumerate(choices)
            if choice.ending is not None
        ]
        return self.frame.body([self.frame.whole(answer) for answer in answers], self._usage())

    async def events(self) -> AsyncGenerator[bytes]:
        """The answer as events, those of one round in one piece.

        A failure becomes an error event, after which nothing comes, so that no client takes what
        it got for the whole answer.
        """
        openings = map(self.frame.writer.opening, range(len(self.order.submissions)))
        if opening := b"".join(self._event(choice) for choice in openings if choice):
            yield opening
        try:
            async for deltas in self.generation.rounds():
                choices = [choice for delta in deltas for choice in self.frame.delta(delta)]
                if choices:
                    yield b"".join(map(self._event, choices))
        except Exception as error:
            yield event(self._failed(error).body())
            return
        self.record.end(self.generation.outcome)
        if self.frame.with_usage:
            yield event(self.frame.chunk([], self._usage()))
        yield DONE

    def _failed(self, error: Exception) -> ApiError:
        if isinstance(error, GenerationFailed):
            shown = of_failure(error.failure, self.prompt_param, delivered=True)
        else:
            log.exception("stream_failed")
            shown = ApiError(500, "the router failed while streaming")
        self.record.end(shown.outcome)
        return shown

    def _event(self, choice: dict[str, Any]) -> bytes:
        return event(self.frame.chunk([choice]))

    def _usage(self) -> Usage:
        return Usage(
            self.record.prompt_tokens,
            self.record.completion_tokens,
            self.generation.cached_prompt_tokens,
            self.record.accepted_prediction_tokens,
            self.record.rejected_prediction_tokens,
        )
