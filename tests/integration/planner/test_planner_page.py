"""The live page's files and the two answers that it lives on, as a client sees them."""

import asyncio
import http.client
import json
from typing import Any

import pytest

from outrider_planner.http_routes import MOST_WAITING
from tests.integration.planner.streams import (
    TOKEN,
    make_hello,
    make_reports,
    running_planner,
    worker_stream,
)
from tests.support.net import LOOPBACK

Answer = tuple[int, dict[str, str], bytes]


def _asked(port: int, path: str, headers: dict[str, str]) -> Answer:
    connection = http.client.HTTPConnection(LOOPBACK, port, timeout=10)
    try:
        connection.request("GET", path, headers=headers)
        answer = connection.getresponse()
        return answer.status, dict(answer.getheaders()), answer.read()
    finally:
        connection.close()


async def asked(port: int, path: str, **headers: str) -> Answer:
    return await asyncio.to_thread(_asked, port, path, headers)


async def told(port: int, path: str) -> Any:
    status, _, body = await asked(port, path)
    assert status == 200, body
    return json.loads(body)


async def test_the_page_is_served_and_known_again() -> None:
    async with running_planner() as process:
        port = process.http.port
        for given, wanted in (("/", "page/"), ("/?worker=a%26b", "page/?worker=a%26b")):
            status, headers, _ = await asked(port, given)
            assert (status, headers["location"]) == (307, wanted)
        status, headers, body = await asked(port, "/page/")
        assert status == 200
        assert b'<script type="module" src="main.js">' in body
        assert headers["content-type"] == "text/html; charset=utf-8"
        assert "script-src 'self'" in headers["content-security-policy"]
        status, _, body = await asked(port, "/page/", **{"If-None-Match": headers["etag"]})
        assert (status, body) == (304, b"")
        for path in ("/page/shared/base.css", "/page/main.js"):
            assert (await asked(port, path))[0] == 200
        for path in ("/page/none.js", "/page/../http.py", "/page/%2e%2e/http.py", "/page/shared/"):
            status, _, body = await asked(port, path)
            assert (status, json.loads(body)["error"]["code"]) == (404, 404)


async def test_the_page_is_open_and_what_it_shows_is_not() -> None:
    async with running_planner(http_host="0.0.0.0") as process:
        port = process.http.port
        assert (await asked(port, "/page/"))[0] == 200
        for path in ("/v1/overview", "/v1/deployments/demo/map"):
            assert (await asked(port, path))[0] == 401
        status, _, body = await asked(port, "/v1/overview", Authorization=f"Bearer {TOKEN}")
        assert (status, json.loads(body)["deployments"]) == (200, [])
        assert (await asked(port, "/page/", Host="elsewhere.example"))[0] == 421


async def test_the_page_can_be_left_out() -> None:
    async with running_planner(page=False) as process:
        for path in ("/", "/page/", "/page/main.js"):
            assert (await asked(process.http.port, path))[0] == 404
        assert (await asked(process.http.port, "/v1/overview"))[0] == 200


async def test_overview_map_and_explanation_agree() -> None:
    async with running_planner() as process, worker_stream(process) as stream:
        port = process.http.port
        await stream.say(hello=make_hello())
        await stream.next("plan")
        await stream.say(reports=make_reports(1, accepted=6))
        plan = (await stream.next("plan")).plan
        found = await told(port, "/v1/overview")
        assert found["store_up"] is True
        assert found["policies"][:3] == ["two_stage", "lightspec", "dspark"]
        (deployment,) = found["deployments"]
        (worker,) = deployment["workers"]
        assert (worker["worker"], worker["plan_version"]) == ("worker-1", plan.version)
        drawn = await told(port, "/v1/deployments/demo/map?worker=worker-1")
        (drafter,) = drawn["drafters"]
        assert drafter["draft_tokens"] == list(plan.drafters[0].draft_tokens)
        assert [len(step) for step in drafter["rate_vs_off_ratio"]] == [5] * 4
        for d in (0, 3):
            why = await told(port, f"/v1/deployments/demo/explain?n=2&d={d}")
            ratio = why["drafters"][0]["asked"]["rate_vs_off_ratio"]
            assert ratio == pytest.approx(drafter["rate_vs_off_ratio"][1][d])
        assert (await asked(port, "/v1/deployments/demo/explain?d=99"))[0] == 400
        assert (await asked(port, "/v1/deployments/demo/map?worker=other"))[0] == 404


async def test_maps_are_drawn_one_at_a_time_and_few_wait() -> None:
    """More than may wait at once are refused; those that waited are all answered."""
    async with running_planner() as process, worker_stream(process) as stream:
        await stream.say(hello=make_hello())
        await stream.next("plan")
        path = "/v1/deployments/demo/map"
        many = [asked(process.http.port, path) for _ in range(4 * MOST_WAITING)]
        statuses = [status for status, _, _ in await asyncio.gather(*many)]
        assert set(statuses) <= {200, 429}
        assert statuses.count(200) > MOST_WAITING
