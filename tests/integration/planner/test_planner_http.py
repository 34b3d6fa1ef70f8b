"""The side port as a client sees it, and the process as its supervisor does."""

import asyncio
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from math import isfinite
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from outrider_planner.assembly import PlannerProcess
from outrider_runtime.http import MAX_HEAD_BYTES
from tests.integration.planner.streams import (
    TOKEN,
    make_hello,
    make_reports,
    running_planner,
    worker_stream,
)
from tests.support.net import LOOPBACK, free_ports, http_get, wait_until
from tests.unit.planner.test_metrics_documented import PROMISED


async def fetched(port: int, path: str) -> tuple[int, bytes]:
    return await asyncio.to_thread(http_get, port, path)


async def wait_for(reached: Callable[[], bool]) -> None:
    async with asyncio.timeout(5.0):
        while not reached():
            await asyncio.sleep(0.01)


async def test_state_is_shown_as_json() -> None:
    async with running_planner() as process, worker_stream(process) as stream:
        port = process.http.port
        assert await fetched(port, "/health") == (
            200,
            b'{"status":"ok","store_up":true,"workers":0}',
        )
        await stream.say(hello=make_hello())
        await stream.next("plan")
        await stream.say(reports=make_reports(1, accepted=0))
        plan = (await stream.next("plan")).plan
        status, body = await fetched(port, "/v1/deployments")
        (deployment,) = json.loads(body)["deployments"]
        (worker,) = deployment["workers"]
        assert status == 200
        assert deployment["deployment"] == "demo"
        assert worker["state"] == "busy"
        assert worker["plan"]["version"] == plan.version
        assert worker["plan"]["reason"] == plan.reason
        assert worker["plan"]["drafters"][0]["draft_tokens"] == list(plan.drafters[0].draft_tokens)
        (statistics,) = worker["statistics"]
        assert statistics["drafted"] == [8, 8]
        assert statistics["verified"] == [8, 8]
        assert statistics["accepted"] == [0, 0]
        (by_class,) = statistics["classes"]
        assert by_class["request_class"] == "greedy"
        assert len(by_class["survival"]) == 4
        status, body = await fetched(port, "/v1/deployments/demo")
        assert status == 200
        assert json.loads(body)["workers"][0]["incarnation"] == "worker-1"


async def test_errors_are_json_objects() -> None:
    async with running_planner() as process:
        for path, word in (("/nowhere", "Not Found"), ("/v1/deployments/none", "no worker of")):
            status, body = await fetched(process.http.port, path)
            assert status == 404
            error = json.loads(body)["error"]
            assert error["code"] == 404
            assert word in error["message"]
        assert await asyncio.to_thread(refused_head, process.http.port) == {
            "error": {"code": 431, "message": "the headers are too large"}
        }


def refused_head(port: int) -> Any:
    """The body of what is answered to a head that has no end."""
    with socket.create_connection((LOOPBACK, port), timeout=10) as client:
        client.sendall(b"GET / HTTP/1.1\r\nx-endless: ".ljust(MAX_HEAD_BYTES + 1, b"a"))
        return json.loads(client.makefile("rb").read().partition(b"\r\n\r\n")[2])


def samples(text: str) -> dict[tuple[str, str], float]:
    """Values by name, without the prefix, and worker, "" where none is named."""
    return {
        (sample.name.removeprefix("outrider_planner_"), sample.labels.get("worker", "")): (
            sample.value
        )
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


async def scraped(process: PlannerProcess) -> dict[tuple[str, str], float]:
    status, body = await fetched(process.http.port, "/metrics")
    assert status == 200
    return samples(body.decode())


async def test_promised_metrics_are_exported_and_say_what_happened() -> None:
    """Every promised name with the value that follows from what the worker told."""
    async with running_planner() as process, worker_stream(process) as stream:
        await stream.say(hello=make_hello())
        await stream.next("plan")
        fresh = await scraped(process)
        assert all(isfinite(value) for value in fresh.values()), "G06: nothing drafted yet"
        for sequence in range(1, 7):
            reports = make_reports(sequence, accepted=8 if sequence <= 5 else 0, rounds=64)
            reports.dropped_rounds = 3
            reports.guard.trips, reports.guard.readmissions = 2, 1
            reports.guard.threshold_tokens, reports.guard.plain_scale_ratio = 12.5, 1.0
            await stream.say(reports=reports)
        await wait_for(lambda: process.service.planner.workers["worker-1"].rounds == 6 * 64)
        plan = (await stream.next("plan")).plan
        found = await scraped(process)
    names = {name for name, worker in found if worker == "worker-1"}
    missing = [name for name in PROMISED if name not in names and (name, "") not in found]
    assert missing == []
    worker = {name: value for (name, label), value in found.items() if label == "worker-1"}
    assert all(isfinite(value) for value in found.values())
    assert plan.version >= 2
    assert worker["draft_length"] in range(5)
    assert worker["verify_rows"] == 1 + worker["draft_length"]
    assert worker["guard_trips_total"] == 2
    assert worker["guard_readmissions_total"] == 1
    assert worker["guard_threshold_tokens"] == 12.5
    assert worker["reports_dropped_total"] == 3
    assert worker["reports_received_total"] == 6
    assert worker["measured_round_seconds"] == pytest.approx(0.0133, rel=0.01)
    assert 0 < worker["headroom_ratio"] < 1
    assert found["store_up", ""] == 1
    assert found["workers", ""] == 1


def asked(port: int, path: str, headers: dict[str, str]) -> tuple[int, str | None, bytes]:
    connection = http.client.HTTPConnection(LOOPBACK, port, timeout=5)
    try:
        connection.request("GET", path, headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.getheader("WWW-Authenticate"), answer.read()
    finally:
        connection.close()


@pytest.mark.parametrize("path", ["/v1/deployments", "/v1/deployments/demo"])
async def test_beyond_loopback_the_state_needs_the_token(path: str) -> None:
    """Probes and scrapers carry none, so health and metrics stay open."""
    async with running_planner(http_host="0.0.0.0") as process, worker_stream(process) as stream:
        await stream.say(hello=make_hello())
        await stream.next("plan")
        port = process.http.port
        for given in (None, "Bearer wrong", TOKEN):
            headers = {} if given is None else {"Authorization": given}
            status, challenge, body = await asyncio.to_thread(asked, port, path, headers)
            assert (status, challenge) == (401, "Bearer")
            assert json.loads(body)["error"]["code"] == 401
        headers = {"Authorization": f"Bearer {TOKEN}"}
        status, _, body = await asyncio.to_thread(asked, port, path, headers)
        assert status == 200
        assert b"worker-1" in body
        for open_path in ("/health", "/metrics"):
            assert (await fetched(port, open_path))[0] == 200


async def test_on_loopback_the_state_is_open() -> None:
    async with running_planner() as process:
        assert (await fetched(process.http.port, "/v1/deployments"))[0] == 200


def test_the_process_serves_and_stops_cleanly_on_sigterm() -> None:
    grpc_port, http_port = free_ports(2)
    environment = {
        **os.environ,
        "OUTRIDER_PLANNER_GRPC_PORT": str(grpc_port),
        "OUTRIDER_PLANNER_HTTP_PORT": str(http_port),
    }
    command = [sys.executable, "-m", "outrider_planner"]
    process = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)
    try:
        wait_until(lambda: http_get(http_port, "/health")[0] == 200, 30.0, "the planner answers")
        process.send_signal(signal.SIGTERM)
        _, log = process.communicate(timeout=10)
    finally:
        process.kill()
    assert process.returncode == 0
    events = [json.loads(line)["event"] for line in log.splitlines()]
    assert "planner_ready" in events
    assert "Traceback" not in log


def test_settings_that_cannot_work_are_told_without_a_traceback() -> None:
    environment = {
        **os.environ,
        "OUTRIDER_PLANNER_POLICY": "fastest",
        "OUTRIDER_PLANNER_REDIS_URL": "nonsense",
    }
    done = subprocess.run(
        [sys.executable, "-m", "outrider_planner"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 2
    assert "known are two_stage" in done.stderr
    assert "redis://host:6379/0" in done.stderr
    assert "Traceback" not in done.stderr
