"""What is measured: the router and its peers, each in front of a scripted server of its kind.

All are real processes on loopback. A side's cost is the processor time of its gateway's process
alone; what the scripted server takes is measured on its own as `bare` and `upstream`.
"""

import http.client
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.router.script import MODEL

WORKER_PORT, UPSTREAM_PORT, ROUTER_PORT, LITELLM_PORT, SGLANG_PORT = range(18080, 18085)
_METRICS_PORT = 18090
_ROOT = Path(__file__).parents[2]
_START_LIMIT_S = 120.0


@dataclass(frozen=True)
class Side:
    """Something to ask; `base` is the side that tells what it costs to ask without it.

    pid: whose processor time it costs.
    """

    name: str
    target: str
    pid: int
    base: str | None = None
    version: str = ""


class SideFailed(RuntimeError):
    """A process did not start."""


@contextmanager
def all_sides(folder: Path, litellm: str | None, sglang: str | None) -> Iterator[list[Side]]:
    """The sides that can be had, ready. A peer whose interpreter is None is left out."""
    with ExitStack() as running:
        worker = running.enter_context(_scripted("worker", folder, WORKER_PORT))
        upstream = running.enter_context(_scripted("upstream", folder, UPSTREAM_PORT))
        sides = [
            Side("bare", f"grpc://127.0.0.1:{WORKER_PORT}", worker),
            running.enter_context(_router()),
            Side("upstream", f"http://127.0.0.1:{UPSTREAM_PORT}", upstream),
        ]
        if litellm:
            sides.append(running.enter_context(_litellm(litellm)))
        if sglang:
            sides.append(running.enter_context(_sglang(sglang)))
        yield sides


@contextmanager
def _scripted(name: str, folder: Path, port: int) -> Iterator[int]:
    words = ("-m", f"benchmarks.router.{name}", "--folder", str(folder), "--port", str(port))
    with _process([sys.executable, *words]) as process:
        yield process.pid


@contextmanager
def _router() -> Iterator[Side]:
    settings = {
        "OUTRIDER_LOG_LEVEL": "warning",
        "OUTRIDER_ROUTER_PORT": str(ROUTER_PORT),
        "OUTRIDER_ROUTER_WORKERS": f"127.0.0.1:{WORKER_PORT}",
        "OUTRIDER_ROUTER_MAX_IN_FLIGHT": "1024",
    }
    with _process([sys.executable, "-m", "outrider_router"], settings) as process:
        _wait(process, ROUTER_PORT)
        yield Side("router", f"http://127.0.0.1:{ROUTER_PORT}", process.pid, "bare")


@contextmanager
def _litellm(python: str) -> Iterator[Side]:
    """LiteLLM's proxy, one process, without a database, logs or a price list from elsewhere."""
    url = f"http://127.0.0.1:{UPSTREAM_PORT}/v1"
    params = {"model": f"openai/{MODEL}", "api_base": url, "api_key": "none"}
    # JSON is YAML.
    config = json.dumps({"model_list": [{"model_name": MODEL, "litellm_params": params}]})
    environment = {
        "LITELLM_LOG": "ERROR",
        "LITELLM_MODE": "PRODUCTION",
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        # On loopback and without a key, as the router is here.
        "LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY": "true",
    }
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        file.write(config)
        file.flush()
        Path(file.name).chmod(0o644)
        start = "import sys; from litellm import run_server; sys.exit(run_server())"
        where = ("--config", file.name, "--host", "127.0.0.1", "--port", str(LITELLM_PORT))
        with _process([python, "-c", start, *where, "--num_workers", "1"], environment) as process:
            _wait(process, LITELLM_PORT)
            target = f"http://127.0.0.1:{LITELLM_PORT}"
            yield Side("litellm", target, process.pid, "upstream", _version(python, "litellm"))


@contextmanager
def _sglang(python: str) -> Iterator[Side]:
    """SGLang's router over HTTP, with the lightest way of choosing among workers."""
    upstream = f"http://127.0.0.1:{UPSTREAM_PORT}"
    words = ("--worker-urls", upstream, "--policy", "round_robin", "--host", "127.0.0.1")
    ports = ("--port", str(SGLANG_PORT), "--prometheus-port", str(_METRICS_PORT))
    limits = ("--max-concurrent-requests", "1024", "--log-level", "error")
    command = [python, "-m", "sglang_router.launch_router", *words, *ports, *limits]
    with _process(command) as process:
        _wait(process, SGLANG_PORT)
        target, version = f"http://127.0.0.1:{SGLANG_PORT}", _version(python, "sglang-router")
        yield Side("sglang", target, process.pid, "upstream", version)


@contextmanager
def _process(
    command: Sequence[str], environment: Mapping[str, str] | None = None
) -> Iterator["subprocess.Popen[bytes]"]:
    process = subprocess.Popen(
        command,
        cwd=_ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1", **(environment or {})},
        stdout=subprocess.DEVNULL,
    )
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()


def _wait(process: "subprocess.Popen[bytes]", port: int) -> None:
    """Until a whole question is answered."""
    end_s = time.monotonic() + _START_LIMIT_S
    while not _answers(port):
        if process.poll() is not None or time.monotonic() > end_s:
            raise SideFailed(f"nothing answers on port {port}: {process.args!r}")
        time.sleep(0.5)


def _answers(port: int) -> bool:
    body: dict[str, Any] = {"model": MODEL, "max_tokens": 2, "seed": 0}
    body["messages"] = [{"role": "user", "content": "Hello."}]
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        headers = {"content-type": "application/json"}
        connection.request("POST", "/v1/chat/completions", json.dumps(body), headers)
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def _version(python: str, package: str) -> str:
    code = f"import importlib.metadata as m; print(m.version({package!r}))"
    return subprocess.run(
        [python, "-c", code], capture_output=True, text=True, check=True
    ).stdout.strip()
