"""A healthy stack: who can be reached, by whom, and what comes of load."""

import re

import pytest
from openai import AsyncOpenAI

from tests.deploy.containers.stack import ContainerStack
from tests.support.chat import MODEL, QUESTION, ask
from tests.support.net import http_get

pytestmark = [pytest.mark.containers, pytest.mark.timeout(1200)]

# Whom a service can reach: those it calls, those that call it, and Prometheus that asks both.
REACHED = {
    "router": {"worker-1:7080", "worker-2:7080", "prometheus:9090"},
    "worker-1": {"router:8000", "worker-2:7080", "planner:7070", "planner:7071", "prometheus:9090"},
    "planner": {"worker-1:7080", "worker-2:7080", "valkey:6379", "prometheus:9090"},
}
ADDRESSES = set().union(*REACHED.values())
CONNECT = """\
import socket, sys
for address in sys.argv[1:]:
    host, port = address.split(":")
    try:
        socket.create_connection((host, int(port)), timeout=3).close()
        print(address)
    except OSError:
        pass
"""


async def test_a_chat_through_the_published_port(
    stack: ContainerStack, openai: AsyncOpenAI
) -> None:
    assert [model.id async for model in await openai.models.list()] == [MODEL]
    assert "Paris" in await ask(openai, QUESTION, 24)


def test_without_its_key_the_api_refuses(stack: ContainerStack) -> None:
    status, _ = http_get(stack.port, "/v1/models")
    assert status == 401


def test_one_port_is_published_and_only_on_loopback(stack: ContainerStack) -> None:
    ports = stack.docker(
        *("ps", "--filter", f"label=com.docker.compose.project={stack.project}"),
        *("--format", "{{.Ports}}"),
    )
    published = re.findall(r"(\S+)->(\d+)/tcp", ports)
    assert published == [(f"127.0.0.1:{stack.port}", "8000")]


def test_secrets_are_in_no_container_s_description(stack: ContainerStack) -> None:
    for service in ("router", "planner", "worker-1"):
        assert stack.key not in str(stack.inspect(stack.containers(service)[0]))


@pytest.mark.parametrize("service", REACHED)
def test_services_reach_their_neighbours_and_nobody_beyond(
    stack: ContainerStack, service: str
) -> None:
    others = sorted(each for each in ADDRESSES if not each.startswith(f"{service}:"))
    container = stack.containers(service)[0]
    reached = stack.docker("exec", container, "python", "-c", CONNECT, *others).split()
    assert set(reached) == REACHED[service]


def test_the_load_profile_s_answers_are_whole(stack: ContainerStack) -> None:
    shown = stack.compose(
        *("--profile", "load", "run", "--rm", "--no-deps", "-e", "LOAD_SECONDS=15", "load"),
        limit_s=90,
    )
    assert sum(map(int, re.findall(r"answers: (\d+)", shown))) > 0
    assert "failed" not in shown


def test_prometheus_sees_every_process_and_records(stack: ContainerStack) -> None:
    stack.wait_query("up", [1.0] * 5)
    stack.wait_query("sum(outrider_planner_workers)", [2.0])
    stack.wait_query("count(outrider:requests_waiting:sum)", [1.0])
    assert sum(stack.query("outrider_worker_generation_tokens_total")) > 0
