"""Processes that share a Redis: the decision log in its stream, settings, and a stored table."""

import asyncio
from collections.abc import Iterator

import pytest

from outrider_cli.replay import replay
from outrider_planner.core.settings import DeploymentSettings
from tests.integration.planner.streams import (
    make_hello,
    make_reports,
    running_planner,
    worker_stream,
)
from tests.support.redis_server import RedisServer

pytestmark = pytest.mark.redis


@pytest.fixture(scope="module")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    server = RedisServer(tmp_path_factory.mktemp("redis"))
    server.start()
    yield server
    server.stop()


async def test_a_stream_replays_and_the_next_planner_starts_from_it_all(
    redis_server: RedisServer,
) -> None:
    shared = {"store": "redis", "redis_url": redis_server.url}
    async with running_planner(**shared) as first, worker_stream(first) as stream:
        await stream.say(hello=make_hello())
        await stream.next("plan")
        for sequence in range(1, 6):
            await stream.say(reports=make_reports(sequence, accepted=8 if sequence < 4 else 0))
            await asyncio.sleep(0.05)
        kept = first.service.put_settings("demo", DeploymentSettings(policy="static:2"))
        while (await stream.next("plan")).plan.policy != "static:2":
            pass
        writer = first.service.incarnation
        version = first.service.planner.workers["worker-1"].version
    found = await asyncio.to_thread(replay, redis_server.url, ["off"], writer, None, 4)
    assert found["agreement"] == {
        "same": version,
        "different": 0,
        "first_difference": "",
        "lost": 0,
        "taken_up": 0,
    }
    assert {line.policy for line in found["summary"]} == {"as logged", "off"}
    async with running_planner(**shared) as second, worker_stream(second) as stream:
        newcomer = make_hello()
        newcomer.worker_incarnation = "worker-2"
        newcomer.ClearField("cost_table")
        await stream.say(hello=newcomer)
        plan = (await stream.next("plan")).plan
        while plan.policy != "static:2":
            plan = (await stream.next("plan")).plan
        assert second.service.planner.settings.of("demo").settings == kept
        worker = second.service.planner.workers["worker-2"]
        async with asyncio.timeout(5.0):
            while not worker.stored_table:
                await asyncio.sleep(0.01)
