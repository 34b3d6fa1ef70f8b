"""Workers that die, freeze, drain, are full, are replaced or are broken."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

import openai
import pytest
import structlog

from outrider.worker.v1 import worker_pb2
from outrider_router.routing.discovery import Discovery
from outrider_router.text.template import Conversation
from tests.support import tiny_tokenizers as tiny
from tests.support.fake_worker import FakeWorker, Script, saying
from tests.support.router_stack import HurriedClock, RunningRouter, running_router, until

pytestmark = pytest.mark.asyncio(loop_scope="module")
GOOD: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}]}
CHAT = "/v1/chat/completions"
TEXT = "abcdefghijklmnopqrstuvwxyz"
FULL = Script([], failure=worker_pb2.FAILURE_CODE_OVERLOADED)


async def outcome(router: RunningRouter, name: str) -> float:
    return await router.metric("outrider_router_requests_total", outcome=name)


def troubles(router: RunningRouter) -> list[str | None]:
    """What keeps each worker from being used, in the order of the list."""
    return [worker.client.trouble for worker in router.state.registry.workers.values()]


def all_ready(router: RunningRouter) -> Callable[[], bool]:
    return lambda: not any(troubles(router))


async def read_text(stream: Any) -> str:
    return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])


async def stream_of(router: RunningRouter, **options: Any) -> Any:
    return await router.client.chat.completions.create(**GOOD, stream=True, **options)


async def test_worker_killed_before_the_first_token_is_retried_elsewhere() -> None:
    """F08 with another worker: the answer comes from it, in the time left; with none: 503."""
    async with (
        FakeWorker(script=saying(TEXT, 1, stall_after=0)) as first,
        FakeWorker(script=saying(TEXT, 3), running_requests=5) as second,
        running_router(first, second) as router,
    ):
        await until(all_ready(router), 5, "both ready")
        asking = asyncio.create_task(router.client.chat.completions.create(**GOOD))
        await until(lambda: first.active, 2, "the first has it")
        await asyncio.sleep(0.1)
        await first.die()
        answer = await asking
        assert answer.choices[0].message.content == TEXT
        (before,), (after,) = first.submitted, second.submitted
        assert before.seed == after.seed
        assert 0 < after.deadline_ms <= before.deadline_ms - 100
        assert await router.metric("outrider_router_retries_total") == 1
        await second.die()
        started_s = asyncio.get_running_loop().time()
        with pytest.raises(openai.InternalServerError) as caught:
            await router.client.chat.completions.create(**GOOD)
        assert caught.value.status_code == 503
        assert asyncio.get_running_loop().time() - started_s < 5
        assert router.settled()


async def test_worker_killed_in_the_middle_is_an_error_not_a_hang() -> None:
    """F09 with a single worker, streaming or not; the next life of it is found."""
    async with FakeWorker() as worker, running_router(worker, resume_wait_s=0.3) as router:
        for stream in (True, False):
            worker.script = saying(TEXT, 1, gap_s=0.005, die_after=10)
            started_s = asyncio.get_running_loop().time()
            if stream:
                with pytest.raises(openai.APIError, match="the worker was lost"):
                    await read_text(await stream_of(router))
            else:
                response = await router.http.post(CHAT, json=GOOD)
                assert (response.status_code, response.headers["x-should-retry"]) == (503, "false")
            assert asyncio.get_running_loop().time() - started_s < 2
            assert (await router.http.get("/ready")).status_code == 503
            assert router.settled()
            assert await router.metric("outrider_router_worker_up", worker=worker.address) == 0
            worker.script = saying(TEXT, 5)
            await worker.start()
            await router.until_ready()
            assert await read_text(await stream_of(router)) == TEXT
            assert await router.metric("outrider_router_worker_up", worker=worker.address) == 1
        assert await outcome(router, "unavailable") == 2


async def test_frozen_worker_is_noticed_by_its_silence() -> None:
    """F13: no sign of life for 5 s ends its requests and readiness; it comes back by itself."""
    script, clock = saying(TEXT, 1, stall_after=1), HurriedClock()
    async with FakeWorker(script=script) as worker, running_router(worker, clock=clock) as router:
        task = asyncio.create_task(router.http.post(CHAT, json=GOOD))
        await until(lambda: worker.active, 2, "the worker has the request")
        frozen_s, worker.frozen = clock.monotonic_s(), True
        response = await asyncio.wait_for(task, 8)
        assert clock.monotonic_s() - frozen_s > 4.0
        assert response.status_code == 503
        assert "the worker was lost" in response.text
        ready = await router.http.get("/ready")
        assert ready.status_code == 503
        assert "no sign of life" in ready.text
        worker.frozen = False
        await router.until_ready(5)


async def test_worker_that_warms_up_or_drains_gets_nothing() -> None:
    async with (
        FakeWorker(script=saying("one")) as first,
        FakeWorker(script=saying("two"), ready=False) as second,
        running_router(first, second, clock=HurriedClock()) as router,
    ):
        for _ in range(3):
            await router.client.chat.completions.create(**GOOD)
        assert (len(first.submitted), len(second.submitted)) == (3, 0)
        first.ready, second.ready = False, True
        await until(lambda: troubles(router)[0] is not None, 3, "the first is left alone")
        await until(lambda: troubles(router)[1] is None, 3, "the second is taken in")
        for _ in range(2):
            await router.client.chat.completions.create(**GOOD)
        assert (len(first.submitted), len(second.submitted)) == (3, 2)
        second.ready = False
        await until(lambda: router.state.trouble() is not None, 3, "not ready")
        assert "warming up" in (await router.http.get("/ready")).json()["reason"]
        response = await router.http.post(CHAT, json=GOOD)
        assert response.status_code == 503, "a known model without a ready worker"


async def test_full_worker_is_avoided_once() -> None:
    async with (
        FakeWorker(script=FULL) as first,
        FakeWorker(script=saying("two"), running_requests=9) as second,
        running_router(first, second) as router,
    ):
        await until(all_ready(router), 5, "both ready")
        answer = await router.client.chat.completions.create(**GOOD)
        assert answer.choices[0].message.content == "two"
        second.script = FULL
        assert (await router.http.post(CHAT, json=GOOD)).status_code == 429


async def test_load_is_spread_and_counted_until_the_end() -> None:
    """F12: descriptions that come meanwhile do not touch the router's own count."""
    script = saying(TEXT, 1, stall_after=1)
    async with (
        FakeWorker(script=script) as first,
        FakeWorker(script=script) as second,
        running_router(first, second, clock=HurriedClock(2)) as router,
    ):
        await until(all_ready(router), 5, "both ready")
        streams = await asyncio.gather(*(stream_of(router) for _ in range(6)))
        seen = first.descriptions
        await until(lambda: first.descriptions > seen + 1, 5, "described again")
        held = [w.in_flight for w in router.state.registry.workers.values()]
        assert held == [3, 3]
        first.resume.set()
        second.resume.set()
        texts = await asyncio.gather(*map(read_text, streams))
        assert texts == [TEXT] * 6
        await until(router.settled, 1, "settled")


async def test_prompts_go_only_to_workers_of_the_digest_that_tokenised_them() -> None:
    """A model that is being replaced: one name, two tokenizers, different options and limits."""
    other: dict[str, Any] = {
        "digest": "new",
        "tokenizer": tiny.sentencepiece_json(),
        "options": ("min_tokens",),
        "context_tokens": 300,
        "script": Script([[9]]),
    }
    async with (
        FakeWorker(script=saying("old"), digest="old") as old,
        FakeWorker(**other) as new,
        FakeWorker(**other, ready=False) as newer,
        running_router(old, new, newer, clock=HurriedClock()) as router,
    ):
        await until(lambda: troubles(router)[:2] == [None, None], 5, "old and new are ready")
        for _ in range(4):
            await router.client.chat.completions.create(**GOOD)
        assert (len(old.submitted), len(new.submitted)) == (4, 0)
        served = router.state.registry.model("tiny")
        assert (served.digest, served.options, served.context_tokens) == ("old", frozenset(), 512)
        old.script = FULL
        assert (await router.http.post(CHAT, json=GOOD)).status_code == 429, "no way to another"
        assert not new.submitted
        newer.ready = True
        await until(all_ready(router), 3, "most workers have the new model")
        served = router.state.registry.model("tiny")
        assert (served.digest, served.context_tokens) == ("new", 300)
        assert served.options == {"min_tokens"}
        for _ in range(4):
            await router.client.chat.completions.create(**GOOD)
        assert (len(new.submitted), len(newer.submitted)) == (2, 2)
        ids = served.text.encode_chat(Conversation(GOOD["messages"])).ids
        assert all(list(s.prompt_ids) == ids for s in new.submitted + newer.submitted)
        assert list(old.submitted[0].prompt_ids) != ids


async def test_files_that_were_replaced_are_forgotten() -> None:
    async with (
        FakeWorker(script=saying("ok"), digest="0") as worker,
        running_router(worker, clock=HurriedClock(20)) as router,
    ):
        registry = router.state.registry
        for number in range(1, 6):
            worker.digest = str(number)
            await until(lambda n=number: registry.model("tiny").digest == str(n), 5, "replaced")
            assert (await router.http.post(CHAT, json=GOOD)).status_code == 200
        assert len(registry._texts) <= 2


async def test_token_is_carried_and_its_lack_shows() -> None:
    async with FakeWorker(script=saying("ok"), token="s3cret") as worker:
        async with running_router(worker, token="s3cret") as router:
            assert (await router.http.post(CHAT, json=GOOD)).status_code == 200
        async with running_router(worker, token="wrong", ready=False) as router:
            await until(lambda: "UNAUTHENTICATED" in str(router.state.trouble()), 5, "refused")
            assert (await router.http.get("/ready")).status_code == 503


def tokenizer_with_decoder(**decoder: Any) -> bytes:
    return json.dumps(json.loads(tiny.byte_level_json()) | {"decoder": decoder}).encode()


async def test_broken_tokenizer_is_logged_once_for_each_reason() -> None:
    """F07: the worker is asked again every few seconds, which may not fill the log."""
    broken = tokenizer_with_decoder(type="WordPiece", prefix="##", cleanup=True)
    with structlog.testing.capture_logs() as lines:
        async with (
            FakeWorker(tokenizer=broken) as worker,
            running_router(worker, ready=False, clock=HurriedClock(20)) as router,
        ):
            await until(lambda: worker.descriptions >= 5, 5, "asked again and again")
            assert "WordPiece" in str(router.state.trouble())
            assert traces(lines) == 1
            worker.tokenizer = tokenizer_with_decoder(
                type="CTC", pad_token="<pad>", word_delimiter_token="|", cleanup=True
            )
            seen = worker.descriptions
            await until(lambda: worker.descriptions >= seen + 4, 5, "asked again and again")
            assert traces(lines) == 2
            worker.tokenizer = tiny.byte_level_json()
            await router.until_ready(5)


def traces(lines: Any) -> int:
    return sum(line["event"] == "worker_link_failed" for line in lines)


async def test_workers_come_and_go_with_the_addresses_of_a_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A headless service: who is new is used, who has left finishes what it has."""
    found: set[str] = set()

    async def resolve(_name: str, _port: int) -> set[str]:
        return set(found)

    monkeypatch.setattr(Discovery.__init__, "__defaults__", (0.1, resolve))
    async with (
        FakeWorker(script=saying(TEXT, 1, stall_after=2)) as first,
        FakeWorker(script=saying("second")) as second,
        running_router("dns:workers:7080", ready=False) as router,
    ):
        assert "no workers" in str(router.state.trouble())
        found.add(first.address)
        await router.until_ready(10)
        running = asyncio.create_task(router.client.chat.completions.create(**GOOD))
        await until(lambda: first.active, 3, "the first has it")
        found.clear()
        found.add(second.address)
        workers = router.state.registry._fleet.workers
        await until(
            lambda: second.address in workers and not workers[second.address].trouble, 5, ""
        )
        assert workers[first.address].leaving
        answer = await router.client.chat.completions.create(**GOOD)
        assert answer.choices[0].message.content == "second"
        first.resume.set()
        assert (await running).choices[0].message.content == TEXT
        await until(lambda: first.address not in workers, 5, "let go")
        assert await router.metric("outrider_router_worker_up", worker=first.address) == 0
