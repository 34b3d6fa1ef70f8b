"""The compose stack in real containers, asked and hurt through the docker command.

The engine is the one that docker finds (`DOCKER_HOST`). Images are built beforehand, see
scripts/test-deploy.sh. The project has a name of its own: a stack that somebody runs is left alone.
"""

import json
import os
import re
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from openai import AsyncOpenAI

from tests.support.net import free_ports, http_get, wait_until

ROOT = Path(__file__).resolve().parents[3]
FILES = (
    "docker-compose.yml",
    "deploy/compose/offline.yml",
    "tests/deploy/containers/hasty_worker.yml",
)
# One thread each: two workers, a router and the test itself share what may be two cores.
ENVIRONMENT = {"OUTRIDER_WORKER_THREADS": "1", "OUTRIDER_KV_GIB": "0.25"}
START_LIMIT_S = 1500.0
# Compiled kernels and the converted model may serve the next run; all else begins anew.
KEPT_VOLUME = "worker-cache"
KEY_FILE = "/run/secrets/clients/outrider_router_api_keys"


class ContainerStack:
    """A context manager: up and healthy inside; after it only the workers' cache is left."""

    project = "outrider-test"

    def __init__(self) -> None:
        (self.port,) = free_ports(1)
        self.environment = {**os.environ, **ENVIRONMENT, "OUTRIDER_PORT": str(self.port)}
        self.key = ""

    def client(self, port: int | None = None) -> AsyncOpenAI:
        """A client of the published router, or of one at another port; it does not retry."""
        url = f"http://127.0.0.1:{port or self.port}/v1"
        return AsyncOpenAI(base_url=url, api_key=self.key, max_retries=0, timeout=120)

    def __enter__(self) -> "ContainerStack":
        self.remove()
        try:
            self.compose("up", "--wait", "--no-build", limit_s=START_LIMIT_S)
        except BaseException as error:
            error.add_note(self.logs())
            self.remove()
            raise
        self.key = self.docker("exec", self.only("router"), "cat", KEY_FILE)
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()

    def remove(self) -> None:
        """Containers, networks and volumes, but KEPT_VOLUME."""
        self.compose("down", "--remove-orphans", limit_s=180)
        label = f"label=com.docker.compose.project={self.project}"
        volumes = self.docker("volume", "ls", "--quiet", "--filter", label).split()
        gone = [name for name in volumes if not name.endswith(KEPT_VOLUME)]
        if gone:
            self.docker("volume", "rm", *gone)

    def compose(self, *arguments: str, limit_s: float = 120) -> str:
        """What `docker compose` printed; AssertionError with its errors where it fails."""
        files = [part for file in FILES for part in ("--file", file)]
        command = ["docker", "compose", "--project-name", self.project, *files, *arguments]
        return self._run(command, limit_s)

    def docker(self, *arguments: str, limit_s: float = 60) -> str:
        """What `docker` printed, without white space around it."""
        return self._run(["docker", *arguments], limit_s)

    def _run(self, command: Sequence[str], limit_s: float) -> str:
        done = subprocess.run(
            command,
            cwd=ROOT,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=limit_s,
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
        return done.stdout.strip()

    def logs(self) -> str:
        """The last lines of all containers, and how they are."""
        return self.compose("ps", "--all") + "\n" + self.compose("logs", "--tail", "25")

    def containers(self, service: str) -> list[str]:
        """The names of a service's containers, in their order."""
        return sorted(self.compose("ps", "--format", "{{.Name}}", service).split())

    def only(self, service: str) -> str:
        """The name of a service's one container."""
        (name,) = self.containers(service)
        return name

    @contextmanager
    def second_router(self, **environment: str) -> Iterator[tuple[str, int]]:
        """Another router beside the first, as a rolling update has them: its name and its port."""
        (port,) = free_ports(1)
        name = f"{self.project}-second-router"
        changed = (f"--env={variable}={value}" for variable, value in environment.items())
        self.compose(
            *("run", "--detach", "--no-deps", "--name", name, *changed),
            *("--publish", f"127.0.0.1:{port}:8000", "router"),
        )
        try:
            self.wait_healthy(name)
            yield name, port
        finally:
            self.docker("rm", "--force", name)

    def inspect(self, container: str) -> dict[str, Any]:
        (found,) = json.loads(self.docker("inspect", container))
        return found  # type: ignore[no-any-return]

    def is_healthy(self, container: str) -> bool:
        state = self.inspect(container)["State"]
        return bool(state["Running"]) and state["Health"]["Status"] == "healthy"

    def wait_healthy(self, container: str, limit_s: float = 300) -> None:
        """Until it is; the note of a failure has its last lines."""
        try:
            wait_until(lambda: self.is_healthy(container), limit_s, f"{container} is healthy")
        except AssertionError as error:
            error.add_note(self.docker("logs", "--tail", "40", container))
            raise

    def crash(self, container: str) -> None:
        """Kill the service's own process, as a fault would, and wait for `restart:` to act."""
        before = self.inspect(container)["RestartCount"]
        kill = "kill -KILL $(cat /proc/1/task/1/children)"
        subprocess.run(["docker", "exec", container, "sh", "-c", kill], env=self.environment)
        wait_until(
            lambda: self.inspect(container)["RestartCount"] > before, 60, f"{container} is back"
        )

    def restart(self, container: str) -> None:
        """Stop it with its own time to drain, start it, and wait until it is healthy."""
        seconds = self.inspect(container)["Config"].get("StopTimeout", 10)
        self.docker("restart", container, limit_s=seconds + 60)
        self.wait_healthy(container)

    def query(self, expression: str) -> list[float]:
        """What the stack's Prometheus has of an expression now: the values of all series."""
        prometheus = self.only("prometheus")
        local = "http://127.0.0.1:9090"
        shown = self.docker(
            "exec", prometheus, "promtool", "query", "instant", "-o", "json", local, expression
        )
        return [float(series["value"][1]) for series in json.loads(shown) or ()]

    def wait_query(self, expression: str, wanted: list[float], limit_s: float = 60) -> None:
        """Until the stack's Prometheus has these values of it."""
        wait_until(lambda: self.query(expression) == wanted, limit_s, f"{expression} is {wanted}")

    def metric(self, name: str) -> float:
        """The sum over a series of the router, at this moment."""
        _, text = http_get(self.port, "/metrics")
        lines = [line for line in text.decode().splitlines() if re.match(rf"{name}[ {{]", line)]
        return sum(float(line.rpartition(" ")[2]) for line in lines)

    def wait_ready_workers(self, count: int) -> None:
        """Until the router would send requests to that many."""
        wait_until(
            lambda: self.metric("outrider_router_worker_up") == count, 300, f"{count} workers"
        )
