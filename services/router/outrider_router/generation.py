"""One request on its way: what its choices bring, wherever they are computed, turned into text.

Knows text; knows nothing of HTTP, of how answers are written, or of which worker does the work.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, closing, contextmanager
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from outrider_router.metrics import Outcome, RequestRecord
from outrider_router.relay import Relay
from outrider_router.routing.registry import Registry, ServedModel
from outrider_router.text.assemble import EndKind, Piece, TextAssembler, TextRules
from outrider_router.text.parts import Part, content_of, joined
from outrider_router.types import (
    Failure,
    FailureCode,
    Finish,
    FinishKind,
    Round,
    Submission,
    TokenLogprobs,
    Totals,
    Update,
    cut_rounds,
)
from outrider_runtime.clock import Clock
from outrider_runtime.logs import get_logger

log = get_logger(__name__)

_NOTHING = Piece((), ())
_NO_TOTALS = Totals(0, 0, 0, 0)


class GenerationFailed(Exception):
    """A choice, and with it the request, failed."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


@dataclass(frozen=True)
class Ending:
    """How a choice ended; `stop_reason` is the stop string or stop token id that ended it."""

    reason: Literal["stop", "length", "tool_calls"]
    stop_reason: str | int | None = None


class Delta(NamedTuple):
    """What one delivery added to the choice at `place`. Logprobs are one for each token or none at
    all, and `rounds` together brought just these tokens.
    """

    place: int
    parts: tuple[Part, ...]
    token_ids: tuple[int, ...]
    ending: Ending | None = None
    logprobs: tuple[TokenLogprobs, ...] = ()
    rounds: tuple[Round, ...] = ()

    @property
    def text(self) -> str:
        """The text for the user."""
        return content_of(self.parts)

    def followed_by(self, later: "Delta") -> "Delta":
        """Both as one."""
        return Delta(
            self.place,
            joined((*self.parts, *later.parts)),
            self.token_ids + later.token_ids,
            later.ending,
            self.logprobs + later.logprobs,
            self.rounds + later.rounds,
        )


@dataclass(frozen=True)
class Order:
    """What shall be generated: choices in the order of their index, all within `limit_s`."""

    model: ServedModel
    submissions: tuple[Submission, ...]
    rules: TextRules
    limit_s: float

    @property
    def prompt_tokens(self) -> int:
        """Tokens of the prompts; choices of one prompt share it and its request id."""
        return sum({one.request_id: len(one.prompt_ids) for one in self.submissions}.values())


class Generation:
    """A request whose first news have arrived."""

    def __init__(
        self,
        order: Order,
        relay: Relay,
        first: Mapping[int, Update],
        record: RequestRecord,
    ) -> None:
        self._order = order
        self._relay = relay
        self._news = first
        self._record = record
        table = order.model.text.tokenizer.table
        self._assemblers = [
            TextAssembler(table, order.rules, submission.sampling.max_tokens)
            for submission in order.submissions
        ]
        self._endings: dict[int, Ending] = {}
        self._failure: Failure | None = None
        self._cached = [0] * len(order.submissions)
        self._totals = [_NO_TOTALS] * len(order.submissions)

    @property
    def cached_prompt_tokens(self) -> int:
        """Prompt tokens that came from the worker's prefix cache; each prompt counts once."""
        # Choices of one prompt share its request id; later ones find it cached by the first.
        first: dict[str, int] = {}
        for submission, cached in zip(self._order.submissions, self._cached, strict=True):
            first.setdefault(submission.request_id, cached)
        return sum(first.values())

    @property
    def outcome(self) -> Outcome:
        """How the request as a whole ended: `length` if any choice was cut."""
        return "length" if any(e.reason == "length" for e in self._endings.values()) else "stop"

    async def rounds(self) -> AsyncIterator[list[Delta]]:
        """Deltas as they come, at most one per choice each time, until every choice has ended.

        What a choice brought before it failed is still delivered.

        Raises:
            GenerationFailed: a choice failed, or the time is up.
        """
        while True:
            yield [
                self._apply(place, update)
                for place, update in self._news.items()
                if place not in self._endings
            ]
            if self._failure is not None:
                raise GenerationFailed(self._failure)
            if len(self._endings) == len(self._assemblers):
                return
            self._news = await self._relay.next()

    def _apply(self, place: int, update: Update) -> Delta:
        assembler = self._assemblers[place]
        piece = assembler.push(update.token_ids) if update.token_ids else _NOTHING
        kept = len(piece.token_ids)
        self._record.delivered(place, kept)
        self._record.reasoning_tokens += piece.reasoning_tokens
        rounds = cut_rounds(update.rounds, kept) if update.rounds else ()
        # A round that brought the end alone has judged drafts, too.
        judged = update.rounds if kept == len(update.token_ids) else rounds
        self._record.steps.extend(one for one in judged if one.verified_tokens)
        if update.totals is not None:
            self._count_prediction(place, update.totals, kept)
        self._cached[place] = max(self._cached[place], update.cached_prompt_tokens)
        logprobs = update.logprobs[:kept]
        end = _end(piece, update, self._order.submissions[place].sampling.stop_token_ids)
        if isinstance(end, Failure):
            self._failure = self._failure or end
            return Delta(place, piece.parts, piece.token_ids, None, logprobs, rounds)
        parts = piece.parts
        if piece.end is not None:
            self._relay.finish(place)
        elif end is not None:
            parts = joined((*parts, *assembler.finish()))
        if end is not None:
            if end.reason == "stop" and assembler.calls:
                end = replace(end, reason="tool_calls")
            self._endings[place] = end
        return Delta(place, parts, piece.token_ids, end, logprobs, rounds)

    def _count_prediction(self, place: int, totals: Totals, kept: int) -> None:
        """What a delivery adds to the request's counts; what a stop string cut off was not used."""
        before, self._totals[place] = self._totals[place], totals
        accepted = totals.accepted_prediction_tokens - before.accepted_prediction_tokens
        rejected = totals.rejected_prediction_tokens - before.rejected_prediction_tokens
        used = min(accepted, kept)
        self._record.accepted_prediction_tokens += used
        self._record.rejected_prediction_tokens += rejected + accepted - used


@asynccontextmanager
async def generating(
    registry: Registry, order: Order, record: RequestRecord
) -> AsyncIterator[Generation]:
    """Send the request and wait for its first news; leaving drops what has not ended.

    Raises:
        NoWorker: none is ready.
        GenerationFailed: the request failed before its first token.
    """
    clock, deadline_s = record.clock, record.started_s + order.limit_s
    relay = Relay(registry, order.model, order.submissions, deadline_s, record)
    with closing(relay), _time_limit(relay, clock, deadline_s - clock.monotonic_s()):
        relay.start()
        record.sent(order.prompt_tokens)
        news = await relay.next()
        failure = _first_failure(news)
        if failure is not None:
            raise GenerationFailed(failure)
        yield Generation(order, relay, news, record)


@contextmanager
def _time_limit(relay: Relay, clock: Clock, left_s: float) -> Iterator[None]:
    """Fail what has not ended once the time is up."""

    async def expire() -> None:
        await clock.sleep(max(left_s, 0.0))
        relay.fail(Failure(FailureCode.DEADLINE, "the request's time is up"))

    timer = asyncio.create_task(expire())
    try:
        yield
    finally:
        timer.cancel()


def _first_failure(news: Mapping[int, Update]) -> Failure | None:
    """A failure among first news, if no choice has brought tokens."""
    if any(update.token_ids for update in news.values()):
        return None
    return next((u.end for u in news.values() if isinstance(u.end, Failure)), None)


def _end(piece: Piece, update: Update, own_stops: Sequence[int]) -> Ending | Failure | None:
    """How the choice ended: what the text says comes before what the worker says.

    The model's own end-of-sequence token is no stop reason; the request's stop tokens are.
    """
    if piece.end is None and update.end is None:
        return None
    if piece.end is not None:
        return Ending("length" if piece.end.kind is EndKind.LENGTH else "stop", piece.end.stop)
    match update.end:
        case Finish(kind=FinishKind.STOP_TOKEN, stop_token_id=token_id):
            return Ending("stop", token_id if token_id in own_stops else None)
        case Finish(kind=FinishKind.LENGTH):
            return Ending("length")
        case Failure() as failure:
            return failure
        case _:
            return None
