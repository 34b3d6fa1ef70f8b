"""Engines over one assembled worker, stepped by hand; each under a fixed plan or a planner's.

*In process* means that nothing is sent: a planned engine's reports go through the wire's own codecs
into the planner's core and its plans come back the same way, but no stream lies in between. Knows
neither prompts nor what is measured.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from outrider.planner.v1 import planner_pb2 as wire
from outrider_planner.core.events import HoldPlan, PlannerConfig, PushPlan
from outrider_planner.core.planner import Planner
from outrider_planner.core.policies import parse
from outrider_planner.rpc.codec import hello_from_wire, reports_from_wire
from outrider_planner.rpc.plans import plan_to_wire
from outrider_worker.assembly import Assembly
from outrider_worker.engine.engine import Engine, EngineParts
from outrider_worker.engine.guard import Guard
from outrider_worker.engine.inbox import Submit
from outrider_worker.engine.pages import PageAccount
from outrider_worker.engine.plan_book import PlanBook
from outrider_worker.engine.plans import OFF, DrafterBudget, Plan
from outrider_worker.engine.prefix_cache import PrefixCache
from outrider_worker.engine.records import RoundRecord
from outrider_worker.engine.scheduler import Scheduler
from outrider_worker.engine.tally import RecordRing
from outrider_worker.engine.types import RequestSpec, TokenNews
from outrider_worker.kv import PAGE_TOKENS
from outrider_worker.planner_client.client import Introduction
from outrider_worker.planner_client.convert import plan_from_wire, reports_to_wire

_STREAM = 1
# Rounds that took far too long: their drafts count all the same, their times do not.
_OF_A_BUSY_MACHINE = {"time_out_of_range"}


@dataclass(frozen=True)
class Decoded:
    """What became of requests that were decoded together.

    records: the rounds in which all of them decoded and nobody was prefilled. seconds: what those
    took, host time included and the planner's left out.
    """

    token_ids: Mapping[str, tuple[int, ...]]
    records: tuple[RoundRecord, ...]
    seconds: float

    def __post_init__(self) -> None:
        if not self.records:
            raise RuntimeError("no round in which all requests decoded: ask for longer answers")

    @property
    def tokens_per_s(self) -> float:
        return sum(record.emitted_tokens for record in self.records) / self.seconds

    @property
    def tokens_per_round(self) -> float:
        """Of one request."""
        return sum(record.emitted_tokens for record in self.records) / self._request_rounds

    @property
    def verified_per_round(self) -> float:
        """Drafts of one request."""
        return sum(record.verified_tokens for record in self.records) / self._request_rounds

    @property
    def _request_rounds(self) -> int:
        return sum(record.requests for record in self.records)


class Planning(Protocol):
    """Whose plans an engine has."""

    def plan(self, begun: bool) -> Plan:
        """The present one; `begun`: all requests decode."""
        ...

    def after_step(self, records: Sequence[RoundRecord], now_s: float) -> None:
        """What the step left behind."""
        ...


@dataclass(frozen=True)
class FixedPlan:
    """One plan for ever, of whose drafts none is verified until all requests decode.

    Requests that are let in one after the other would else be far apart, and the faster a drafter,
    the fewer rounds would have all of them. Drafters' states are kept up meanwhile.
    """

    fixed: Plan

    def plan(self, begun: bool) -> Plan:
        """Whatever happened."""
        return self.fixed if begun else _verifying_none(self.fixed)

    def after_step(self, records: Sequence[RoundRecord], now_s: float) -> None:
        """Nobody is told."""


class PlannerCore:
    """The planner's core, for one worker and without a store. It starts cold."""

    def __init__(self, assembly: Assembly, parts: EngineParts, policy: str) -> None:
        self._parts = parts
        self._planner = Planner(PlannerConfig(policy=parse(policy)))
        self._incarnation = assembly.incarnation
        self._ring = RecordRing()
        self._sequence = 0
        self._present, self._reported_s = OFF, time.monotonic()
        hello = hello_from_wire(_hello(assembly, parts))
        self._planner.on_hello(hello, _STREAM, self._reported_s)
        self._plan(self._reported_s)

    def plan(self, begun: bool) -> Plan:
        """The last one that was pushed."""
        return self._present

    def after_step(self, records: Sequence[RoundRecord], now_s: float) -> None:
        """Report as often as the plan wants it; a plan that is due is in force with the next step.

        Raises RuntimeError where the planner refuses a report or holds its plan.
        """
        for record in records:
            self._ring.append(record)
        if now_s - self._reported_s < self._present.report_interval_s:
            return
        self._reported_s = now_s
        taken = self._ring.take()
        if any(record.requests or record.outcomes for record in taken):
            self._report(taken, now_s)
        self._planner.on_tick(now_s)
        self._plan(now_s)

    def _report(self, records: Sequence[RoundRecord], now_s: float) -> None:
        self._sequence += 1
        guard = self._parts.guard.snapshot()
        message = reports_to_wire(self._sequence, records, guard, 0, self._ring.dropped_rounds)
        reports = reports_from_wire(message)
        outcome = self._planner.on_reports(self._incarnation, _STREAM, reports, now_s)
        if refused := set(outcome.rejected) - _OF_A_BUSY_MACHINE:
            raise RuntimeError(f"the planner refused a report: {', '.join(refused)}")

    def _plan(self, now_s: float) -> None:
        due = self._planner.next_due()
        if due is None or due[0] > now_s:
            return
        for effect in self._planner.plan(self._incarnation, now_s):
            if isinstance(effect, HoldPlan):
                raise RuntimeError(f"no plan was found: {effect.reason}") from effect.error
            if isinstance(effect, PushPlan):
                self._present = plan_from_wire(plan_to_wire(effect.plan))
        took_s = time.monotonic() - now_s
        self._planner.planned(self._incarnation, now_s + took_s, took_s)


class SteppedEngine:
    """An engine of its own over the worker's model and seats; one of them decodes at a time."""

    def __init__(self, parts: EngineParts, planning: Planning) -> None:
        self._planning = planning
        self._book = parts.plans
        self._texts: dict[str, list[int]] = {}
        self._records: list[RoundRecord] = []
        self._engine = Engine(parts, self._on_news, self._records.append)

    @classmethod
    def fixed(cls, assembly: Assembly, plan: Plan) -> SteppedEngine:
        """Does what the plan says whatever it costs: no guard."""
        return cls(_own_parts(assembly, Guard(enabled=False)), FixedPlan(plan))

    @classmethod
    def planned(cls, assembly: Assembly, policy: str) -> SteppedEngine:
        """As served: a planner that learns from request to request, and the guard."""
        parts = _own_parts(assembly, Guard())
        return cls(parts, PlannerCore(assembly, parts, policy))

    def decode(self, specs: Sequence[RequestSpec]) -> Decoded:
        """All of them at once, to their ends; the first round of all is left out."""
        self._texts = {spec.key.request_id: [] for spec in specs}
        for spec in specs:
            self._engine.inbox.put(Submit(spec))
        kept: list[RoundRecord] = []
        seconds, begun = 0.0, False
        while not self._engine.idle:
            self._put(self._planning.plan(begun))
            records, took_s = self._step()
            if _all_decode(records, len(specs)):
                kept += records if begun else ()
                seconds += took_s if begun else 0.0
                begun = True
        texts = {name: tuple(ids) for name, ids in self._texts.items()}
        return Decoded(texts, tuple(kept), seconds)

    def _step(self) -> tuple[tuple[RoundRecord, ...], float]:
        """The records of one step, and its seconds without the planning behind it."""
        started_s = time.perf_counter()
        self._engine.step()
        took_s = time.perf_counter() - started_s
        records, self._records[:] = tuple(self._records), ()
        self._planning.after_step(records, time.monotonic())
        return records, took_s

    def _put(self, plan: Plan) -> None:
        """In force with the next step, by a stream of its own: whatever version came before."""
        stream, known = self._book.open_stream(), replace(plan, version=max(plan.version, 1))
        self._book.offer(stream, known, time.monotonic())

    def _on_news(self, _round: int, news: Sequence[TokenNews]) -> None:
        for each in news:
            self._texts[each.key.request_id].extend(each.token_ids)


def _all_decode(records: Sequence[RoundRecord], requests: int) -> bool:
    """All take part in the round, and nobody was prefilled."""
    return bool(records) and all(
        record.requests == requests and not record.prefill_tokens for record in records
    )


def _verifying_none(plan: Plan) -> Plan:
    """The same drafts, and no row for any of them."""
    budgets = {
        name: DrafterBudget(
            budget.draft_tokens,
            tuple(
                (n,) * len(rows)
                for n, rows in zip(plan.requests_ladder, budget.target_rows, strict=True)
            ),
        )
        for name, budget in plan.budgets.items()
    }
    return replace(plan, budgets=budgets)


def _own_parts(assembly: Assembly, guard: Guard) -> EngineParts:
    """The worker's parts with queues, pages and plans of its own, and no prefix cache."""
    parts = assembly.parts
    pages = PageAccount(
        parts.pages.capacity_pages + 1, PAGE_TOKENS, PrefixCache(PAGE_TOKENS, enabled=False)
    )
    scheduler = Scheduler(parts.scheduler.limits, pages)
    return replace(parts, scheduler=scheduler, pages=pages, plans=PlanBook(), guard=guard)


def _hello(assembly: Assembly, parts: EngineParts) -> wire.Hello:
    introduction = Introduction(
        deployment=assembly.deployment,
        incarnation=assembly.incarnation,
        address="",
        identity=assembly.identity,
        limits=parts.scheduler.limits,
        max_draft_tokens=parts.max_draft_tokens,
        kv_capacity_tokens=parts.pages.capacity_pages * parts.pages.page_tokens,
        row_buckets=assembly.row_ladder,
        drafters=assembly.drafter_traits,
        costs=parts.costs,
    )
    return introduction.hello()
