"""Router and planner install alone: clean environments with one extra each start and lack torch."""

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.net import free_ports, http_get
from tests.support.processes import Process

ROOT = Path(__file__).resolve().parents[2]

pytestmark = [pytest.mark.packaging, pytest.mark.timeout(240)]


@dataclass(frozen=True)
class Environment:
    """A clean virtual environment with one extra installed."""

    extra: str
    folder: Path

    def python(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [self.executable, "-P", *arguments], cwd=self.folder, capture_output=True, text=True
        )

    @property
    def executable(self) -> str:
        return str(self.folder / "bin/python")

    def has(self, *packages: str) -> list[str]:
        """Those of the packages that can be found."""
        code = f"from importlib.util import find_spec; print(*filter(find_spec, {packages}))"
        return self.python("-c", code).stdout.split()


@pytest.fixture(scope="module")
def environments(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Environment]:
    """One environment per extra, built side by side from one wheel."""
    folder = tmp_path_factory.mktemp("clean")
    pip("wheel", "--no-deps", "--no-build-isolation", "-w", str(folder), str(ROOT))
    (wheel,) = folder.glob("outrider-*.whl")
    with ThreadPoolExecutor() as both:
        built = both.map(lambda extra: build(extra, wheel), ("router", "planner"))
    return {environment.extra: environment for environment in built}


def build(extra: str, wheel: Path) -> Environment:
    folder = wheel.parent / extra
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    # Installed from outside and without bytecode: half the time of an environment with its own pip.
    into = ("--python", str(folder / "bin/python"))
    pip(*into, "install", "--no-compile", f"outrider[{extra}] @ {wheel.as_uri()}")
    return Environment(extra, folder)


def pip(*arguments: str) -> None:
    done = subprocess.run([sys.executable, "-m", "pip", *arguments], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]


def test_the_router_starts_alone(environments: dict[str, Environment]) -> None:
    environment = environments["router"]
    assert environment.has("fastapi", "torch", "numpy", "redis", "transformers") == ["fastapi"]
    port, nobody = free_ports(2)
    settings = {
        "OUTRIDER_ROUTER_PORT": str(port),
        "OUTRIDER_ROUTER_WORKERS": f"127.0.0.1:{nobody}",
    }
    assert_answers(environment, port, settings)


def test_the_planner_starts_alone(environments: dict[str, Environment]) -> None:
    environment = environments["planner"]
    assert environment.has("numpy", "torch", "tokenizers", "jinja2", "transformers") == ["numpy"]
    grpc_port, http_port = free_ports(2)
    settings = {
        "OUTRIDER_PLANNER_GRPC_PORT": str(grpc_port),
        "OUTRIDER_PLANNER_HTTP_PORT": str(http_port),
    }
    assert_answers(environment, http_port, settings)


def assert_answers(environment: Environment, port: int, settings: dict[str, str]) -> None:
    """The service starts as its own module, answers that it lives, and ends when asked."""
    command = [environment.executable, "-P", "-m", f"outrider_{environment.extra}"]
    with Process(command, {**settings, "PYTHONPATH": ""}) as process:
        process.wait_ready(lambda: http_get(port, "/health")[0] == 200, 60, "answer to /health")
        assert process.stop() == 0
        process.assert_nothing_left()


@pytest.mark.parametrize("extra", ["router", "planner"])
def test_what_is_not_installed_is_named(environments: dict[str, Environment], extra: str) -> None:
    done = environments[extra].python("-m", "outrider_cli", "worker")
    assert done.returncode == 2
    assert "pip install 'outrider[worker]'" in done.stderr
    assert "Traceback" not in done.stderr
