"""A planner core with one worker that has joined, and short ways to talk to it."""

from collections.abc import Sequence

from outrider_planner.core.events import FlushDeltas, PlannerConfig
from outrider_planner.core.planner import Planner
from outrider_planner.core.types import Hello, Plan, StepReports
from tests.unit.planner.builders import make_cell, make_hello, plans

HELLO = make_hello()
GOOD = make_cell((16, 16), (16, 16), (15, 14))
BAD = make_cell((16, 16), (16, 16), (0, 0))


def joined(config: PlannerConfig | None = None, hello: Hello = HELLO) -> tuple[Planner, Plan]:
    planner = Planner(config or PlannerConfig())
    planner.on_hello(hello, 1, 0.0)
    (first,) = plans(planner.replan(0.0))
    return planner, first


def told(planner: Planner, report: StepReports, now_s: float, stream: int = 1) -> Sequence[Plan]:
    planner.on_reports("worker-1", stream, report, now_s)
    return plans(planner.replan(now_s))


def flushed(planner: Planner) -> dict[str, dict[str, int]]:
    return {
        effect.scope: dict(effect.fields)
        for effect in planner.flush()
        if isinstance(effect, FlushDeltas)
    }
