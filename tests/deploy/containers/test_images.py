"""The images as built, and what their containers may do."""

import json
import subprocess

import pytest

from tests.deploy.containers.stack import ContainerStack

pytestmark = [pytest.mark.containers, pytest.mark.timeout(1200)]

# Layers beyond the base image, in megabytes.
OWN_LAYERS_MB = {"router": 150, "planner": 150}
SERVICES = ("router", "planner", "worker-1", "valkey", "prometheus")
OURS = SERVICES[:3]


def image(stack: ContainerStack, service: str) -> str:
    name: str = stack.inspect(stack.containers(service)[0])["Config"]["Image"]
    return name


@pytest.mark.parametrize("service", OWN_LAYERS_MB)
def test_router_and_planner_are_small(stack: ContainerStack, service: str) -> None:
    history = stack.docker(
        "history", "--human=false", "--format", "{{json .}}", image(stack, service)
    )
    layers = [json.loads(line) for line in history.splitlines()]
    # The base image's layers are the last ones: they were there when the first label was set.
    first = max(i for i, layer in enumerate(layers) if "LABEL" in layer["CreatedBy"])
    own_mb = sum(int(layer["Size"]) for layer in layers[: first + 1]) / 1e6
    assert 1 < own_mb < OWN_LAYERS_MB[service]


@pytest.mark.parametrize("service", OURS)
def test_labels_and_health_checks_are_there(stack: ContainerStack, service: str) -> None:
    config = stack.inspect(stack.containers(service)[0])["Config"]
    assert config["Labels"]["org.opencontainers.image.licenses"] == "Apache-2.0"
    assert config["Labels"]["org.opencontainers.image.version"]
    assert config["Healthcheck"]["Test"][0] == "CMD"
    assert config["User"] == "10001:10001"


@pytest.mark.parametrize("service", OURS)
def test_no_compiler_is_in_the_image(stack: ContainerStack, service: str) -> None:
    tools = "for t in gcc cc c++ clang ld as make; do command -v $t; done; true"
    container = stack.containers(service)[0]
    assert stack.docker("exec", container, "sh", "-c", tools) == ""


@pytest.mark.parametrize("service", ["router", "planner"])
def test_router_and_planner_hold_no_torch(stack: ContainerStack, service: str) -> None:
    code = "from importlib.util import find_spec; print(find_spec('torch'))"
    assert stack.docker("exec", stack.containers(service)[0], "python", "-c", code) == "None"


@pytest.mark.parametrize("service", SERVICES)
def test_containers_may_do_nothing_beyond_their_work(stack: ContainerStack, service: str) -> None:
    container = stack.containers(service)[0]
    assert stack.docker("exec", container, "id", "-u") != "0"
    status = stack.docker("exec", container, "cat", "/proc/1/status")
    fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    assert int(fields["CapEff"], 16) == int(fields["CapPrm"], 16) == 0
    assert fields["NoNewPrivs"].strip() == "1"
    assert fields["Seccomp"].strip() == "2"
    writes = ["docker", "exec", container, "sh", "-c", "echo > /etc/outrider-was-here"]
    refused = subprocess.run(writes, capture_output=True, text=True, env=stack.environment)
    assert refused.returncode != 0
    assert "Read-only file system" in refused.stderr
    limits = stack.inspect(container)["HostConfig"]
    assert limits["Memory"] > 0
    assert limits["PidsLimit"] > 0
