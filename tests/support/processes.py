"""Real processes for tests: single services, and whole stacks of `outrider up`.

Every process started here carries a mark in its environment, which its children inherit; so what a
stack leaves behind can be found whatever became of its parents. Reads /proc, hence Linux only.
"""

import json
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.support.net import LOOPBACK, free_port_run, free_ports, wait_until

START_LIMIT_S = 100.0
STOP_LIMIT_S = 40.0
_MARK = "OUTRIDER_TEST_MARK"


class Process:
    """A command whose output goes to a file; a context manager that leaves nothing running.

    Errors raised inside `with` carry the end of the log as a note.
    """

    def __init__(
        self, command: Sequence[str], environment: Mapping[str, str] | None = None
    ) -> None:
        self.command = list(command)
        self.environment = dict(environment or {})
        self.mark = secrets.token_hex(8)
        # Closed by `close`, which every path out of `with` calls.
        self._log = tempfile.NamedTemporaryFile(prefix="outrider-test-", suffix=".log")  # noqa: SIM115
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the command in a session of its own."""
        self._process = subprocess.Popen(
            self.command,
            env={**os.environ, **self.environment, _MARK: self.mark},
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    @property
    def pid(self) -> int:
        assert self._process is not None, "not started"
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """None while it runs."""
        return self._process.poll() if self._process else None

    def send(self, number: signal.Signals) -> None:
        assert self._process is not None, "not started"
        self._process.send_signal(number)

    def wait(self, limit_s: float = STOP_LIMIT_S) -> int:
        """The exit code; AssertionError where it does not end in time."""
        assert self._process is not None, "not started"
        try:
            return self._process.wait(limit_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"still running after {limit_s:g} s: {self.command}") from None

    def wait_ready(self, condition: Callable[[], object], limit_s: float, what: str) -> None:
        """Wait until `condition` holds; fails at once where the process ends."""
        end_s = time.monotonic() + limit_s
        while not condition():
            if self.exit_code is not None:
                raise AssertionError(f"ended ({self.exit_code}) before {what}")
            if time.monotonic() > end_s:
                raise AssertionError(f"no {what} within {limit_s:g} s")
            time.sleep(0.05)

    def stop(self, number: signal.Signals = signal.SIGTERM, limit_s: float = STOP_LIMIT_S) -> int:
        """Ask the process to end; the exit code."""
        self.send(number)
        return self.wait(limit_s)

    def log(self) -> str:
        """Everything it has written."""
        return Path(self._log.name).read_text(errors="replace")

    def shown_log(self) -> str:
        """The end of the log under a headline, for the message of a failure."""
        return f"--- log of {' '.join(self.command)}\n{self.log()[-6000:]}"

    def left_over(self) -> dict[int, str]:
        """Living processes that descend from this one, itself included: pid → command line."""
        return _marked(self.mark)

    def assert_nothing_left(self, limit_s: float = 5.0) -> None:
        """AssertionError where a process of this one still lives after `limit_s`."""
        wait_until(lambda: not self.left_over(), limit_s, f"end of {self.left_over()}")

    def close(self) -> None:
        """Kill whatever is left; safe to call again."""
        for pid in self.left_over():
            _kill(pid)
        if self._process:
            self._process.wait(10)
        self._log.close()

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException as error:
            error.add_note(self.shown_log())
            self.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None:
            error.add_note(self.shown_log())
        self.close()


def service(name: str, environment: Mapping[str, str]) -> Process:
    """A single service (`router`, `planner` or `worker`) with its settings, not yet started."""
    return Process([sys.executable, "-m", f"outrider_{name}"], environment)


class Stack(Process):
    """A real `outrider up` on free ports; inside `with` it is ready and has a `base_url`."""

    def __init__(
        self,
        *flags: str,
        workers: int = 1,
        environment: Mapping[str, str] | None = None,
        ready_limit_s: float = START_LIMIT_S,
    ) -> None:
        self.router_port, self.planner_port, self.planner_http_port = free_ports(3)
        self.worker_port = free_port_run(workers)
        self.worker_metrics_port = free_port_run(workers)
        self.token = secrets.token_urlsafe(16)
        self._ready_limit_s = ready_limit_s
        self._folder = tempfile.TemporaryDirectory(prefix="outrider-test-")
        self._state_path = Path(self._folder.name) / "state.json"
        command = [sys.executable, "-m", "outrider_cli", "up", *self._port_flags(workers), *flags]
        own = {
            "OUTRIDER_STATE_FILE": str(self._state_path),
            "OUTRIDER_TOKEN": self.token,
            # Half of the default's rows: the first start measures each count, up to the largest.
            "OUTRIDER_WORKER_MAX_ROWS": "64",
        }
        super().__init__(command, {**own, **(environment or {})})

    @property
    def base_url(self) -> str:
        """What an OpenAI client takes as `base_url`."""
        return f"http://{LOOPBACK}:{self.router_port}/v1"

    def state(self) -> dict[str, Any]:
        """The supervisor's state file; empty before it is written."""
        try:
            state: dict[str, Any] = json.loads(self._state_path.read_text())
        except FileNotFoundError:
            return {}
        return state

    def child_pid(self, name: str) -> int:
        """The pid of `router`, `planner` or `worker-0`; KeyError while it is down."""
        pid: int = self.state()["children"][name]["pid"]
        return pid

    def kill(self, name: str, number: signal.Signals = signal.SIGKILL) -> int:
        """Send a signal to one child; returns the pid it went to."""
        pid = self.child_pid(name)
        os.kill(pid, number)
        return pid

    def wait_restarted(self, name: str, old_pid: int, limit_s: float = START_LIMIT_S) -> int:
        """Wait for another process in the place of `old_pid`; returns its pid."""

        def replaced() -> bool:
            now = self.state()["children"].get(name)
            return bool(now and now["pid"] != old_pid)

        wait_until(replaced, limit_s, f"a new {name}")
        return self.child_pid(name)

    def start(self) -> None:
        """Start and wait until the router is ready."""
        super().start()
        self.wait_ready(lambda: self.state().get("ready"), self._ready_limit_s, "a ready stack")

    def interrupt(self) -> int:
        """Ctrl-C; the exit code."""
        return self.stop(signal.SIGINT)

    def close(self) -> None:
        if self.exit_code is None and self._process:
            self._process.terminate()
            self._wait_quietly()
        super().close()
        self._folder.cleanup()

    def _wait_quietly(self) -> None:
        try:
            self.wait()
        except AssertionError as error:
            print(error, file=sys.stderr)

    def _port_flags(self, workers: int) -> list[str]:
        flags = {
            "--workers": workers,
            "--port": self.router_port,
            "--planner-port": self.planner_port,
            "--planner-http-port": self.planner_http_port,
            "--worker-port": self.worker_port,
            "--worker-metrics-port": self.worker_metrics_port,
        }
        return [part for flag, value in flags.items() for part in (flag, str(value))]


def _marked(mark: str) -> dict[int, str]:
    """Living processes (zombies left out) whose environment carries the mark."""
    wanted = f"{_MARK}={mark}".encode()
    found = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal():
            continue
        try:
            if wanted in (entry / "environ").read_bytes().split(b"\0"):
                words = (entry / "cmdline").read_bytes().split(b"\0")
                found[int(entry.name)] = b" ".join(words).decode(errors="replace").strip()
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue
    return found


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return
