"""What an operator asks of the side port, and sets, as a client sees it."""

import asyncio
import http.client
import json
from typing import Any

import pytest

from outrider_cli.errors import CommandError
from outrider_cli.explain import explanation, render
from outrider_planner.http_routes import ELSEWHERE
from tests.integration.planner.streams import (
    TOKEN,
    WorkerStream,
    make_hello,
    make_reports,
    running_planner,
    worker_stream,
)
from tests.support.net import LOOPBACK

JSON = {"Content-Type": "application/json"}
BEARER = {**JSON, "Authorization": f"Bearer {TOKEN}"}


def _call(
    port: int, method: str, path: str, body: bytes | None, headers: dict[str, str]
) -> tuple[int, Any]:
    connection = http.client.HTTPConnection(LOOPBACK, port, timeout=10)
    try:
        connection.request(method, path, body, headers)
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())
    finally:
        connection.close()


async def call(
    port: int,
    method: str,
    path: str,
    body: Any = None,
    headers: dict[str, str] = BEARER,
) -> tuple[int, Any]:
    data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
    return await asyncio.to_thread(_call, port, method, path, data, headers)


async def planned(stream: WorkerStream) -> None:
    await stream.say(hello=make_hello())
    await stream.next("plan")
    await stream.say(reports=make_reports(1, accepted=6))


async def test_settings_reach_the_worker_as_a_plan_change() -> None:
    async with running_planner() as process, worker_stream(process) as stream:
        await planned(stream)
        port, path = process.http.port, "/v1/deployments/demo/settings"
        status, before = await call(port, "GET", path)
        assert (status, before["policy"], before["version"]) == (200, "two_stage", 0)
        wish = {"policy": "static:2", "version": 0, "guard": {"minimum_threshold_tokens": 12}}
        status, kept = await call(port, "PUT", path, wish)
        assert (status, kept["policy"], kept["version"]) == (200, "static:2", 1)
        plan = (await stream.next("plan")).plan
        while plan.policy != "static:2":
            plan = (await stream.next("plan")).plan
        assert set(plan.drafters[0].draft_tokens) == {2}
        assert plan.guard.minimum_threshold_tokens == 12
        assert await call(port, "GET", path) == (200, kept)
        assert await call(port, "PUT", path, kept) == (200, {**kept, "version": 2})
        status, refused = await call(port, "PUT", path, wish)
        assert status == 409
        assert "version 2, not 0" in refused["error"]["message"]


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        ({"policy": "fastest"}, 400, "known are two_stage"),
        ({"polcy": "off"}, 400, "polcy"),
        ({"objective": "latency"}, 400, "latency_bound_s"),
        ({"shadows": ["off"] * 9}, 400, "shadows"),
        (b"{", 400, "JSON"),
        (b"[" * 2_000_000, 413, "larger than"),
    ],
)
async def test_settings_that_cannot_work_are_refused(body: Any, status: int, words: str) -> None:
    async with running_planner() as process, worker_stream(process) as stream:
        await planned(stream)
        path = "/v1/deployments/demo/settings"
        given, answer = await call(process.http.port, "PUT", path, body)
        assert given == status
        assert words in answer["error"]["message"]
        assert (await call(process.http.port, "GET", path))[1]["version"] == 0


async def test_explain_lays_the_plan_open() -> None:
    async with running_planner() as process, worker_stream(process) as stream:
        await planned(stream)
        plan = (await stream.next("plan")).plan
        status, found = await call(process.http.port, "GET", "/v1/deployments/demo/explain?n=1")
        assert status == 200
        assert (found["worker"], found["requests"]) == ("worker-1", 1)
        assert found["reason"] == plan.reason
        (drafter,) = found["drafters"]
        assert drafter["chosen"]["draft_tokens"] == plan.drafters[0].draft_tokens[0]
        assert len(drafter["rivals"]) == 2
        assert set(drafter["off"]) >= {"accepted_tokens", "target_s", "feed_s", "draft_s", "host_s"}
        assert found["sources"]["cost"] == "measured"
        for path, words in (
            ("/v1/deployments/none/explain", "no worker of 'none' is at this planner"),
            ("/v1/deployments/demo/explain?worker=other", "no worker 'other'"),
        ):
            status, refused = await call(process.http.port, "GET", path)
            assert status == 404
            assert words in refused["error"]["message"]


async def test_of_two_planners_each_knows_its_own_workers_and_says_so() -> None:
    async with (
        running_planner() as process,
        running_planner() as other,
        worker_stream(process) as stream,
    ):
        await planned(stream)
        path = "/v1/deployments/demo/settings"
        assert (await call(process.http.port, "PUT", path, {"policy": "off"}))[0] == 200
        status, refused = await call(other.http.port, "PUT", path, {"policy": "off"})
        assert (status, ELSEWHERE in refused["error"]["message"]) == (404, True)
        url = f"http://{LOOPBACK}:{other.http.port}"
        with pytest.raises(CommandError, match="each knows its own workers"):
            await asyncio.to_thread(explanation, url, TOKEN, None, 1, None)


async def test_what_can_be_read_can_be_asked_for_without_its_body() -> None:
    async with running_planner() as process:
        connection = http.client.HTTPConnection(LOOPBACK, process.http.port, timeout=10)
        for path, status in (("/health", 200), ("/v1/deployments", 200), ("/v1/none", 404)):
            await asyncio.to_thread(connection.request, "HEAD", path)
            answer = await asyncio.to_thread(connection.getresponse)
            assert (answer.status, answer.read()) == (status, b"")
            assert int(answer.headers["content-length"]) > 0
        connection.close()


async def test_what_if_answers_and_changes_nothing() -> None:
    async with running_planner() as process, worker_stream(process) as stream:
        await planned(stream)
        port, path = process.http.port, "/v1/deployments/demo/whatif"
        status, found = await call(port, "POST", path, {"acceptance": {"ngram": [0.0]}})
        assert status == 200
        assert {item["draft_tokens"] for item in found["cells"]} == {0}
        assert len(found["running"]) == len(found["ladder"])
        status, refused = await call(port, "POST", path, {"acceptance": {"eagle": [0.5]}})
        assert (status, refused["error"]["code"]) == (400, 400)
        status, refused = await call(port, "POST", path, {"cost_table": {"target": 3}})
        assert (status, "no cost table" in refused["error"]["message"]) == (400, True)
        assert (await call(port, "GET", "/v1/deployments/demo/settings"))[1]["version"] == 0


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({**BEARER, "Host": "planner.example"}, 421),
        ({**BEARER, "Origin": "http://evil.example"}, 403),
        ({**BEARER, "Origin": "null"}, 403),
        ({**BEARER, "Content-Type": "text/plain"}, 415),
        (JSON, 401),
        ({**JSON, "Authorization": "Bearer wrong"}, 401),
    ],
)
async def test_a_page_in_a_browser_changes_nothing(headers: dict[str, str], status: int) -> None:
    """Neither by a name that resolves here, nor by a form, nor without the token."""
    async with running_planner() as process, worker_stream(process) as stream:
        await planned(stream)
        path = "/v1/deployments/demo/settings"
        given, answer = await call(process.http.port, "PUT", path, {"policy": "off"}, headers)
        assert (given, answer["error"]["code"]) == (status, status)
        assert (await call(process.http.port, "GET", path, headers={}))[1]["version"] == 0


async def test_names_are_told_in_the_settings_and_own_origins_pass() -> None:
    async with running_planner(http_names=frozenset({"planner.example"})) as process:
        port = process.http.port
        for host in (f"127.0.0.1:{port}", f"localhost:{port}", "[::1]:7071", "planner.example"):
            headers = {"Host": host, "Origin": f"http://{host}"}
            status, _ = await call(port, "GET", "/v1/deployments", headers=headers)
            assert status == 200
        status, _ = await call(port, "GET", "/health", headers={"Host": "other.example"})
        assert status == 421


async def test_beyond_loopback_probes_come_by_any_name() -> None:
    async with running_planner(http_host="0.0.0.0") as process:
        headers = {"Host": "planner.cluster.local"}
        assert (await call(process.http.port, "GET", "/health", headers=headers))[0] == 200
        assert (await call(process.http.port, "GET", "/v1/deployments", headers=headers))[0] == 421


async def test_the_schema_describes_what_bodies_may_hold() -> None:
    async with running_planner() as process:
        status, schema = await call(process.http.port, "GET", "/openapi.json")
        assert status == 200
        assert "put" in schema["paths"]["/v1/deployments/{name}/settings"]
        settings = schema["components"]["schemas"]["SettingsBody"]
        assert settings["additionalProperties"] is False
        assert settings["properties"]["shadows"]["maxItems"] == 4


async def test_the_command_prints_what_a_planner_answers() -> None:
    async with running_planner(http_host="0.0.0.0") as process, worker_stream(process) as stream:
        await planned(stream)
        url = f"http://127.0.0.1:{process.http.port}"
        found = await asyncio.to_thread(explanation, url, TOKEN, None, 1, None)
        assert "ngram" in render(found)
        with pytest.raises(CommandError, match="set OUTRIDER_TOKEN"):
            await asyncio.to_thread(explanation, url, None, None, 1, None)
        with pytest.raises(CommandError, match="no worker of 'other' is at this planner"):
            await asyncio.to_thread(explanation, url, TOKEN, "other", 1, None)
