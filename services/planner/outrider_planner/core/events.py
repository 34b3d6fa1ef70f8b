"""What goes into the planner core at its start and what comes out of it: settings and effects.

Knows no behaviour. Effects are carried out by the service around the core.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from outrider_planner.core.policies import Policy, parse
from outrider_planner.core.policies.two_stage import TwoStagePolicy
from outrider_planner.core.settings import DeploymentSettings
from outrider_planner.core.types import GuardSettings, Objective, Plan


@dataclass(frozen=True, slots=True)
class PlannerConfig:
    """How a planner behaves; times in the units of their names."""

    policy: Policy = field(default_factory=TwoStagePolicy)
    objective: Objective = Objective.THROUGHPUT
    latency_bound_s: float | None = None
    # From a name in a deployment's settings to its policy.
    parse: Callable[[str], Policy] = parse
    report_interval_ms: int = 250
    validity_ms: int = 5000
    grace_ms: int = 5000
    guard: GuardSettings = field(default_factory=GuardSettings)
    flush_interval_s: float = 1.0
    read_interval_s: float = 10.0
    retention_s: float = 60.0
    plain_wanted_after_s: float = 60.0
    plain_share: float = 1.0 / 256.0
    # Of the event loop's time; the rest is for streams.
    planning_share: float = 1.0 / 3.0
    plan_retry_s: float = 1.0
    # From so many workers that are alike, they are planned together; not sooner than so long after
    # their last plan, so that one plan counts many reports.
    share_from_workers: int = 8
    shared_pause_s: float = 0.04
    max_deployments: int = 64
    max_workers: int = 1024
    max_classes: int = 16
    max_context_bands: int = 8

    def default_settings(self) -> DeploymentSettings:
        """What holds for a deployment that nobody set.

        Raises:
            SettingsError: the objective latency without a bound.
        """
        return DeploymentSettings(
            policy=self.policy.name,
            objective=self.objective,
            latency_bound_s=self.latency_bound_s,
            guard=self.guard,
        )


@dataclass(frozen=True, slots=True)
class PushPlan:
    """Send a plan on a worker's current stream."""

    incarnation: str
    stream: int
    plan: Plan


@dataclass(frozen=True, slots=True)
class FlushDeltas:
    """Add integer sums to a scope of the store."""

    scope: str
    fields: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class ReadScope:
    """Read a scope's sums back and hand them to ``on_store_snapshot``."""

    scope: str


@dataclass(frozen=True, slots=True)
class StoreSettings:
    """Keep a deployment's settings, unless a newer version is there already.

    What the store then holds comes back through ``on_stored_settings``.
    """

    deployment: str
    version: int
    text: str


@dataclass(frozen=True, slots=True)
class ReadSettings:
    """Read a deployment's settings back and hand them to ``on_stored_settings``."""

    deployment: str


@dataclass(frozen=True, slots=True)
class StoreCosts:
    """Keep a measured cost table under the digest of the identity it was measured with."""

    digest: str
    text: str


@dataclass(frozen=True, slots=True)
class ReadCosts:
    """Read a cost table back and hand it to ``on_stored_costs``."""

    digest: str


@dataclass(frozen=True, slots=True)
class ForgetScope:
    """No worker uses a scope any more; nothing of it need be held ready."""

    scope: str


@dataclass(frozen=True, slots=True)
class ForgetWorker:
    """A worker left long ago; nothing need be shown of it."""

    incarnation: str


@dataclass(frozen=True, slots=True)
class HoldPlan:
    """No plan could be found for a worker; it keeps the last one.

    ``reason``: "not_finite", or "failed" where the policy raised ``error``.
    """

    incarnation: str
    reason: str
    error: Exception | None = None


@dataclass(frozen=True, slots=True)
class RefuseStored:
    """What the store holds of a deployment or an identity cannot be used here."""

    scope: str
    reason: str


@dataclass(frozen=True, slots=True)
class WarmStart:
    """A worker's plan rests on what others learned; ``sentence`` says on what. Once per worker."""

    incarnation: str
    deployment: str
    sentence: str


@dataclass(frozen=True, slots=True)
class ReportOutcome:
    """What a report brought: rejections by reason, and what grew since the last one.

    ``drifts``: classes in which acceptance turned out to have changed.
    """

    rejected: Counter[str]
    dropped_rounds: int = 0
    clamps: int = 0
    guard_trips: int = 0
    drifts: int = 0
    guard_readmissions: int = 0


Effect = (
    HoldPlan
    | RefuseStored
    | WarmStart
    | PushPlan
    | FlushDeltas
    | ReadScope
    | StoreSettings
    | ReadSettings
    | StoreCosts
    | ReadCosts
    | ForgetScope
    | ForgetWorker
)
