"""While on, one draft more now and then: it finds what nobody drafts, at a small known price."""

from dataclasses import replace

import numpy as np
import pytest

from outrider_planner.core.cost import CostModel
from outrider_planner.core.events import PlannerConfig
from outrider_planner.core.explore import COST_RATIO, LEAST_SPANS, SPAN_ROUNDS, explored
from outrider_planner.core.planner import Planner
from outrider_planner.core.policies import Decision, parse
from outrider_planner.core.policies.two_stage import TwoStagePolicy
from outrider_planner.core.search import DrafterDecision
from outrider_planner.core.types import ProbeDirective
from tests.unit.planner.builders import World, make_hello

K, ROWS = 4, 16
COST = CostModel(
    ladder=(1, 2),
    target_s=np.array([0.0, *(0.020 + 0.0005 * np.arange(ROWS))]),
    feed_s={"x": np.zeros(ROWS + 1)},
    draft_s={"x": np.tile(0.0001 * np.arange(K + 1.0), (2, 1))},
    host_s=np.zeros(2),
    context_s=np.zeros(2),
    edges=(),
)
LATELY = {"x": np.array([500.0, 500.0, 0.0, 0.0])}
# Rounds after which it is time to look.
LOOKS = 15 * SPAN_ROUNDS


def decision(draft: int = 2) -> Decision:
    """Every step drafts so many and verifies all."""
    lengths = np.arange(K + 1)
    n = np.array(COST.ladder)[:, None]
    item = DrafterDecision(
        drafter="x",
        draft_tokens=np.full(2, draft),
        verify_tokens=n * lengths,
        rate=np.full(2, 50.0),
        accepted=0.5 * n * lengths,
        pass_s=COST.target_s[n * (1 + lengths)],
        prepare_s=COST.draft_s["x"],
    )
    return Decision((item,), ProbeDirective(), "because")


def spans_that_look(found: Decision, spans: int = 1024) -> int:
    looks = [
        explored(found, COST, 1, span * SPAN_ROUNDS, LATELY) is not found for span in range(spans)
    ]
    return sum(looks)


def test_one_draft_more_is_drafted_and_verified_at_the_present_load_only() -> None:
    before = decision()
    (item,) = explored(before, COST, 1, LOOKS, LATELY).drafters
    assert item.draft_tokens.tolist() == [2, 3]
    assert item.verify_tokens[1, 3] == 6
    assert before.drafters[0].draft_tokens.tolist() == [2, 2], "the plan itself stays as it is"


def test_looking_costs_at_most_its_part_even_if_it_brings_nothing() -> None:
    share = spans_that_look(decision()) / 1024
    plain_s = COST.target_s[6] + COST.draft_s["x"][1, 2]
    looking_s = COST.target_s[8] + COST.draft_s["x"][1, 3]
    assert 0 < share <= 1 / LEAST_SPANS
    assert share * (1 - plain_s / looking_s) <= COST_RATIO


@pytest.mark.parametrize(
    "case", ["off", "deepest", "capped", "cold", "known", "nothing forecast", "dear"]
)
def test_where_there_is_nothing_to_look_for_plans_stay_as_they_are(case: str) -> None:
    draft = {"off": 0, "deepest": K}.get(case, 2)
    found, cost, asked = decision(draft), COST, dict(LATELY)
    if case == "cold":
        asked["x"] = np.zeros(K)
    if case == "known":
        asked["x"] = np.full(K, 500.0)
    if case == "nothing forecast":
        found = replace(found, drafters=(replace(found.drafters[0], rate=np.zeros(2)),))
    if case == "dear":
        cost = replace(COST, target_s=COST.target_s + 0.1 * np.maximum(np.arange(ROWS + 1) - 6, 0))
    cap = 2 if case == "capped" else None
    assert explored(found, cost, 1, LOOKS, asked, cap) is found


class Uneven(World):
    """Conditional acceptance by position."""

    conditionals = (0.25, 0.1, 0.1, 0.1)

    def _accepted(self, length: int) -> int:
        hits = self._rng.random(length) < np.array(self.conditionals[:length])
        return int(np.cumprod(hits).sum())


@pytest.mark.parametrize("looking", [True, False])
def test_only_a_look_further_finds_that_deeper_drafts_have_become_good(
    looking: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TwoStagePolicy, "explores", looking)
    planner = Planner(PlannerConfig(policy=parse("two_stage")))
    played = Uneven(planner, make_hello(requests=8), 0.0, requests=2)
    played.run(320, per_report=16)
    assert played.plan.drafters[0].draft_tokens[1] == 1
    played.conditionals = (0.25, 0.98, 0.98, 0.98)
    played.run(4000, per_report=32)
    lengths = [plan.drafters[0].draft_tokens[1] for plan in played.plans[-8:]]
    assert (max(lengths) >= 3) is looking
