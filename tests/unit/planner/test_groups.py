"""Workers that are planned together: who is alike, what they share, and what they do not."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest

from outrider_planner.core import groups
from outrider_planner.core.events import PlannerConfig, PushPlan, WarmStart
from outrider_planner.core.planner import Planner
from outrider_planner.core.policies import Decision, parse
from outrider_planner.core.types import Hello
from tests.unit.planner.builders import (
    make_cell,
    make_hello,
    make_report,
    make_rounds,
    make_table,
    target_us,
)
from tests.unit.planner.joined import flushed

CONFIG = PlannerConfig(share_from_workers=4)
NAMES = [f"w{number}" for number in range(8)]


class Fleet:
    """Workers with one report a second each; acceptance and times by worker."""

    def __init__(
        self, config: PlannerConfig = CONFIG, hellos: Mapping[str, Hello] | None = None
    ) -> None:
        self.planner = Planner(config)
        self.now_s = 0.0
        self.pushed: dict[str, int] = dict.fromkeys(NAMES, 0)
        self.said: list[str] = []
        self._sequence = 0
        for stream, name in enumerate(NAMES):
            hello = (hellos or {}).get(name, make_hello(incarnation=name))
            self.planner.on_hello(replace(hello, worker_incarnation=name), stream, 0.0)
        self._plan()

    def second(
        self, accepted: dict[str, int] | int, slow: Iterable[str] = (), names: Iterable[str] = NAMES
    ) -> None:
        """Everybody reports 32 chains of two drafts; ``accepted`` of 32 at either position."""
        self.now_s += 1.0
        self._sequence += 1
        for name in names:
            hits = accepted if isinstance(accepted, int) else accepted.get(name, 30)
            cell = make_cell((32, 32), (32, 32), (hits, hits))
            changes = {"target_us": 24_000} if name in slow else {}
            report = make_report(self._sequence, make_rounds(16, **changes), cell)
            self.planner.on_reports(name, NAMES.index(name), report, self.now_s)
        self._plan()

    def shared(self) -> set[str]:
        """Workers whose latest plan was made for several."""
        return {name for name, basis in self.planner.basis.items() if basis.workers > 1}

    def drafts(self, name: str) -> int:
        plan = self.planner.workers[name].plan
        assert plan is not None
        return plan.drafters[0].draft_tokens[1]

    def _plan(self) -> None:
        for effect in self.planner.replan(self.now_s):
            if isinstance(effect, PushPlan):
                self.pushed[effect.incarnation] += 1
            elif isinstance(effect, WarmStart):
                self.said.append(effect.sentence)


def test_workers_that_are_alike_get_one_decision_and_versions_of_their_own() -> None:
    fleet = Fleet()
    for _ in range(3):
        fleet.second(30)
    assert fleet.shared() == set(NAMES)
    assert len({id(basis) for basis in fleet.planner.basis.values()}) == 1
    plans = [worker.plan for worker in fleet.planner.workers.values()]
    assert all(plan is not None and plan.drafters == plans[0].drafters for plan in plans)  # type: ignore[union-attr]
    assert "one plan for 8 workers" in plans[0].reason  # type: ignore[union-attr]
    assert [w.version for w in fleet.planner.workers.values()] == list(fleet.pushed.values())


class Counting:
    """The default policy, and how often it was asked."""

    name = "counting"
    remembers_rounds = False

    def __init__(self) -> None:
        self.asked = 0

    def decide(self, *arguments: Any) -> Decision:
        self.asked += 1
        return parse("two_stage").decide(*arguments)


def test_a_plan_is_found_once_however_many_have_news() -> None:
    policy = Counting()
    fleet = Fleet(replace(CONFIG, policy=policy))
    before = policy.asked
    fleet.second(30)
    assert policy.asked == before + 1


def test_few_workers_are_planned_each_for_itself() -> None:
    fleet = Fleet(PlannerConfig(share_from_workers=9))
    fleet.second(30)
    assert fleet.shared() == set()


def test_what_is_shared_is_what_one_worker_with_all_the_evidence_would_be_told() -> None:
    fleet, alone = Fleet(), Planner(PlannerConfig())
    alone.on_hello(make_hello(incarnation="one"), 1, 0.0)
    alone.replan(0.0)
    for second in range(1, 4):
        fleet.second(24)
        cell = make_cell((32, 32), (32, 32), (24, 24))
        alone.on_reports("one", 1, make_report(second, make_rounds(16), cell), float(second))
        alone.replan(float(second))
    one = alone.workers["one"].decision
    together = fleet.planner.workers["w0"].decision
    assert one is not None
    assert together is not None
    np.testing.assert_array_equal(together.drafters[0].draft_tokens, one.drafters[0].draft_tokens)
    evidence = fleet.planner.basis["w0"].sources.own_verified
    assert evidence == pytest.approx(8 * alone.basis["one"].sources.own_verified, rel=1e-6)


def test_a_worker_whose_drafts_fail_is_planned_alone_and_comes_back() -> None:
    fleet = Fleet()
    for _ in range(12):
        fleet.second({"w3": 0})
    assert fleet.shared() == set(NAMES) - {"w3"}
    assert fleet.drafts("w3") == 0
    assert fleet.drafts("w0") > 0
    for _ in range(30):
        fleet.second(30)
    assert fleet.shared() == set(NAMES)
    assert fleet.drafts("w3") > 0


def test_what_one_comes_to_believe_alone_is_nobody_elses() -> None:
    fleet = Fleet()
    fleet.second(30)
    one, other = fleet.planner.workers["w3"], fleet.planner.workers["w0"]
    believed = other.estimates["ngram"][1]
    one.evidence.fast.clear()
    one.statistics({}, {})
    assert one.estimates["ngram"][1] is not believed
    assert other.estimates["ngram"][1] is believed


def test_a_worker_that_is_slower_is_planned_alone() -> None:
    fleet = Fleet()
    for _ in range(12):
        fleet.second(30, slow={"w5"})
    assert fleet.shared() == set(NAMES) - {"w5"}


def test_one_in_the_middle_leads_whoever_came_first() -> None:
    fleet = Fleet()
    for _ in range(12):
        fleet.second(30, slow={"w0"})
    assert fleet.shared() == set(NAMES) - {"w0"}


def test_another_deployment_table_identity_or_limit_is_another_group() -> None:
    changed = {
        "w0": make_hello(deployment="other"),
        "w1": make_hello(requests=6),
        "w2": make_hello(drafter="mtp"),
        "w3": make_hello(),
    }
    changed["w3"] = replace(changed["w3"], identity=replace(changed["w3"].identity, device="x"))
    fleet = Fleet(hellos=changed)
    fleet.second(30, names=NAMES[4:])
    assert fleet.shared() == set(NAMES[4:])


def _target_us(more: int, rows: int) -> int:
    return target_us(rows) + more


def test_tables_of_one_identity_that_differ_a_little_are_one_group() -> None:
    tables = {}
    for place, name in enumerate(NAMES):
        table = make_table(max_draft=4, target=partial(_target_us, 40 * place))
        tables[name] = make_hello(table=table)
    fleet = Fleet(hellos=tables)
    for _ in range(7):
        fleet.second(30)
    assert fleet.shared() == set(NAMES)


def test_a_shift_of_all_is_followed_by_all_together() -> None:
    fleet = Fleet()
    for _ in range(6):
        fleet.second(30)
    for _ in range(20):
        fleet.second(0)
    assert fleet.shared() == set(NAMES)
    assert {fleet.drafts(name) for name in NAMES} == {0}


def test_a_newcomer_gets_the_plan_that_is_there_and_it_says_so() -> None:
    fleet = Fleet()
    for _ in range(3):
        fleet.second(0)
    basis = fleet.planner.basis["w0"]
    fleet.planner.on_hello(make_hello(incarnation="late"), 99, fleet.now_s)
    effects = fleet.planner.replan(fleet.now_s)
    (pushed,) = [effect for effect in effects if isinstance(effect, PushPlan)]
    assert pushed.plan.drafters[0].draft_tokens == (0,) * 6
    assert fleet.planner.basis["late"] is basis
    (said,) = [effect.sentence for effect in effects if isinstance(effect, WarmStart)]
    assert "plan of 8 workers" in said


def test_plain_rounds_are_asked_of_those_that_had_none() -> None:
    fleet = Fleet(replace(CONFIG, plain_wanted_after_s=5.0))
    for _ in range(4):
        fleet.second(30)
    fleet.planner.workers["w2"].last_plain_s = fleet.now_s
    for _ in range(3):
        fleet.second(30)
    shares = {n: w.plan.probe.plain_share for n, w in fleet.planner.workers.items() if w.plan}
    assert shares.pop("w2") == 0.0
    assert min(shares.values()) > 0.0


def test_those_that_are_planned_together_wait_together() -> None:
    fleet = Fleet()
    fleet.second(30)
    for took_s, wait_s in ((0.02, 0.02 / CONFIG.planning_share), (0.0, CONFIG.shared_pause_s)):
        fleet.second(30)
        fleet.planner.planned("w0", fleet.now_s, took_s)
        waits = {worker.next_plan_s for worker in fleet.planner.workers.values()}
        assert waits == {fleet.now_s + wait_s}


def test_a_policy_that_reads_single_rounds_is_not_shared() -> None:
    fleet = Fleet(PlannerConfig(policy=parse("lightspec"), share_from_workers=4))
    fleet.second(30)
    assert fleet.shared() == set()


def test_a_member_that_left_is_forgotten() -> None:
    fleet = Fleet()
    fleet.second(30)
    for stream, name in enumerate(NAMES[:6]):
        fleet.planner.on_gone(name, stream, fleet.now_s)
    fleet.planner.flush()
    fleet.planner.on_tick(fleet.now_s + 120.0)
    assert set(fleet.planner.workers) == {"w6", "w7"}
    fleet.now_s += 120.0
    fleet.second(30, names=("w6", "w7"))
    assert fleet.shared() == set()


def test_of_many_reports_some_count_for_the_plan_and_all_for_the_store(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """At two a second, eight workers count in full every fourth second each; the lead always."""
    monkeypatch.setattr(groups, "FULL_REPORTS_PER_S", 2.0)
    fleet = Fleet()
    for _ in range(16):
        fleet.second(30)
    stored = sums_of(fleet.planner)
    assert stored == 16 * 8 * 32
    in_full = [worker.last_full_s for worker in fleet.planner.workers.values()]
    assert max(s for s in in_full if s is not None) == 16.0
    assert sum(s == 16.0 for s in in_full) < 8
    assert all(worker.rounds == 16 * 16 for worker in fleet.planner.workers.values())


def sums_of(planner: Planner) -> int:
    """Verified drafts at the first position that a flush would bring to the store."""
    scopes = flushed(planner)
    return sum(f.get("ngram|greedy|0|verified|0|0", 0) for s, f in scopes.items() if s[0] == "d")


def test_whoever_reports_first_is_not_another_for_that() -> None:
    """What nobody else has seen yet is no difference."""
    fleet = Fleet()
    fleet.second(30, names=NAMES[:1])
    fleet.second(30, names=NAMES[:2])
    assert fleet.shared() == set(NAMES)


@pytest.mark.parametrize("in_full_per_s", [1.0, 2.0, 8.0])
def test_a_fleet_whose_acceptance_drifts_stays_together(
    monkeypatch: pytest.MonkeyPatch, in_full_per_s: float
) -> None:
    """However rarely a member counts in full: compared is what all saw over the same time."""
    monkeypatch.setattr(groups, "FULL_REPORTS_PER_S", in_full_per_s)
    fleet = Fleet()
    for second in range(40):
        fleet.second(30 - abs(second % 40 - 20))
        assert fleet.shared() == set(NAMES)


def test_nobody_is_held_against_what_was_known_a_while_ago() -> None:
    """After a pause all see something else, and the first of them is not set apart for it."""
    fleet = Fleet()
    for _ in range(6):
        fleet.second(30)
    fleet.now_s += 60.0
    for _ in range(3):
        fleet.second(4)
        assert fleet.shared() == set(NAMES)


def test_reports_that_come_meanwhile_count_for_one_plan(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(groups, "FULL_REPORTS_PER_S", 1e6)
    policy = Counting()
    fleet = Fleet(replace(CONFIG, policy=policy))
    fleet.second(30)
    before = policy.asked
    fleet.planner.planned("w0", fleet.now_s, 0.001)
    for sequence in range(10, 40):
        now_s = fleet.now_s + sequence / 1000.0
        for stream, name in enumerate(NAMES):
            report = make_report(sequence, make_rounds(1), make_cell((8,), (8,), (8,)))
            fleet.planner.on_reports(name, stream, report, now_s)
        fleet.planner.replan(now_s)
    assert policy.asked == before
    fleet.planner.replan(fleet.now_s + CONFIG.shared_pause_s)
    assert policy.asked == before + 1
