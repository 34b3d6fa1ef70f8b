"""A planner core that writes down what goes into it, and the plans that come out.

Knows which inputs can change a decision; those that cannot, like most ticks, are left out. What a
log begins with after a rotation is written again, so that every piece can be replayed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from typing import Any, Protocol

from outrider_planner.core.events import (
    Effect,
    ForgetScope,
    ForgetWorker,
    HoldPlan,
    PlannerConfig,
    PushPlan,
    ReportOutcome,
)
from outrider_planner.core.planner import Planner
from outrider_planner.core.settings import DeploymentSettings
from outrider_planner.core.sums import weigh
from outrider_planner.core.types import Hello, StepReports
from outrider_planner.log.entries import Entry, plan_values

# Not values: the policy is logged by its name, and names are parsed anew.
_NOT_LOGGED = frozenset({"policy", "parse"})


class Journal(Protocol):
    """Takes entries; never waits, never raises."""

    def put(self, entry: Entry) -> None:
        """Takes an entry, or counts it as lost."""
        ...

    def wants_head(self) -> bool:
        """True once after every rotation: what is to come should make sense without the past."""
        ...


class RecordedPlanner(Planner):
    """The same planner; every input that matters goes to the journal."""

    def __init__(self, config: PlannerConfig, journal: Journal) -> None:
        super().__init__(config)
        self._journal = journal
        self._now_s = 0.0
        # What a later beginning of the log must hold again, by digest and by scope.
        self._tables: dict[str, str] = {}
        self._weighed: dict[str, Mapping[str, float]] = {}

    def on_hello(self, hello: Hello, stream: int, now_s: float) -> list[Effect]:
        self._begin(now_s)
        effects = super().on_hello(hello, stream, now_s)
        self._put("hello", now_s, hello=hello, stream=stream)
        return effects

    def on_reports(
        self, incarnation: str, stream: int, report: StepReports, now_s: float
    ) -> ReportOutcome:
        outcome = super().on_reports(incarnation, stream, report, now_s)
        self._put("report", now_s, worker=incarnation, stream=stream, report=report)
        return outcome

    def on_gone(self, incarnation: str, stream: int, now_s: float) -> None:
        super().on_gone(incarnation, stream, now_s)
        self._put("gone", now_s, worker=incarnation, stream=stream)

    def on_store_snapshot(
        self, scope: str, buckets_newest_first: Sequence[Mapping[str, float]]
    ) -> None:
        """Logged as one weighed bucket, which is what the core makes of all of them."""
        weighed = weigh(buckets_newest_first)
        super().on_store_snapshot(scope, (weighed,))
        if self._weighed.get(scope) != weighed:
            self._weighed[scope] = weighed
            self._put("sums", self._now_s, scope=scope, sums=weighed)

    def on_settings(
        self, deployment: str, settings: DeploymentSettings, now_s: float
    ) -> list[Effect]:
        effects = super().on_settings(deployment, settings, now_s)
        self._put_settings(deployment, now_s)
        return effects

    def on_stored_settings(self, deployment: str, text: str | None) -> list[Effect]:
        before = self.settings.of(deployment).settings
        effects = super().on_stored_settings(deployment, text)
        if self.settings.of(deployment).settings != before:
            self._put_settings(deployment, self._now_s)
        return effects

    def on_stored_costs(self, digest: str, text: str | None) -> list[Effect]:
        without = [w for w in self.workers.values() if not w.costs.has_table]
        effects = super().on_stored_costs(digest, text)
        if text is not None and any(worker.costs.has_table for worker in without):
            self._tables[digest] = text
            self._put("costs", self._now_s, digest=digest, text=text)
        return effects

    def on_tick(self, now_s: float) -> list[Effect]:
        effects = super().on_tick(now_s)
        if any(isinstance(effect, ForgetWorker | ForgetScope) for effect in effects):
            self._put("tick", now_s)
            self._forget_unused()
        return effects

    def plan(self, incarnation: str, now_s: float) -> list[Effect]:
        effects = super().plan(incarnation, now_s)
        held = any(isinstance(effect, HoldPlan) for effect in effects)
        self._put("plan", now_s, worker=incarnation, held=held, plans=_pushed(effects))
        return effects

    def _put(self, kind: str, now_s: float, **values: Any) -> None:
        """An entry, behind a beginning where the journal wants one."""
        self._begin(now_s)
        self._journal.put(Entry(kind, now_s, values))

    def _begin(self, now_s: float) -> None:
        self._now_s = now_s
        if self._journal.wants_head():
            for entry in self._head(now_s):
                self._journal.put(entry)

    def _put_settings(self, deployment: str, now_s: float) -> None:
        text = self.settings.of(deployment).settings.to_json()
        self._put("settings", now_s, deployment=deployment, text=text)

    def _head(self, now_s: float) -> Iterator[Entry]:
        """The configuration and whoever is present; what their rounds taught is not repeated."""
        yield Entry("start", now_s, {"config": self._config_values()})
        for scope, sums in self._weighed.items():
            yield Entry("sums", now_s, {"scope": scope, "sums": sums})
        for deployment in sorted(self._deployments()):
            text = self.settings.of(deployment).settings.to_json()
            yield Entry("settings", now_s, {"deployment": deployment, "text": text})
        for worker in self.workers.values():
            if worker.connected:
                values = {"hello": worker.hello, "stream": worker.stream}
                yield Entry("present", now_s, values)
        for digest, text in self._tables.items():
            yield Entry("costs", now_s, {"digest": digest, "text": text})

    def _config_values(self) -> dict[str, Any]:
        names = [item.name for item in fields(PlannerConfig) if item.name not in _NOT_LOGGED]
        plain = {name: getattr(self.config, name) for name in names}
        return {**plain, "policy": self.config.policy.name}

    def _forget_unused(self) -> None:
        used = {worker.stored_table for worker in self.workers.values()}
        self._tables = {digest: text for digest, text in self._tables.items() if digest in used}
        scopes = self._used_scopes()
        self._weighed = {scope: sums for scope, sums in self._weighed.items() if scope in scopes}


def _pushed(effects: Sequence[Effect]) -> list[dict[str, Any]]:
    """Plans with the workers that got them: those that are planned together get the same one."""
    plans: list[dict[str, Any]] = []
    for effect in effects:
        if isinstance(effect, PushPlan):
            values, version = plan_values(effect.plan), effect.plan.version
            if not plans or plans[-1]["plan"] != values:
                plans.append({"workers": {}, "plan": values})
            plans[-1]["workers"][effect.incarnation] = version
    return plans
