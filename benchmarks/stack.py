"""A stack of real processes for benchmarks: `outrider up` until the block ends."""

import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

PORT, PLANNER_PORT, PLANNER_HTTP_PORT, WORKER_PORT, METRICS_PORT = 18000, 17070, 17071, 17080, 17180


@contextmanager
def running_stack(flags: Sequence[str] = (), limit_s: float = 300.0) -> Iterator[str]:
    """Starts a stack on ports of its own; gives the base URL of its API."""
    ports = {
        "--port": PORT,
        "--planner-port": PLANNER_PORT,
        "--planner-http-port": PLANNER_HTTP_PORT,
        "--worker-port": WORKER_PORT,
        "--worker-metrics-port": METRICS_PORT,
    }
    words = [word for flag, port in ports.items() for word in (flag, str(port))]
    process = subprocess.Popen(
        [sys.executable, "-m", "outrider_cli", "up", *words, *flags],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "OUTRIDER_LOG_LEVEL": "warning"},
    )
    try:
        _wait_ready(process, limit_s)
        yield f"http://127.0.0.1:{PORT}/v1"
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)


def _wait_ready(process: "subprocess.Popen[bytes]", limit_s: float) -> None:
    end_s = time.monotonic() + limit_s
    while time.monotonic() < end_s:
        if process.poll() is not None:
            raise RuntimeError(f"the stack ended with {process.returncode} before it was ready")
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{PORT}/ready", timeout=2):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.5)
    raise RuntimeError(f"the stack was not ready within {limit_s:g} s")
