"""Hellos, reports and a small round-level world for the planner's tests."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from outrider_planner.core.events import PushPlan
from outrider_planner.core.planner import Planner
from outrider_planner.core.types import (
    AcceptanceCell,
    CostCurve,
    CostTable,
    DraftCostGrid,
    DrafterCosts,
    DrafterTraits,
    EngineIdentity,
    GuardState,
    Hello,
    Plan,
    RoundColumns,
    StepReports,
    WorkerLimits,
)

ROWS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)


def target_us(rows: int) -> int:
    """A CPU-like pass: 10 ms, and 1 ms for every row."""
    return 10_000 + 1_000 * rows


def make_table(
    *,
    target: Callable[[int], int] = target_us,
    draft_us: int = 200,
    rows: Sequence[int] = ROWS,
    max_draft: int = 8,
    contexts: Sequence[int] = (512,),
) -> CostTable:
    pairs = [(n, d) for n in (1, 8, 32) for d in range(1, max_draft + 1)]
    grids = tuple(
        DraftCostGrid(
            context,
            tuple(n for n, _ in pairs),
            tuple(d for _, d in pairs),
            tuple(draft_us * d for _, d in pairs),
        )
        for context in contexts
    )
    curves = tuple(
        CostCurve(context, tuple(rows), tuple(target(row) for row in rows)) for context in contexts
    )
    return CostTable(curves, (DrafterCosts("ngram", draft=grids),))


def make_hello(
    *,
    incarnation: str = "worker-1",
    deployment: str = "demo",
    requests: int = 8,
    max_draft: int = 4,
    max_rows: int = 128,
    sparse: bool = False,
    bins: int = 1,
    table: CostTable | None = None,
    drafter: str = "ngram",
    **changes: Any,
) -> Hello:
    traits = DrafterTraits(drafter, max_draft_tokens=max_draft, sparse=sparse, score_bins=bins)
    hello = Hello(
        deployment=deployment,
        worker_incarnation=incarnation,
        identity=EngineIdentity(model="tiny", model_digest="abc", drafters=(drafter,)),
        limits=WorkerLimits(requests, max_rows, max_draft),
        row_buckets=ROWS,
        drafters=(traits,),
        cost_table=table or make_table(max_draft=max_draft),
    )
    return replace(hello, **changes)


def column(values: Sequence[int]) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
    return np.array(list(values), dtype=np.int64)


def make_rounds(
    count: int = 4, *, requests: int = 2, carried: int = 2, **changes: int
) -> RoundColumns:
    """Rounds that all look alike and verify everything carried."""
    rows = requests * (1 + carried)
    values = {
        "requests": requests,
        "carried_draft_tokens": carried,
        "pool_tokens": requests * carried,
        "target_rows": rows,
        "bucket_rows": rows,
        "request_context_tokens": 100 * requests,
        "target_us": target_us(rows),
        "feed_us": 0,
        "draft_us": 200 * carried,
        "exposed_host_us": 100,
        "emitted_tokens": requests,
        "accepted_tokens": 0,
        "next_draft_tokens": carried,
        **changes,
    }
    return RoundColumns(**{name: column([value] * count) for name, value in values.items()})


def make_cell(
    drafted: Sequence[int] = (8, 8),
    verified: Sequence[int] = (8, 8),
    accepted: Sequence[int] = (4, 2),
    *,
    asked: int | None = None,
    request_class: str = "greedy",
    drafter: str = "ngram",
    **changes: Any,
) -> AcceptanceCell:
    most = max([*drafted, 0]) if asked is None else asked
    empty = column([])
    cell = AcceptanceCell(
        drafter=drafter,
        request_class=request_class,
        context_band=0,
        asked=most,
        asked_by_position=column([most] * len(drafted)),
        drafted=column(drafted),
        verified=column(verified),
        accepted=column(accepted),
        bin_position=empty,
        bin=empty,
        bin_drafted=empty,
        bin_verified=empty,
        bin_accepted=empty,
    )
    return replace(cell, **changes)


def make_report(
    sequence: int = 1,
    rounds: RoundColumns | None = None,
    *cells: AcceptanceCell,
    guard: GuardState | None = None,
    **changes: int,
) -> StepReports:
    return StepReports(
        sequence=sequence,
        rounds=make_rounds() if rounds is None else rounds,
        cells=cells,
        guard=guard,
        **changes,
    )


def plans(effects: Sequence[object]) -> list[Plan]:
    return [effect.plan for effect in effects if isinstance(effect, PushPlan)]


@dataclass
class World:
    """One worker that obeys its plans; acceptance and load are set from outside.

    Time is virtual: every round takes what the true cost says. ``tokens`` and ``busy_s`` add up
    over all rounds. So many ``newcomers`` of the requests have no drafts yet, in every round.
    """

    planner: Planner
    hello: Hello
    acceptance: float
    requests: int = 1
    target: Callable[[int], int] = target_us
    draft_us: int = 200
    host_us: int = 100
    seed: int = 0
    now_s: float = 0.0
    tokens: int = 0
    busy_s: float = 0.0
    plans: list[Plan] = field(default_factory=list)
    drafting_rounds: int = 0
    newcomers: int = 0

    def __post_init__(self) -> None:
        self._rng = np.random.default_rng(self.seed)
        self._carried, self._phase, self._sequence = 0, 0.0, 0
        self._plain_phase = 0.0
        self._probing = False
        self.planner.on_hello(self.hello, 1, self.now_s)
        self.plans += plans(self.planner.replan(self.now_s))

    @property
    def plan(self) -> Plan:
        return self.plans[-1]

    def run(self, rounds: int, per_report: int = 8) -> None:
        """Plays rounds, with a report after every few of them."""
        for _ in range(0, rounds, per_report):
            self._report([self._round() for _ in range(per_report)])

    def _round(self) -> dict[str, Any]:
        n, step = self.requests, self._step()
        carried = self._carried
        budget = self.plan.drafters[0].target_rows[step][carried] - self.plan.requests_ladder[step]
        old = n - self.newcomers
        verify = old * carried if self._probing else min(budget, old * carried)
        # Breadth-first: position by position over all requests.
        lengths = [min(carried, verify // old + (r < verify % old)) for r in range(old)]
        accepted = [self._accepted(length) for length in lengths]
        self._carried = self._next_draft(step)
        micros = self.target(n + verify)
        draft_us = self.draft_us * self._carried
        self.tokens += n + sum(accepted)
        round_s = (micros + draft_us + self.host_us) * 1e-6
        self.busy_s += round_s
        self.now_s += round_s
        self.drafting_rounds += carried > 0
        return {
            "carried": carried,
            "lengths": lengths,
            "accepted": accepted,
            "target_us": micros,
            "draft_us": draft_us,
            "next": self._carried,
        }

    def _accepted(self, length: int) -> int:
        hits = self._rng.random(length) < self.acceptance
        return int(np.cumprod(hits).sum())

    def _step(self) -> int:
        return next(i for i, n in enumerate(self.plan.requests_ladder) if n >= self.requests)

    def _next_draft(self, step: int) -> int:
        planned = self.plan.drafters[0].draft_tokens[step]
        self._probing = False
        if planned:
            self._plain_phase += self.plan.probe.plain_share
            if self._plain_phase >= 1.0:
                self._plain_phase -= 1.0
                return 0
            return planned
        self._phase += self.plan.probe.cohort_share
        if self._phase < 1.0 or not self.plan.probe.draft_tokens:
            return 0
        self._phase -= 1.0
        self._probing = True
        return self.plan.probe.draft_tokens

    def _report(self, rounds: list[dict[str, Any]]) -> None:
        self._sequence += 1
        n = self.requests
        rows = [n + sum(r["lengths"]) for r in rounds]
        columns = RoundColumns(
            requests=column([n] * len(rounds)),
            carried_draft_tokens=column([r["carried"] for r in rounds]),
            pool_tokens=column([(n - self.newcomers) * r["carried"] for r in rounds]),
            target_rows=column(rows),
            bucket_rows=column(rows),
            request_context_tokens=column([200 * n] * len(rounds)),
            target_us=column([r["target_us"] for r in rounds]),
            feed_us=column([0] * len(rounds)),
            draft_us=column([r["draft_us"] for r in rounds]),
            exposed_host_us=column([self.host_us] * len(rounds)),
            emitted_tokens=column([n + sum(r["accepted"]) for r in rounds]),
            accepted_tokens=column([sum(r["accepted"]) for r in rounds]),
            next_draft_tokens=column([r["next"] for r in rounds]),
        )
        cells = (self._cell(rounds),) if any(r["carried"] for r in rounds) else ()
        report = StepReports(self._sequence, columns, cells)
        outcome = self.planner.on_reports(self.hello.worker_incarnation, 1, report, self.now_s)
        assert not outcome.rejected, outcome
        self.planner.on_tick(self.now_s)
        self.plans += plans(self.planner.replan(self.now_s))

    def _cell(self, rounds: list[dict[str, Any]]) -> AcceptanceCell:
        most = max(r["carried"] for r in rounds)
        old = self.requests - self.newcomers
        drafted = [old * sum(r["carried"] > j for r in rounds) for j in range(most)]
        verified = [sum(v > j for r in rounds for v in r["lengths"]) for j in range(most)]
        accepted = [sum(a > j for r in rounds for a in r["accepted"]) for j in range(most)]
        return make_cell(drafted, verified, accepted)
