"""Why a plan is as it is, what it would be otherwise, and what runs beside it."""

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from outrider_planner.core.cells import cell
from outrider_planner.core.events import PlannerConfig
from outrider_planner.core.explain import Explanation, explain
from outrider_planner.core.planner import Planner, scopes
from outrider_planner.core.policies import Decision, parse
from outrider_planner.core.settings import DeploymentSettings, SettingsError
from outrider_planner.core.shared_costs import CostTableError
from outrider_planner.core.types import ClassRule, CostTable, Objective
from outrider_planner.core.views import deployment
from outrider_planner.core.whatif import Answer, CostRatios, Question, answer
from tests.unit.planner.builders import World, make_hello, make_report, make_rounds, make_table
from tests.unit.planner.joined import GOOD, joined, told


def taught(
    acceptance: float = 0.8, requests: int = 2, policy: str = "two_stage", **hello: Any
) -> Planner:
    planner = Planner(PlannerConfig(policy=parse(policy)))
    World(planner, make_hello(**hello), acceptance, requests).run(96)
    return planner


def explained(planner: Planner, requests: int | None = None) -> Explanation:
    decision = planner.workers["worker-1"].decision
    assert decision is not None
    return explain(planner.basis["worker-1"], decision, requests)


def asked(planner: Planner, question: Question) -> Answer:
    worker = planner.workers["worker-1"]
    assert worker.decision is not None
    return answer(question, planner.basis["worker-1"], worker.decision, worker.hello, parse)


def evaluated(planner: Planner, now_s: float, times: int = 2) -> int:
    """How many of so many turns found a shadow to evaluate."""
    return sum(planner.shadows.evaluate_next(planner.basis, now_s) for _ in range(times))


@pytest.mark.parametrize("requests", [1, 2, 8])
@pytest.mark.parametrize("sparse", [False, True])
def test_the_chosen_cell_is_what_the_plan_says_and_nothing_beats_it(
    requests: int, sparse: bool
) -> None:
    planner = taught(sparse=sparse)
    found = explained(planner, requests)
    (why,) = found.drafters
    plan = planner.workers["worker-1"].plan
    assert plan is not None
    assert why.chosen is not None
    step = plan.requests_ladder.index(requests)
    d = plan.drafters[0].draft_tokens[step]
    assert (why.chosen.draft_tokens, why.chosen.rows) == (d, plan.drafters[0].target_rows[step][d])
    decision = planner.workers["worker-1"].decision
    assert decision is not None
    rate = decision.drafters[0].rate[step]
    assert why.chosen.rate_tokens_per_s == pytest.approx(rate, rel=0.003)
    assert len(why.rivals) == 2
    assert all(rival.draft_tokens != d for rival in why.rivals)
    assert all(
        rival.rate_tokens_per_s <= why.chosen.rate_tokens_per_s * 1.004 for rival in why.rivals
    )


@pytest.mark.parametrize("policy", ["two_stage", "static:2", "table:1=3,6=1,8=0", "off", "dspark"])
@pytest.mark.parametrize("requests", [1, 2, 5, 8])
def test_the_sentence_is_about_the_n_asked_for(policy: str, requests: int) -> None:
    planner = taught(policy=policy)
    found = explained(planner, requests)
    decision = planner.workers["worker-1"].decision
    assert decision is not None
    step, n = planner.basis["worker-1"].step(requests), found.ladder_requests
    length = int(decision.drafters[0].draft_tokens[step])
    does = f"at n={n} drafts {length}, verifies up to " if length else f"off at n={n}: "
    assert found.reason.startswith(f"{policy}: ngram {does}")
    (why,) = found.drafters
    assert why.chosen is not None
    assert f"{why.chosen.rate_tokens_per_s:.0f} tokens/s" in found.reason
    fixed = policy not in ("two_stage", "dspark")
    assert found.reason.endswith(", by configuration") == fixed


def test_the_present_n_is_explained_in_the_plans_own_words() -> None:
    planner = taught()
    decision = planner.workers["worker-1"].decision
    assert decision is not None
    assert without_numbers(explained(planner).reason) == without_numbers(decision.reason)


def without_numbers(text: str) -> str:
    return re.sub(r"[0-9.]+", "#", text)


def test_survival_never_rises_though_long_drafts_are_good_ones() -> None:
    """Of the drafts at the first position half hold; the few that go on to a second all do."""
    planner, hello = Planner(PlannerConfig()), make_hello(sparse=True, bins=16)
    planner.on_hello(hello, 1, 0.0)
    counts = {f"ngram|greedy|0|asked|{j}|0": 400 for j in range(2)}
    for kind, short, long in (("drafted", 300, 100), ("verified", 300, 100), ("accepted", 99, 98)):
        counts[f"ngram|greedy|0|{kind}|0|3"] = short
        counts |= {f"ngram|greedy|0|{kind}|{j}|12": long for j in range(2)}
    planner.on_store_snapshot(scopes(hello)[0], [counts])
    planner.replan(0.0)
    (known,) = planner.basis["worker-1"].snapshot.drafters
    assert known.estimates is not None
    assert known.estimates.mean_survival[0, 1] > known.estimates.mean_survival[0, 0]
    (why,) = explained(planner).drafters
    assert list(why.survival) == sorted(why.survival, reverse=True)
    assert why.survival[0] > 0.5
    (shown,) = deployment(planner, "demo", 0.0)["workers"][0]["statistics"][0]["classes"]
    assert shown["survival"] == sorted(shown["survival"], reverse=True)


def test_no_part_of_a_round_takes_less_than_no_time() -> None:
    """Requests cheaper than the table says, as where rows share one reading of the context."""
    planner = taught()
    basis = planner.basis["worker-1"]
    assert basis.cost is not None
    context_s = np.full(len(basis.cost.ladder), -0.004)
    planner.basis["worker-1"] = replace(basis, cost=replace(basis.cost, context_s=context_s))
    (why,) = explained(planner, 2).drafters
    assert why.off is not None
    assert why.off.host_s == pytest.approx(100e-6, rel=0.5)
    assert why.off.target_s == pytest.approx(0.008, rel=0.05)
    assert why.off.rate_tokens_per_s == pytest.approx(2 / why.off.round_s)


def test_a_sentence_about_another_n_keeps_what_the_plan_rests_on() -> None:
    planner = Planner(PlannerConfig())
    planner.on_hello(make_hello(), 1, 0.0)
    planner.on_store_snapshot(scopes(make_hello())[0], [{"ngram|greedy|0|verified|0|0": 50}])
    planner.replan(0.0)
    rests = "; warm start from 50 verified drafts of this deployment"
    assert [explained(planner, n).reason.endswith(rests) for n in (1, 8)] == [True, True]


@pytest.mark.parametrize("policy", ["static:1", "table:1=1", "off"])
def test_a_fixed_policy_is_why_a_better_rival_was_not_taken(policy: str) -> None:
    (why,) = explained(taught(policy=policy), 1).drafters
    assert why.chosen is not None
    best = why.rivals[0]
    gain_ratio = best.rate_tokens_per_s / why.chosen.rate_tokens_per_s - 1.0
    assert gain_ratio > 0.05
    assert why.note == (
        f"fixed by the policy {policy}; two_stage's forecast: drafting {best.draft_tokens} "
        f"is predicted to give {gain_ratio:.2%} more"
    )


def test_a_fixed_policy_that_is_right_is_still_why_and_so_is_one_that_should_not_draft() -> None:
    (right,) = explained(taught(acceptance=0.95, policy="static:4"), 1).drafters
    forecast = "fixed by the policy static:4; two_stage's forecast: "
    assert right.note == f"{forecast}no other length is predicted to give more"
    (wrong,) = explained(taught(acceptance=0.02, policy="static:4"), 8).drafters
    assert wrong.note.startswith(f"{forecast}not drafting is predicted to give ")


def test_a_cap_is_why_a_better_rival_was_not_taken() -> None:
    planner = taught()
    planner.on_settings("demo", DeploymentSettings(max_draft_tokens=1), 50.0)
    planner.replan(50.0)
    (why,) = explained(planner, 1).drafters
    assert why.note.endswith("more, which the settings' max_draft_tokens of 1 forbids")


def test_the_parts_of_a_cell_add_up() -> None:
    planner = taught()
    (why,) = explained(planner, 2).drafters
    assert why.chosen is not None
    assert why.off is not None
    for found in (why.chosen, *why.rivals, why.off):
        made = (found.requests + found.accepted_tokens) / found.round_s
        assert found.rate_tokens_per_s == pytest.approx(made)
        assert found.rows == found.requests + found.verify_tokens
    assert why.off.rate_vs_off_ratio == pytest.approx(1.0)
    assert why.off.target_s == pytest.approx(0.012, rel=0.05)


def test_an_n_between_two_steps_is_served_by_the_next_larger() -> None:
    found = explained(taught(), 5)
    assert (found.requests, found.ladder_requests) == (5, 6)


def test_evidence_and_its_sources_are_told() -> None:
    found = explained(taught())
    (why,) = found.drafters
    assert found.requests == 2
    assert why.verified > 100
    assert why.survival[0] == pytest.approx(0.8, abs=0.1)
    assert list(why.survival) == sorted(why.survival, reverse=True)
    assert found.sources.own_verified == pytest.approx(why.verified)
    assert (found.sources.cost, found.sources.warm) == ("measured", False)


def test_without_costs_nothing_has_a_price() -> None:
    planner, _ = joined(hello=make_hello(cost_table=None))
    (why,) = explained(planner).drafters
    assert (why.chosen, why.off, why.rivals) == (None, None, ())


def test_what_if_without_an_assumption_is_the_running_plan() -> None:
    found = asked(taught(), Question())
    for mine, running in zip(found.cells, found.running, strict=True):
        assert mine is not None
        assert running is not None
        assert mine.rate_tokens_per_s == pytest.approx(running.rate_tokens_per_s, rel=0.004)


def test_what_if_another_policy() -> None:
    planner = taught()
    found = asked(planner, Question(policy="static:1"))
    assert found.policy == "static:1"
    assert [item.draft_tokens for item in found.cells if item] == [1] * len(found.ladder)
    assert planner.settings.of("demo").settings == planner.config.default_settings()
    with pytest.raises(SettingsError, match="unknown policy"):
        asked(planner, Question(policy="fastest"))


def test_what_if_drafts_never_hold_or_always_do() -> None:
    planner = taught()
    never = asked(planner, Question(acceptance={"ngram": (0.0,)}))
    assert [item.draft_tokens for item in never.cells if item] == [0] * len(never.ladder)
    always = asked(planner, Question(acceptance={"ngram": (1.0,)}))
    first = always.cells[0]
    assert first is not None
    assert first.accepted_tokens == pytest.approx(first.verify_tokens)
    assert first.draft_tokens == 4


@pytest.mark.parametrize("sparse", [False, True])
def test_what_if_acceptance_keeps_the_shorter_pool_of_a_capped_class(sparse: bool) -> None:
    planner = taught(sparse=sparse)
    free = asked(planner, Question(policy="static:4", acceptance={"ngram": (1.0,)})).cells[1]
    rule = ClassRule("greedy", max_draft_tokens=1)
    planner.on_settings("demo", DeploymentSettings(class_rules=(rule,)), 50.0)
    planner.replan(50.0)
    capped = asked(planner, Question(policy="static:4", acceptance={"ngram": (1.0,)})).cells[1]
    assert free is not None
    assert capped is not None
    least = 0.9 if sparse else 0.9999  # of a sparse drafter's requests some have no draft
    assert least * 2 * 4 <= free.accepted_tokens <= 2 * 4 + 1e-6
    assert least * 2 * 1 <= capped.accepted_tokens <= 2 * 1 + 1e-6, "one draft per request"


def test_what_if_costs_were_others() -> None:
    planner = taught()
    dear = asked(planner, Question(cost_ratios=CostRatios(draft=100.0)))
    assert [item.draft_tokens for item in dear.cells if item] == [0] * len(dear.ladder)
    flat = asked(planner, Question(cost_table=make_table(target=lambda rows: 10_000, max_draft=4)))
    assert [item.draft_tokens for item in flat.cells if item] == [4] * len(flat.ladder)
    for wrong in (0.0, float("nan"), 1e9):
        with pytest.raises(SettingsError, match=r"cost_ratios\.host"):
            asked(planner, Question(cost_ratios=CostRatios(host=wrong)))
    with pytest.raises(CostTableError):
        asked(planner, Question(cost_table=CostTable(target=())))


def test_what_if_caps_and_objectives() -> None:
    planner = taught()
    capped = asked(planner, Question(max_draft_tokens=1))
    assert max(item.draft_tokens for item in capped.cells if item) == 1
    quick = asked(planner, Question(objective=Objective.LATENCY, latency_bound_s=0.0131))
    assert quick.objective == "latency"
    with pytest.raises(SettingsError, match="latency_bound_s"):
        asked(planner, Question(objective=Objective.LATENCY))


@pytest.mark.parametrize("wrong", [(), (1.5,), (0.5, 0.6), (float("nan"),)])
def test_impossible_acceptance_is_refused(wrong: tuple[float, ...]) -> None:
    with pytest.raises(SettingsError, match="do not rise"):
        asked(taught(), Question(acceptance={"ngram": wrong}))
    with pytest.raises(SettingsError, match="unknown drafter eagle"):
        asked(taught(), Question(acceptance={"eagle": (0.5,)}))


def test_shadows_predict_beside_the_plan_and_change_nothing() -> None:
    planner = taught()
    version = planner.workers["worker-1"].version
    planner.on_settings("demo", DeploymentSettings(shadows=("off", "static:4")), 10.0)
    planner.replan(10.0)
    assert evaluated(planner, 10.25) == 2
    off, static = planner.shadows.of("worker-1")
    assert off.cell is not None
    assert static.cell is not None
    assert off.cell.rate_vs_off_ratio == pytest.approx(1.0)
    assert (static.policy, static.cell.draft_tokens) == ("static:4", 4)
    assert planner.workers["worker-1"].version == version
    current = planner.settings.of("demo").settings
    planner.on_settings("demo", replace(current, shadows=()), 11.0)
    planner.replan(11.0)
    assert evaluated(planner, 11.25) == 0
    assert planner.shadows.of("worker-1") == ()


def test_a_shadow_that_raises_is_shown_and_harms_nobody() -> None:
    class Broken:
        name = "broken"

        def decide(self, *_arguments: Any) -> Decision:
            raise RuntimeError("no idea")

    planner, _ = joined()
    default = planner.settings.default
    planner.settings.default = replace(
        default, settings=replace(default.settings, shadows=("broken",)), shadows=(Broken(),)
    )
    told(planner, make_report(1, make_rounds(64), GOOD), 0.5)
    assert evaluated(planner, 1.0, times=1) == 1
    (shadow,) = planner.shadows.of("worker-1")
    assert shadow.cell is None
    assert "no idea" in shadow.error


def test_a_cell_never_exceeds_the_row_limit() -> None:
    planner = taught(max_rows=10)
    basis = planner.basis["worker-1"]
    assert basis.cost is not None
    found = cell(basis.snapshot.drafters[0], basis.cost, basis.step(8), 4, 999)
    assert found.rows == 10
