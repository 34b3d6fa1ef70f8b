"""One router's way into the engine: what it submits is checked, compiled, and handed on in order.

A request with a grammar waits here until the grammar is compiled; whatever ends it meanwhile
(a cancel, the stream's end, a second request of its name) ends it here. The others pass by.
"""

import asyncio
import time
from collections.abc import Callable

from outrider.worker.v1 import worker_pb2 as wire
from outrider_runtime.logs import get_logger
from outrider_worker.constrain import GrammarCompiler
from outrider_worker.engine.inbox import Cancel, DropOwner, Inbox, Submit
from outrider_worker.engine.types import (
    Failure,
    FailureCode,
    Finish,
    FinishReason,
    Grammar,
    RequestKey,
    RequestRefused,
    RequestSpec,
    TokenNews,
)
from outrider_worker.replica import Replica
from outrider_worker.rpc.convert import request_key, spec_from_wire

_log = get_logger(__name__)


class Entrance:
    """Made for one Attach stream; used on the event loop alone."""

    def __init__(
        self,
        owner: str,
        replica: Replica,
        inbox: Inbox,
        grammars: GrammarCompiler | None,
        answer: Callable[[TokenNews], None],
        trace: Callable[[RequestKey, str, int], None] = lambda *_: None,
    ) -> None:
        """answer: tells the router what became of a request that never got to the engine.
        trace: is told of each request with its trace context and its prompt's tokens."""
        self._owner = owner
        self._replica = replica
        self._inbox = inbox
        self._grammars = grammars
        self._answer = answer
        self._trace = trace
        self._compiling: dict[RequestKey, asyncio.Task[None]] = {}

    def submit(self, message: wire.Submit) -> None:
        """Check at the edge, answer refusals at once, pass on the rest."""
        key = request_key(self._owner, message)
        if key in self._compiling:
            # As in the engine: two requests of one name cannot be told apart, so both end.
            self._drop(key)
            failure = Failure(FailureCode.INVALID, "this id is already in use", "request_id")
            self._end(key, failure)
            return
        self._trace(key, message.traceparent, len(message.prompt_ids))
        try:
            self._pass_on(self._spec(message))
        except RequestRefused as refused:
            self._end(key, refused.failure)

    def cancel(self, message: wire.Cancel) -> None:
        """End one choice, or all choices of a request, wherever they are."""
        choice = message.choice_index if message.HasField("choice_index") else None

        def is_meant(key: RequestKey) -> bool:
            named = (key.owner, key.request_id) == (self._owner, message.request_id)
            return named and choice in (None, key.choice_index)

        outside = self._take_back(is_meant)
        for key in outside:
            self._end(key, Finish(FinishReason.CANCELLED))
        if choice is None or not outside:
            self._inbox.put(Cancel(self._owner, message.request_id, choice))

    def close(self) -> None:
        """The stream is over: nobody wants its requests any more."""
        self._take_back(lambda key: key.owner == self._owner)
        self._inbox.put(DropOwner(self._owner))

    def _take_back(self, is_meant: Callable[[RequestKey], bool]) -> list[RequestKey]:
        """Drop those of the requests that the engine has not seen yet; their keys."""
        compiling = [key for key in self._compiling if is_meant(key)]
        for key in compiling:
            self._drop(key)
        return compiling + self._inbox.withdraw(is_meant)

    def _spec(self, message: wire.Submit) -> RequestSpec:
        self._check_ready()
        drafters = [traits.name for traits in self._replica.drafters]
        vocab_size = self._replica.config.vocab_size
        return spec_from_wire(self._owner, message, vocab_size, drafters, time.monotonic())

    def _check_ready(self) -> None:
        reason = self._replica.not_ready_reason()
        if reason:
            raise RequestRefused(Failure(FailureCode.UNAVAILABLE, reason))

    def _pass_on(self, spec: RequestSpec) -> None:
        _log.debug("request_submitted", request_id=spec.key.request_id)
        if spec.grammar is None:
            self._inbox.put(Submit(spec))
            return
        if self._grammars is None:
            text = "this model cannot be held to a grammar"
            raise RequestRefused(Failure(FailureCode.UNSUPPORTED, text, "grammar"))
        entering = self._enter(spec, spec.grammar, self._grammars)
        self._compiling[spec.key] = asyncio.create_task(entering)

    async def _enter(self, spec: RequestSpec, grammar: Grammar, grammars: GrammarCompiler) -> None:
        """Enter the engine with the constraint, if the worker still takes requests by then."""
        try:
            constraint = await grammars.compile(grammar, spec.resumed_ids)
            self._check_ready()
        except RequestRefused as refused:
            self._end(spec.key, refused.failure)
        except Exception as error:
            _log.error("grammar_compilation_failed", exc_info=error)
            failure = Failure(FailureCode.INTERNAL, "compiling the grammar failed", "grammar")
            self._end(spec.key, failure)
        else:
            self._inbox.put(Submit(spec, constraint))
        self._compiling.pop(spec.key)

    def _drop(self, key: RequestKey) -> None:
        self._compiling.pop(key).cancel()

    def _end(self, key: RequestKey, end: Finish | Failure) -> None:
        self._answer(TokenNews(key, (), end=end))
