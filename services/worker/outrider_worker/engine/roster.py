"""The way of a request through the engine: taken in, seated, given tokens, ended.

Knows: who is told what, and all that must be let go of when a request leaves. Does not know:
rounds, plans, the device's results.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from outrider_worker.engine.commit import Commit, end_ids
from outrider_worker.engine.constraint import ConstraintFailed, ConstraintViolated
from outrider_worker.engine.drafting import Drafting
from outrider_worker.engine.inbox import Cancel, Command, DropOwner, EndAll, Submit
from outrider_worker.engine.pages import PageAccount
from outrider_worker.engine.scheduler import Scheduler
from outrider_worker.engine.turn import Turn
from outrider_worker.engine.types import (
    NO_DRAFT,
    Draft,
    Failure,
    FailureCode,
    Finish,
    FinishReason,
    Request,
    RequestRefused,
    TokenLogprobs,
    TokenNews,
)
from outrider_worker.runner import Runner


@dataclass(frozen=True)
class RosterParts:
    """What the roster works with."""

    scheduler: Scheduler
    pages: PageAccount
    runner: Runner
    drafting: Drafting
    eos_token_ids: frozenset[int]


class Roster:
    """All live requests and the news of the step at hand."""

    def __init__(self, parts: RosterParts) -> None:
        self._scheduler = parts.scheduler
        self._pages = parts.pages
        self._runner = parts.runner
        self._drafting = parts.drafting
        self._eos_token_ids = parts.eos_token_ids
        self._news: list[TokenNews] = []

    def take_news(self) -> list[TokenNews]:
        """What there is to tell since the last call."""
        news, self._news = self._news, []
        return news

    def take_in(self, commands: Sequence[Command], turn: Turn) -> None:
        """Apply what came in from outside, then end what has run out of time."""
        scheduler = self._scheduler
        for command in commands:
            match command:
                case Submit():
                    self._submit(command, turn)
                case Cancel(owner, request_id, choice):
                    for key in scheduler.keys_of(owner, request_id):
                        if choice in (None, key.choice_index):
                            self.end(scheduler.get(key), Finish(FinishReason.CANCELLED), turn)
                case DropOwner(owner):
                    for key in scheduler.keys_of(owner):
                        self._forget(scheduler.get(key), turn)
                case EndAll(message):
                    for request in scheduler.everyone():
                        self.end(request, Failure(FailureCode.UNAVAILABLE, message), turn)
        for request in scheduler.overdue(turn.started_s):
            self.end(request, Failure(FailureCode.DEADLINE, "the deadline has passed"), turn)

    def admit(self) -> None:
        """Let requests from the line sit down while there are seats and room."""
        upkeep = self._drafting.upkeep
        for request in self._scheduler.admit(upkeep.pool_of):
            ends = end_ids(request, self._eos_token_ids)
            self._runner.seat(request, ends, upkeep.begin(request))

    def step_back(self, request: Request, draft: Draft, turn: Turn) -> None:
        """A request was preempted: the drafts it had were made for nothing."""
        turn.note_draft(request, draft, verified=0, accepted=0)
        self._drafting.forget(request)

    def give(
        self,
        request: Request,
        commit: Commit,
        turn: Turn,
        logprobs: Sequence[TokenLogprobs] = (),
        verified: int = 0,
        relaxed: int = 0,
    ) -> None:
        """Append what a step brought a request, tell it, and end it if that was the end.

        verified: drafts of the request that the step judged; relaxed: of the accepted ones, those
            that held by relaxation.
        """
        first = request.emitted_here == 0
        token_ids = commit.token_ids
        request.token_ids.extend(token_ids)
        request.committed = len(request.token_ids) - 1
        self._pages.publish(request, self._drafting.upkeep.pools(request))
        finish: Finish | Failure | None = commit.finish
        if finish is None:
            finish = self._follow_grammar(request, token_ids)
        news = TokenNews(
            request.spec.key,
            token_ids,
            commit.accepted_tokens,
            request.drafter,
            logprobs=_asked_logprobs(request, logprobs[: len(token_ids)]),
            cached_prompt_tokens=_cached_prompt_tokens(request) if first else 0,
            totals=request.totals.copy() if request.spec.prediction_ids else None,
            verified_tokens=verified,
            relaxed_tokens=relaxed,
        )
        if finish is not None:
            self.end(request, finish, turn, news)
        elif token_ids:
            self._news.append(news)

    def end(
        self, request: Request, end: Finish | Failure, turn: Turn, last: TokenNews | None = None
    ) -> None:
        """A request's last news, after which nothing of it is left."""
        self._forget(request, turn)
        last = last or TokenNews(request.spec.key, (), drafter=request.drafter)
        totals, emitted_tokens = request.totals, request.emitted_here
        self._news.append(replace(last, end=end, totals=totals, emitted_tokens=emitted_tokens))

    def _submit(self, command: Submit, turn: Turn) -> None:
        """Take a request in, or tell it why not.

        An id that is in use has one owner of its news: both end, for they cannot be told apart.
        """
        scheduler, spec = self._scheduler, command.spec
        try:
            request = scheduler.submit(spec)
        except RequestRefused as refused:
            if scheduler.has(spec.key):
                self.end(scheduler.get(spec.key), refused.failure, turn)
            else:
                self._news.append(TokenNews(spec.key, (), end=refused.failure))
        else:
            request.constraint = command.constraint
            request.drafter = self._drafting.drafters.choose(spec)

    def _forget(self, request: Request, turn: Turn) -> None:
        """Free all it owns. Drafts it had at hand were made for nothing, and are counted."""
        turn.note_draft(request, request.draft, verified=0, accepted=0)
        request.draft = NO_DRAFT
        self._scheduler.remove(request)
        self._drafting.forget(request)

    @staticmethod
    def _follow_grammar(request: Request, token_ids: Sequence[int]) -> Failure | None:
        if request.constraint is None:
            return None
        try:
            request.constraint.advance(token_ids)
        except (ConstraintFailed, ConstraintViolated) as failure:
            # Violated though every row was masked: the grammar's mask and its rules disagree, which
            # must cost nobody else anything.
            return Failure(FailureCode.INVALID, str(failure), "grammar")
        return None


def _cached_prompt_tokens(request: Request) -> int:
    """What the cache gave may reach into tokens that another worker has emitted."""
    return min(request.cached_tokens, len(request.spec.prompt_ids))


def _asked_logprobs(
    request: Request, logprobs: Sequence[TokenLogprobs]
) -> tuple[TokenLogprobs, ...]:
    """As many alternatives as this request wants: others of its batch may have wanted more."""
    top = request.spec.sampling.top_logprobs
    if top is None:
        return ()
    return tuple(
        TokenLogprobs(each.logprob, each.top_ids[:top], each.top_logprobs[:top])
        for each in logprobs
    )
