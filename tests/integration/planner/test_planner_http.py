"""The side port as a client sees it, and the process as its supervisor does."""

import asyncio
import json
import os
import signal
import subprocess
import sys

from tests.integration.planner.streams import (
    make_hello,
    make_reports,
    running_planner,
    worker_stream,
)
from tests.support.net import free_ports, http_get, wait_until


async def fetched(port: int, path: str) -> tuple[int, bytes]:
    return await asyncio.to_thread(http_get, port, path)


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
        for path, word in (("/nowhere", "Not Found"), ("/v1/deployments/none", "no deployment")):
            status, body = await fetched(process.http.port, path)
            assert status == 404
            error = json.loads(body)["error"]
            assert error["code"] == 404
            assert word in error["message"]


async def test_metrics_are_scraped_as_text() -> None:
    async with running_planner() as process, worker_stream(process) as stream:
        await stream.say(hello=make_hello())
        await stream.next("plan")
        status, body = await fetched(process.http.port, "/metrics")
        assert status == 200
        assert b'outrider_planner_draft_length{drafter="ngram",worker="worker-1"}' in body
        assert b"outrider_planner_store_up 1.0" in body
        assert b"outrider_planner_workers 1.0" in body


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
    assert "planner ready" in events
    assert "Traceback" not in log


def test_settings_that_cannot_work_are_told_in_one_line() -> None:
    environment = {**os.environ, "OUTRIDER_PLANNER_POLICY": "fastest"}
    done = subprocess.run(
        [sys.executable, "-m", "outrider_planner"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 2
    assert "two_stage, static:K, off" in done.stderr
    assert "Traceback" not in done.stderr
