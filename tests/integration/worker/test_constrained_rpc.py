"""Requests with a grammar on their way into the engine, behind real gRPC: order, ends, refusals."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from outrider.worker.v1 import worker_pb2 as wire
from outrider_runtime.rpc import start_server
from outrider_worker.constrain import CompileLimits, GrammarCompiler
from outrider_worker.engine.inbox import Cancel, Command, DropOwner, Inbox, Submit
from outrider_worker.engine.types import Grammar
from outrider_worker.rpc.service import SERVICE_NAME, WorkerRpc
from tests.support.workers import TOKEN, Router, attached
from tests.unit.worker.grammars import NESTED, SAMPLE, ids, row_by_row, schema, tiny

PROMPT = [70, 71, 72]
JSON = {"kind": wire.GRAMMAR_KIND_JSON_SCHEMA, "text": schema(NESTED).text}
HELD = {"kind": wire.GRAMMAR_KIND_REGEX, "text": "held"}


class HeldCompiler(GrammarCompiler):
    """Compiles the grammar "held" only when it is let go."""

    def __init__(self) -> None:
        super().__init__(tiny())
        self.go = asyncio.Event()
        self.held = 0

    async def compile(self, grammar: Grammar, resumed_ids: Sequence[int] = ()) -> Any:
        if grammar.text == HELD["text"]:
            self.held += 1
            try:
                await self.go.wait()
            finally:
                self.held -= 1
        if grammar.text == "broken":
            raise ZeroDivisionError
        return await super().compile(grammar, resumed_ids)


class Desk:
    """A servicer whose engine only takes in: what got there can be looked at."""

    def __init__(self, grammars: GrammarCompiler | None) -> None:
        self.inbox = Inbox()
        self.reason = ""
        replica = SimpleNamespace(
            incarnation="x",
            folder=Path("no-such-folder"),
            config=SimpleNamespace(vocab_size=259),
            drafters=(),
            not_ready_reason=lambda: self.reason,
            drafter_index=lambda name: 0,
        )
        engine = SimpleNamespace(inbox=self.inbox, rounds=0)
        self.rpc = WorkerRpc(cast(Any, replica), cast(Any, engine), grammars)
        self.commands = list[Command]()

    async def entered(self, count: int) -> list[Command]:
        """Everything that has entered, as soon as it is so much."""
        async with asyncio.timeout(5):
            while len(self.commands) < count:
                self.commands += self.inbox.drain()
                await asyncio.sleep(0.005)
        return self.commands

    async def submitted(self, count: int) -> list[Submit]:
        return [each for each in await self.entered(count) if isinstance(each, Submit)]


@asynccontextmanager
async def desk_and_router(grammars: GrammarCompiler | None) -> AsyncIterator[tuple[Desk, Router]]:
    desk = Desk(grammars)
    server = await start_server("127.0.0.1", 0, TOKEN, desk.rpc.register, [SERVICE_NAME])
    try:
        async with attached(server.port) as router:
            yield desk, router
    finally:
        await server.stop(grace_s=0.0)
        if grammars is not None:
            grammars.close()


@pytest.fixture
async def grammars() -> HeldCompiler:
    return HeldCompiler()


async def until(compiler: HeldCompiler, held: int) -> None:
    async with asyncio.timeout(5):
        while compiler.held != held:
            await asyncio.sleep(0.005)


async def test_a_request_enters_with_a_constraint_that_stands_behind_its_resumed_ids(
    grammars: HeldCompiler,
) -> None:
    """C08: a stream that another worker began goes on in the middle of its JSON."""
    text_ids = ids(SAMPLE)
    rows = row_by_row(schema(NESTED), text_ids)
    async with desk_and_router(grammars) as (desk, router):
        await router.submit("new", PROMPT, grammar=JSON)
        await router.submit("resumed", PROMPT, 99, grammar=JSON, resumed_ids=text_ids[:20])
        by_name = {s.spec.key.request_id: s for s in await desk.submitted(2)}
    for name, start in (("new", 0), ("resumed", 20)):
        constraint = by_name[name].constraint
        assert constraint is not None
        assert (constraint.masks(text_ids[start:]) == rows[start:]).all()


async def test_requests_without_a_grammar_pass_by(grammars: HeldCompiler) -> None:
    async with desk_and_router(grammars) as (desk, router):
        await router.submit("held", PROMPT, grammar=HELD)
        await until(grammars, held=1)
        await router.submit("plain", PROMPT)
        await router.submit("json", PROMPT, grammar=JSON)
        first_two = {s.spec.key.request_id for s in await desk.submitted(2)}
        assert first_two == {"plain", "json"}
        grammars.go.set()
        assert (await desk.submitted(3))[2].spec.key.request_id == "held"


async def test_a_cancel_drops_what_is_being_compiled(grammars: HeldCompiler) -> None:
    async with desk_and_router(grammars) as (desk, router):
        for choice in (0, 1):
            await router.submit("both", PROMPT, grammar=HELD, choice_index=choice)
        await router.submit("other", PROMPT, grammar=HELD)
        await until(grammars, held=3)
        await router.cancel("other")
        end = await router.end("other")
        assert end.finish.reason == wire.FINISH_REASON_CANCELLED
        await until(grammars, held=2)
        grammars.go.set()
        cancel, *rest = await desk.entered(3)
        assert isinstance(cancel, Cancel)
        keys = [each.spec.key for each in rest if isinstance(each, Submit)]
        assert sorted((key.request_id, key.choice_index) for key in keys) == [
            ("both", 0),
            ("both", 1),
        ]


async def test_a_stream_that_ends_takes_its_compilations_with_it(grammars: HeldCompiler) -> None:
    async with desk_and_router(grammars) as (desk, router):
        await router.submit("held", PROMPT, grammar=HELD)
        await until(grammars, held=1)
        await router.detach()
        await until(grammars, held=0)
        grammars.go.set()
        (command,) = await desk.entered(1)
        assert isinstance(command, DropOwner)


async def test_an_id_that_is_being_compiled_is_in_use(grammars: HeldCompiler) -> None:
    async with desk_and_router(grammars) as (desk, router):
        await router.submit("same", PROMPT, grammar=HELD)
        await until(grammars, held=1)
        await router.submit("same", PROMPT)
        failure = (await router.end("same")).failure
        assert (failure.code, failure.param) == (wire.FAILURE_CODE_INVALID, "request_id")
        grammars.go.set()
        await router.submit("next", PROMPT)
        (submit,) = await desk.submitted(1)
        assert submit.spec.key.request_id == "next"


@pytest.mark.parametrize(
    ("fields", "code", "param", "words"),
    [
        ({"grammar": {**JSON, "text": "{"}}, "INVALID", "grammar", "invalid json schema"),
        ({"grammar": {**JSON, "text": '{"type": 7}'}}, "INVALID", "grammar", "json schema"),
        ({"grammar": {**HELD, "text": "(a"}}, "INVALID", "grammar", "unclosed group"),
        ({"grammar": {**HELD, "text": "a" * 200_000}}, "INVALID", "grammar", "longer than"),
        ({"grammar": JSON, "resumed_ids": [90]}, "INVALID", "grammar", "resumed ids"),
        ({"grammar": {**HELD, "text": "broken"}}, "INTERNAL", "grammar", "failed"),
    ],
)
async def test_what_does_not_compile_is_told_and_hurts_nobody(
    grammars: HeldCompiler, fields: dict[str, Any], code: str, param: str, words: str
) -> None:
    """C09: an error that names the field, and the next request is served."""
    async with desk_and_router(grammars) as (desk, router):
        await router.submit("bad", PROMPT, **fields)
        failure = (await router.end("bad")).failure
        assert wire.FailureCode.Name(failure.code) == f"FAILURE_CODE_{code}"
        assert failure.param == param
        assert words in failure.message
        await router.submit("good", PROMPT, grammar=JSON)
        assert (await desk.submitted(1))[0].constraint is not None


async def test_without_a_compiler_a_grammar_is_not_supported() -> None:
    async with desk_and_router(None) as (desk, router):
        await router.submit("json", PROMPT, grammar=JSON)
        failure = (await router.end("json")).failure
        assert (failure.code, failure.param) == (wire.FAILURE_CODE_UNSUPPORTED, "grammar")
        await router.submit("plain", PROMPT)
        assert (await desk.submitted(1))[0].constraint is None


async def test_who_is_not_in_by_the_time_of_the_drain_is_sent_elsewhere(
    grammars: HeldCompiler,
) -> None:
    async with desk_and_router(grammars) as (desk, router):
        await router.submit("held", PROMPT, grammar=HELD)
        await until(grammars, held=1)
        desk.reason = "draining"
        grammars.go.set()
        failure = (await router.end("held")).failure
        assert (failure.code, failure.message) == (wire.FAILURE_CODE_UNAVAILABLE, "draining")
        assert desk.inbox.empty


async def test_a_grammar_that_takes_too_long_is_refused_in_time() -> None:
    hasty = GrammarCompiler(tiny(), CompileLimits(wait_s=0.001))
    slow = schema({"properties": {f"p{number}": {} for number in range(1_500)}})
    async with desk_and_router(hasty) as (desk, router):
        await router.submit("slow", PROMPT, grammar={**JSON, "text": slow.text})
        failure = (await router.end("slow", limit_s=5.0)).failure
        assert (failure.code, failure.param) == (wire.FAILURE_CODE_INVALID, "grammar")
        assert "did not compile" in failure.message
        assert desk.inbox.empty


async def test_what_comes_and_goes_while_a_round_lasts_leaves_nothing_in_the_engine() -> None:
    async with desk_and_router(None) as (desk, router):
        await router.submit("kept", PROMPT)
        for number in range(50):
            await router.submit(f"gone{number}", PROMPT)
            await router.cancel(f"gone{number}", choice_index=0)
        for number in range(50):
            end = await router.end(f"gone{number}")
            assert end.finish.reason == wire.FINISH_REASON_CANCELLED
        [left] = desk.inbox.drain()
        assert isinstance(left, Submit)
        assert left.spec.key.request_id == "kept"
        await router.cancel("kept", choice_index=0)
        [cancel] = await desk.entered(1)
        assert cancel == Cancel(left.spec.key.owner, "kept", 0), "the engine has it already"
