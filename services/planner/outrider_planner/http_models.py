"""The bodies that the side port takes, as models: what FastAPI checks, and describes as OpenAPI.

Knows shapes and sizes. Whether values make sense together is checked by the core, with words.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from outrider_planner.core.settings import (
    MOST_CLASS_CHARACTERS,
    MOST_CLASS_RULES,
    MOST_POLICY_CHARACTERS,
    MOST_SHADOWS,
    DeploymentSettings,
)
from outrider_planner.core.shared_costs import table_from_values
from outrider_planner.core.types import MAX_DRAFT_TOKENS, Objective
from outrider_planner.core.whatif import CostRatios, Question

Policy = Annotated[str, Field(min_length=1, max_length=MOST_POLICY_CHARACTERS)]
DraftTokens = Annotated[int, Field(ge=0, le=MAX_DRAFT_TOKENS)]
Probability = Annotated[float, Field(ge=0, le=1)]
Label = Annotated[str, Field(min_length=1, max_length=MOST_CLASS_CHARACTERS)]
Ratio = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid")


class ClassRuleBody(_Body):
    """Weight of a class's drafts, 1 being neutral, and a cap on their length."""

    request_class: Label
    weight: float = 1.0
    max_draft_tokens: DraftTokens | None = None


class GuardBody(_Body):
    """How the workers' guards are sized; no setting can switch them off."""

    enabled: Literal[True] = True
    minimum_threshold_tokens: float = 8.0
    detectable_loss_ratio: float = 0.02


class SettingsBody(_Body):
    """All settings of a deployment: what is left out goes back to its default.

    ``version``: the one that was read, so that nobody's change is lost; left out, the present one.
    """

    policy: Policy = "two_stage"
    objective: Objective = Objective.THROUGHPUT
    latency_bound_s: float | None = None
    max_draft_tokens: DraftTokens | None = None
    class_rules: Annotated[list[ClassRuleBody], Field(max_length=MOST_CLASS_RULES)] = []
    shadows: Annotated[list[Policy], Field(max_length=MOST_SHADOWS)] = []
    guard: GuardBody = GuardBody()
    version: Annotated[int, Field(ge=0)] | None = None

    def settings(self, present_version: int) -> DeploymentSettings:
        """As the core takes them. Raises ``SettingsError``."""
        values = self.model_dump()
        if values["version"] is None:
            values["version"] = present_version
        return DeploymentSettings.from_values(values)


class CostRatiosBody(_Body):
    """Factors on the target's, the feed's, the drafting's and the host's time."""

    target: Ratio = 1.0
    feed: Ratio = 1.0
    draft: Ratio = 1.0
    host: Ratio = 1.0


class WhatIfBody(_Body):
    """What to assume instead; whatever is left out stays as it is.

    ``acceptance``: by drafter, P(first j drafts all accepted) for j = 1, 2, …; ``cost_table``: as
    ``GET /v1/deployments/{name}`` never shows it, but as workers measure it: ``target`` curves and
    ``drafters`` with ``feed`` and ``draft``, in microseconds.
    """

    worker: str | None = None
    policy: Policy | None = None
    objective: Objective | None = None
    latency_bound_s: float | None = None
    max_draft_tokens: DraftTokens | None = None
    acceptance: Annotated[
        dict[Label, Annotated[list[Probability], Field(min_length=1, max_length=MAX_DRAFT_TOKENS)]],
        Field(max_length=8),
    ] = {}
    cost_table: dict[str, Any] | None = None
    cost_ratios: CostRatiosBody = CostRatiosBody()

    def question(self) -> Question:
        """As the core takes it. Raises ``CostTableError``."""
        table = None if self.cost_table is None else table_from_values(self.cost_table)
        return Question(
            policy=self.policy,
            objective=self.objective,
            latency_bound_s=self.latency_bound_s,
            max_draft_tokens=self.max_draft_tokens,
            cost_table=table,
            cost_ratios=CostRatios(**self.cost_ratios.model_dump()),
            acceptance={name: tuple(values) for name, values in self.acceptance.items()},
        )
