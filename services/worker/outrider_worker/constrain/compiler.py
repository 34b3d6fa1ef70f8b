"""Compiles grammars beside the engine: a few threads, one compilation per grammar, bounded.

Everything here is called on the event loop; only the library's work runs on the pool.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from llguidance import LLParserLimits

from outrider_worker.constrain.matching import CompiledGrammar, GrammarConstraint
from outrider_worker.constrain.source import GrammarRefused, compile_grammar, parser_limits
from outrider_worker.constrain.vocabulary import Vocabulary
from outrider_worker.engine.constraint import ConstraintFailed, ConstraintViolated
from outrider_worker.engine.types import FailureCode, Grammar


@dataclass(frozen=True)
class CompileLimits:
    """text_bytes: length of a grammar. wait_s: from asking to having it.

    waiting: requests that wait for a grammar at once. cached: grammars kept, the bad ones with
    their complaint. threads: compilations at once; more would take cores from the engine.
    """

    text_bytes: int = 64 * 1024
    wait_s: float = 5.0
    waiting: int = 256
    cached: int = 128
    threads: int = 2


class GrammarCompiler:
    """Gives each request a constraint of its own; equal grammars are compiled once."""

    def __init__(
        self,
        vocabulary: Vocabulary,
        limits: CompileLimits | None = None,
        parsing: LLParserLimits | None = None,
    ) -> None:
        self._vocabulary = vocabulary
        self._limits = limits or CompileLimits()
        self._parsing = parsing or parser_limits()
        self._pool = ThreadPoolExecutor(self._limits.threads, thread_name_prefix="grammar")
        self._compiled: OrderedDict[Grammar, asyncio.Future[CompiledGrammar]] = OrderedDict()
        self._waiting = 0

    async def compile(self, grammar: Grammar, resumed_ids: Sequence[int] = ()) -> GrammarConstraint:
        """A constraint that stands behind `resumed_ids`, which another worker has delivered.

        Raises:
            GrammarRefused: invalid, too long, not ready in time, broken by the resumed ids, or
                too many requests wait for theirs (OVERLOADED).
        """
        limits = self._limits
        if len(grammar.text.encode()) > limits.text_bytes:
            raise GrammarRefused(f"the grammar is longer than {limits.text_bytes} bytes")
        if self._waiting >= limits.waiting:
            raise GrammarRefused("too many grammars are being compiled", FailureCode.OVERLOADED)
        self._waiting += 1
        try:
            async with asyncio.timeout(limits.wait_s):
                return await self._begin(grammar, resumed_ids)
        except TimeoutError as error:
            raise GrammarRefused(f"the grammar did not compile in {limits.wait_s:g} s") from error
        finally:
            self._waiting -= 1

    def close(self) -> None:
        """Take no more; what is being compiled is not waited for."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    async def _begin(self, grammar: Grammar, resumed_ids: Sequence[int]) -> GrammarConstraint:
        # Shielded: others may wait for the same grammar, and the next one will want it.
        compiled = await asyncio.shield(self._shared(grammar))
        constraint = compiled.begin()
        if resumed_ids:
            await self._replay(constraint, resumed_ids)
        return constraint

    async def _replay(self, constraint: GrammarConstraint, resumed_ids: Sequence[int]) -> None:
        loop = asyncio.get_running_loop()
        try:
            await loop.run_in_executor(self._pool, constraint.advance, resumed_ids)
        except (ConstraintViolated, ConstraintFailed) as error:
            raise GrammarRefused(f"the resumed ids break the grammar: {error}") from error

    def _shared(self, grammar: Grammar) -> "asyncio.Future[CompiledGrammar]":
        """The one compilation of this grammar, under way or done; the longest unused one goes."""
        future = self._compiled.get(grammar)
        if future is None:
            future = asyncio.get_running_loop().run_in_executor(
                self._pool, compile_grammar, grammar, self._vocabulary, self._parsing
            )
            future.add_done_callback(_note_failure)
            self._compiled[grammar] = future
        self._compiled.move_to_end(grammar)
        if len(self._compiled) > self._limits.cached:
            self._compiled.popitem(last=False)
        return future


def _note_failure(future: "asyncio.Future[CompiledGrammar]") -> None:
    """A failure that nobody waits for any more is no fault of the event loop's."""
    if not future.cancelled():
        future.exception()
