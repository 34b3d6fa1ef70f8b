"""The plan in force: who may set it, how long it holds, and what a worker can really do of it.

The planner's side writes from another thread; the engine reads one reference at a round's start
and never waits. Time comes in as monotonic seconds.
"""

import threading
from dataclasses import dataclass

from outrider_worker.engine.plans import OFF, Plan


@dataclass(frozen=True, slots=True)
class _Entry:
    plan: Plan
    stream: int
    renewed_s: float


class PlanBook:
    """Obeys plans of the current stream only, versions growing within it."""

    def __init__(self) -> None:
        self._entry = _Entry(OFF, 0, 0.0)
        self._stream = 0
        self._last_version = 0
        self._write = threading.Lock()
        self.refused_plans = 0

    def open_stream(self) -> int:
        """A new stream to a planner: from now on only its plans count."""
        with self._write:
            self._stream += 1
            self._last_version = 0
            return self._stream

    def offer(self, stream: int, plan: Plan, now_s: float) -> bool:
        """Put a plan in force; False (and counted) when its stream or version is an old one."""
        with self._write:
            if stream != self._stream or plan.version <= self._last_version:
                self.refused_plans += 1
                return False
            self._last_version = plan.version
            self._entry = _Entry(plan, stream, now_s)
            return True

    def renew(self, stream: int, now_s: float) -> None:
        """A planner's heartbeat: its plan holds on. An older stream's plan is not renewed."""
        with self._write:
            entry = self._entry
            if stream == self._stream == entry.stream:
                self._entry = _Entry(entry.plan, stream, now_s)

    def in_force(self, now_s: float) -> Plan:
        """The plan to execute now: the last one through validity and grace, then off."""
        entry = self._entry
        plan = entry.plan
        if now_s - entry.renewed_s > plan.validity_s + plan.grace_s:
            return OFF
        return plan

    def age_s(self, now_s: float) -> float:
        """Seconds since the plan in the book was last renewed; 0 without one."""
        entry = self._entry
        return now_s - entry.renewed_s if entry.plan is not OFF else 0.0
