"""One planner process under a fleet: CPU, memory, and how soon a report becomes a plan.

    python -m benchmarks.planner_scale [--streams 1000 --interval 1.0 --seconds 60]

The planner is the real one, in a process of its own; simulated workers (benchmarks.planner_workers)
are in others and talk to it over real gRPC on loopback. CPU is that of the planner's process alone,
so it says the same on a busy machine; latency is measured by probes, workers that share a plan with
nobody, and by the planner for all reports that count for a plan. Two cases by default: 1,000
streams at one report a second, and 100 at ten. The planner and the workers need a core each, and
what the workers took is in the result: where they share one with others, or are two threads of
one, run it with priority (nice, chrt), and read the result as a lower bound.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.measure import write_result
from tests.support.net import LOOPBACK, free_ports, http_get, wait_until

CORES, LATENCY_MS = 1.0, 50.0
_PROCESSES = 2
_JOIN_S, _WARM_UP_S = 10.0, 25.0
_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Case:
    """``probes`` of the streams have a deployment of their own."""

    streams: int
    interval_s: float
    seconds: float
    probes: int = 2


@dataclass
class Planner:
    """A planner's process."""

    process: subprocess.Popen[bytes]
    port: int
    http_port: int

    def cpu_s(self) -> float:
        """User and system time so far."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / _TICKS

    def memory_mib(self) -> float:
        """Resident now."""
        lines = Path(f"/proc/{self.process.pid}/status").read_text().splitlines()
        return next(int(ln.split()[1]) / 1024 for ln in lines if ln.startswith("VmRSS"))

    def histogram(self, name: str) -> dict[float, float]:
        """Cumulated counts by upper bound, summed over labels."""
        found: dict[float, float] = {}
        for line in http_get(self.http_port, "/metrics")[1].decode().splitlines():
            if line.startswith(f"{name}_bucket"):
                labels, _, count = line.rpartition(" ")
                bound = float(labels.partition('le="')[2].partition('"')[0])
                found[bound] = found.get(bound, 0.0) + float(count)
        return found


@contextmanager
def planner() -> Iterator[Planner]:
    """With the embedded store; limits as by default."""
    port, http_port = free_ports(2)
    settings = {"GRPC_PORT": port, "HTTP_PORT": http_port, "REPORT_INTERVAL_MS": 100}
    names = {f"OUTRIDER_PLANNER_{name}": str(value) for name, value in settings.items()}
    process = subprocess.Popen(
        [sys.executable, "-m", "outrider_planner"],
        env={**os.environ, **names, "OUTRIDER_LOG_LEVEL": "warning", "OMP_NUM_THREADS": "1"},
    )
    try:
        wait_until(lambda: http_get(http_port, "/health")[0] == 200, 60.0, "a ready planner")
        yield Planner(process, port, http_port)
    finally:
        process.terminate()
        process.wait(20)


def measured(case: Case) -> dict[str, Any]:
    """One case, its numbers and whether it meets the targets."""
    with planner() as running:
        workers = [_workers(case, running.port, part) for part in range(_PROCESSES)]
        time.sleep(_WARM_UP_S)
        cpu_s, began_s, memory_mib = running.cpu_s(), time.monotonic(), running.memory_mib()
        before = running.histogram("outrider_planner_report_to_plan_seconds")
        time.sleep(case.seconds)
        wall_s = time.monotonic() - began_s
        cores = (running.cpu_s() - cpu_s) / wall_s
        after = running.histogram("outrider_planner_report_to_plan_seconds")
        memory_end_mib = running.memory_mib()
        totals = [json.loads(process.communicate(timeout=60)[0]) for process in workers]
    latencies_ms = sorted(value for each in totals for value in each["latencies_ms"])
    probe_ms = latencies_ms[len(latencies_ms) // 2] if latencies_ms else float("inf")
    median_ms = 1e3 * _median({le: after[le] - before.get(le, 0.0) for le in after})
    return {
        "streams": case.streams,
        "interval_s": case.interval_s,
        "cores": round(cores, 3),
        "workers_cores": round(sum(each["cores"] for each in totals), 3),
        "probe_median_ms": round(probe_ms, 1),
        "all_median_ms": round(median_ms, 1),
        "memory_mib": round(memory_end_mib, 1),
        "growth_mib": round(memory_end_mib - memory_mib, 1),
        "reports": sum(each["reports"] for each in totals),
        "plans": sum(each["plans"] for each in totals),
        "planned_streams": sum(each["planned_streams"] for each in totals),
        "lost_streams": sum(each["ended"] for each in totals),
        "reasons": sorted({reason for each in totals for reason in each["reasons"]}),
        "met": cores <= CORES and max(probe_ms, median_ms) <= LATENCY_MS,
    }


def _workers(case: Case, port: int, part: int) -> subprocess.Popen[bytes]:
    """One process with its part of the streams."""
    streams = case.streams // _PROCESSES
    options = {
        "--first": part * streams,
        "--streams": streams,
        "--probes": case.probes // _PROCESSES,
        "--interval": case.interval_s,
        "--join": _JOIN_S,
        "--seconds": _WARM_UP_S + case.seconds,
    }
    words = [str(word) for option in options.items() for word in option]
    return subprocess.Popen(
        [sys.executable, "-m", "benchmarks.planner_workers", f"{LOOPBACK}:{port}", *words],
        stdout=subprocess.PIPE,
    )


def _median(cumulated: Mapping[float, float]) -> float:
    """The bound below which half of all lie; linear inside a bucket."""
    whole, low, below = max(cumulated.values(), default=0.0), 0.0, 0.0
    for bound, count in sorted(cumulated.items()):
        if whole and count >= whole / 2:
            return low + (bound - low) * (whole / 2 - below) / (count - below)
        low, below = bound, count
    return float("inf")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--streams", type=int)
    parser.add_argument("--interval", type=float, default=1.0)
    parser.add_argument("--seconds", type=float, default=60.0)
    options = parser.parse_args()
    cases = [Case(1000, 1.0, options.seconds), Case(100, 0.1, options.seconds)]
    if options.streams:
        cases = [Case(options.streams, options.interval, options.seconds)]
    rows = [measured(case) for case in cases]
    for row in rows:
        print(json.dumps(row))
    write_result("planner_scale", vars(options), rows)
    return 0 if all(row["met"] for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
