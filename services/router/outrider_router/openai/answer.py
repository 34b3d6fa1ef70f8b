"""Writing one generation as an answer: whole, or as a stream of events.

Both ways take the same deltas, so a stream joined is the whole answer.
"""

from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field
from typing import Any

from outrider_router.generation import Delta, Ending, Generation, GenerationFailed, Order
from outrider_router.metrics import RequestRecord
from outrider_router.openai.dialect import Answer
from outrider_router.openai.errors import ApiError, FieldNames, of_failure
from outrider_router.openai.events import DONE, EventWriter, event
from outrider_router.openai.frame import Frame, Usage
from outrider_router.openai.report import metrics_of
from outrider_router.text.parts import Part, joined
from outrider_router.types import ReportLevel, Round, TokenLogprobs
from outrider_runtime.logs import get_logger

log = get_logger(__name__)


@dataclass
class _Choice:
    """A whole answer in the making."""

    parts: list[Part] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    rounds: list[Round] = field(default_factory=list)
    ending: Ending | None = None

    def add(self, delta: Delta) -> None:
        self.parts += delta.parts
        self.token_ids += delta.token_ids
        self.logprobs += delta.logprobs
        self.rounds += delta.rounds
        self.ending = delta.ending or self.ending

    def answer(self, index: int, ending: Ending) -> Answer:
        return Answer(
            index,
            joined(self.parts),
            tuple(self.token_ids),
            tuple(self.logprobs),
            ending,
            tuple(self.rounds),
        )


@dataclass(frozen=True)
class AnswerWriter:
    """Writes one generation; gives its record the outcome.

    Attributes:
        names: the client's names of fields, for errors.
        report: how much to tell about speculation.
    """

    generation: Generation
    order: Order
    frame: Frame
    record: RequestRecord
    names: FieldNames
    report: ReportLevel = ReportLevel.NONE

    async def whole(self) -> dict[str, Any]:
        """The complete answer.

        Raises:
            GenerationFailed: a choice failed on the way.
        """
        choices = [_Choice() for _ in self.order.submissions]
        async for deltas in self.generation.rounds():
            for delta in deltas:
                choices[delta.place].add(delta)
        self.record.end(self.generation.outcome)
        answers = [
            choice.answer(index, choice.ending)
            for index, choice in enumerate(choices)
            if choice.ending is not None
        ]
        return self.frame.body([self.frame.whole(answer) for answer in answers], self._closing())

    async def events(self, interval_tokens: int = 1) -> AsyncGenerator[bytes]:
        """The answer as events, those of one round in one piece.

        With an interval, a choice's deltas wait until they hold so many tokens; its first and its
        last never wait.

        A failure becomes an error event, after which nothing comes, so that no client takes what
        it got for the whole answer.
        """
        openings = map(self.frame.opening, range(len(self.order.submissions)))
        piece = b"".join(event(chunk) for chunk in openings if chunk)
        pacing, writer = Pacing(interval_tokens), EventWriter(self.frame)
        try:
            async for news in self.generation.rounds():
                # The first news are there already: what opens the stream goes with them.
                piece += b"".join(map(writer.of, pacing.due(news)))
                if piece:
                    yield piece
                    piece = b""
        except Exception as error:
            yield event(self._failed(error).body())
            return
        self.record.end(self.generation.outcome)
        usage = event(self.frame.chunk([], self._closing())) if self.frame.with_usage else b""
        yield usage + DONE

    def _failed(self, error: Exception) -> ApiError:
        if isinstance(error, GenerationFailed):
            shown = of_failure(error.failure, self.names, delivered=True)
        else:
            log.exception("stream_failed")
            shown = ApiError(500, "the router failed while streaming")
        self.record.end(shown.outcome)
        return shown

    def _closing(self) -> dict[str, Any]:
        """What follows the choices: usage, and a report where one is wanted."""
        closing: dict[str, Any] = {"usage": self._usage().as_json()}
        if self.report is not ReportLevel.NONE:
            choices, most = len(self.order.submissions), self.order.model.max_draft_tokens
            closing["metrics"] = metrics_of(self.record, choices, most, self.report)
        return closing

    def _usage(self) -> Usage:
        return Usage(
            self.record.prompt_tokens,
            self.record.completion_tokens,
            self.generation.cached_prompt_tokens,
            self.record.reasoning_tokens,
            self.record.accepted_prediction_tokens,
            self.record.rejected_prediction_tokens,
        )


class Pacing:
    """Lets a choice's deltas through in pieces of at least so many tokens."""

    def __init__(self, interval_tokens: int) -> None:
        self._interval_tokens = interval_tokens
        self._waiting: dict[int, Delta | None] = {}

    def due(self, news: Sequence[Delta]) -> Sequence[Delta]:
        """What is to be written now."""
        if self._interval_tokens == 1:
            return news
        return [delta for one in news if (delta := self._join(one)) is not None]

    def _join(self, delta: Delta) -> Delta | None:
        first = delta.place not in self._waiting
        if earlier := self._waiting.get(delta.place):
            delta = earlier.followed_by(delta)
        if first or delta.ending or len(delta.token_ids) >= self._interval_tokens:
            self._waiting[delta.place] = None
            return delta
        self._waiting[delta.place] = delta
        return None
