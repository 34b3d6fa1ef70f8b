"""Several models behind one router, several routers in front of one worker, two ways to one."""

import asyncio
from typing import Any

import pytest

from tests.support import tiny_tokenizers as tiny
from tests.support.fake_worker import FakeWorker, Script, saying
from tests.support.router_stack import RunningRouter, running_router, until

pytestmark = pytest.mark.asyncio(loop_scope="module")
CHAT = "/v1/chat/completions"
TEXT = "abcdefghijklmnop"


def asking(model: str = "tiny") -> dict[str, Any]:
    return {"model": model, "messages": [{"role": "user", "content": "hi"}]}


async def status(router: RunningRouter, model: str) -> int:
    return int((await router.http.post(CHAT, json=asking(model))).status_code)


async def say(router: RunningRouter) -> str:
    answer = await router.client.chat.completions.create(**asking())
    return str(answer.choices[0].message.content)


async def test_each_model_has_its_own_text_side_and_its_own_workers() -> None:
    async with (
        FakeWorker(script=saying("one"), model="one", context_tokens=300) as first,
        FakeWorker(
            script=Script([[9]]), model="org/two", digest="2", tokenizer=tiny.sentencepiece_json()
        ) as second,
        running_router(first, second) as router,
    ):
        await until(lambda: len(router.state.registry.models()) == 2, 5, "both are known")
        listed = (await router.http.get("/v1/models")).json()["data"]
        assert [(one["id"], one["max_model_len"]) for one in listed] == [
            ("one", 300),
            ("org/two", 512),
        ]
        assert (await router.http.get("/v1/models/org/two")).json()["id"] == "org/two"
        for _ in range(3):
            assert [await status(router, model) for model in ("one", "org/two", "three")] == [
                200,
                200,
                404,
            ]
        assert (len(first.submitted), len(second.submitted)) == (3, 3)
        assert first.submitted[0].prompt_ids != second.submitted[0].prompt_ids
        await first.die()
        await until(lambda: len(router.state.registry.models()) == 1, 5, "one is away")
        assert [await status(router, model) for model in ("one", "org/two", "three")] == [
            503,
            200,
            404,
        ]
        assert (await router.http.get("/ready")).status_code == 200


async def test_routers_share_workers_and_know_nothing_of_each_other() -> None:
    """What one takes back is its own."""
    async with (
        FakeWorker(script=saying(TEXT, 1, stall_after=2)) as worker,
        running_router(worker) as left,
        running_router(worker) as right,
    ):
        tasks = [
            asyncio.create_task(router.http.post(CHAT, json=asking())) for router in (left, right)
        ]
        await until(lambda: len(worker.active) == 2, 3, "the worker has both")
        assert [w.in_flight for r in (left, right) for w in r.state.registry.workers.values()] == [
            1,
            1,
        ]
        tasks[0].cancel()
        await until(lambda: len(worker.cancelled) == 1, 3, "one is taken back")
        await until(left.settled, 3, "left")
        assert not right.settled()
        worker.resume.set()
        answer = (await tasks[1]).json()
        assert answer["choices"][0]["message"]["content"] == TEXT
        await until(lambda: right.settled() and not worker.active, 3, "right")


async def test_a_worker_with_two_addresses_is_one_worker() -> None:
    """As in a cluster with IPv4 and IPv6: a headless service has both addresses of each pod."""
    async with (
        FakeWorker(script=saying("twin", 1, stall_after=2)) as twin,
        FakeWorker(script=saying("other", 1, stall_after=2)) as other,
        running_router(twin, f"localhost:{twin.port}", other) as router,
    ):
        fleet = router.state.registry._fleet
        await until(lambda: not any(w.trouble for w in fleet.workers.values()), 5, "all connected")
        assert list(router.state.registry.workers) == [twin.address, other.address]
        text = (await router.http.get("/metrics")).text
        assert text.count("outrider_router_worker_up{") == 2
        answers = [asyncio.create_task(say(router)) for _ in range(6)]
        await until(lambda: len(twin.active) + len(other.active) == 6, 5, "all are there")
        assert len(twin.active) == len(other.active) == 3
        twin.resume.set()
        other.resume.set()
        assert sorted(await asyncio.gather(*answers)) == ["other"] * 3 + ["twin"] * 3


async def test_the_other_address_is_used_while_one_is_cut_off() -> None:
    async with (
        FakeWorker(script=saying("twin")) as twin,
        running_router(twin, f"localhost:{twin.port}") as router,
    ):
        fleet = router.state.registry._fleet
        first, second = fleet.workers.values()
        await until(lambda: not (first.trouble or second.trouble), 5, "both connected")
        assert first.task is not None
        first.task.cancel()
        await until(lambda: first.trouble, 5, "cut off")
        assert list(router.state.registry.workers) == [second.client.address]
        assert await say(router) == "twin"
