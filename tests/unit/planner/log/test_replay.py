"""What is recorded of a planner decides the same when it is played again."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from outrider_planner.core.events import PlannerConfig
from outrider_planner.core.planner import scopes
from outrider_planner.core.policies import UnknownPolicyError, parse
from outrider_planner.core.settings import DeploymentSettings
from outrider_planner.core.shared_costs import cost_digest, table_to_json
from outrider_planner.log.compare import over_time, summary
from outrider_planner.log.entries import Entry, LogError, TornLineError, decode, encode
from outrider_planner.log.recorder import RecordedPlanner
from outrider_planner.log.replay import AS_LOGGED, Replay, Sample
from tests.unit.planner.builders import (
    World,
    make_cell,
    make_hello,
    make_report,
    make_rounds,
    make_table,
)
from tests.unit.planner.joined import HELLO

FLEET = [f"worker-{number}" for number in range(8)]


class Lines:
    """A journal in memory."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.head = True

    def put(self, entry: Entry) -> None:
        self.lines.append(encode(entry, "planner-a"))

    def wants_head(self) -> bool:
        wanted, self.head = self.head, False
        return wanted

    def entries(self) -> list[dict[str, Any]]:
        return [decode(line) for line in self.lines]


def recorded(config: PlannerConfig | None = None) -> tuple[RecordedPlanner, Lines]:
    lines = Lines()
    return RecordedPlanner(config or PlannerConfig(), lines), lines


def busy_day() -> tuple[RecordedPlanner, Lines]:
    """Reports, a dip in acceptance, other loads, sums and settings from the store, a reconnect."""
    planner, lines = recorded()
    world = World(planner, HELLO, acceptance=0.85, requests=1)
    world.run(64)
    planner.on_store_snapshot(scopes(HELLO)[0], [{"ngram|greedy|0|verified|0|0": 50}])
    world.acceptance, world.requests = 0.1, 6
    world.run(160)
    theirs = DeploymentSettings(max_draft_tokens=2, version=4)
    planner.on_stored_settings("demo", theirs.to_json())
    world.acceptance = 0.9
    world.run(160)
    planner.on_gone("worker-1", 1, world.now_s)
    planner.on_hello(HELLO, 1, world.now_s + 1.0)
    planner.replan(world.now_s + 1.0)
    return planner, lines


def busy_fleet(seconds: int = 8) -> tuple[RecordedPlanner, Lines]:
    """Eight workers that are planned together; one of them differs from the fourth second on."""
    planner, lines = recorded(PlannerConfig(share_from_workers=4))
    for stream, name in enumerate(FLEET):
        planner.on_hello(make_hello(incarnation=name), stream, 0.0)
    planner.replan(0.0)
    for second in range(1, seconds):
        for stream, name in enumerate(FLEET):
            hits = 2 if second >= 4 and name == FLEET[-1] else 30
            cell = make_cell((32, 32), (32, 32), (hits, hits))
            report = make_report(second, make_rounds(16), cell)
            planner.on_reports(name, stream, report, float(second))
        planner.replan(float(second))
    return planner, lines


def played(lines: Lines, policies: Sequence[str] = ()) -> tuple[Replay, list[Sample]]:
    replay = Replay(policies, parse)
    return replay, list(replay.play(lines.entries()))


def test_a_replay_finds_the_same_integers() -> None:
    planner, lines = busy_day()
    replay, samples = played(lines)
    version = planner.workers["worker-1"].version
    assert version > 5
    assert (replay.agreement.same, replay.agreement.different) == (version, 0)
    assert (replay.agreement.lost, replay.agreement.taken_up) == (0, 0)
    assert {sample.requests for sample in samples} == {1, 6}


def test_every_worker_of_a_group_is_logged_and_played() -> None:
    planner, lines = busy_fleet()
    plans = [entry for entry in lines.entries() if entry["k"] == "plan"]
    assert len({entry["worker"] for entry in plans}) < len(FLEET), "some never asked themselves"
    sent = [sent for entry in plans for sent in entry["plans"]]
    latest = {name: version for item in sent for name, version in item["workers"].items()}
    assert latest == {name: planner.workers[name].version for name in FLEET}
    replay, samples = played(lines, ["off", "lightspec"])
    assert replay.agreement.different == 0, replay.agreement.first_difference
    assert replay.agreement.same == sum(latest.values())
    by_worker = {name: [s for s in samples if s.worker == name] for name in FLEET}
    assert min(map(len, by_worker.values())) >= 7, "as often as each of them had news"
    assert all(None not in sample.cells.values() for sample in samples)


@pytest.mark.parametrize("change", ["integers", "version", "left_out", "invented", "held"])
def test_what_another_of_the_group_was_sent_is_verified(change: str) -> None:
    _, lines = busy_fleet(3)
    entries = lines.entries()
    first = next(entry for entry in entries if entry["k"] == "plan" and entry["plans"])
    (sent,) = first["plans"]
    other = next(name for name in sent["workers"] if name != first["worker"])
    version = sent["workers"][other]
    if change == "integers":
        plan = {**sent["plan"], "draft_tokens": {"ngram": [0] * len(sent["plan"]["ladder"])}}
        first["plans"].append({"workers": {other: sent["workers"].pop(other)}, "plan": plan})
    elif change == "version":
        sent["workers"][other] = version + 1
    elif change == "left_out":
        del sent["workers"][other]
    elif change == "invented":
        later = [e for e in entries if e["k"] == "plan" and not e["plans"]]
        later[0]["plans"] = [{"workers": {other: 7}, "plan": sent["plan"]}]
    else:
        first["held"] = True
    replay = Replay((), parse)
    list(replay.play(entries))
    assert replay.agreement.different == 1
    assert (first["worker"] if change == "held" else other) in replay.agreement.first_difference


def test_a_plan_that_was_not_decided_so_is_found() -> None:
    _, lines = busy_day()
    entries = lines.entries()
    pushed = [entry for entry in entries if entry["k"] == "plan" and entry["plans"]]
    pushed[2]["plans"][0]["plan"]["draft_tokens"]["ngram"][0] += 1
    replay = Replay((), parse)
    list(replay.play(entries))
    assert replay.agreement.different == 1
    assert "plan 3" in replay.agreement.first_difference


def test_policies_are_compared_on_the_same_statistics() -> None:
    _, lines = busy_day()
    replay, samples = played(lines, ["off", "static:2", "lightspec"])
    assert replay.agreement.different == 0
    by_policy = {line.policy: line for line in summary(samples)}
    assert set(by_policy) == {AS_LOGGED, "off", "static:2", "lightspec"}
    assert by_policy["off"].rate_vs_off_ratio == pytest.approx(1.0)
    assert by_policy["static:2"].draft_tokens == 2.0
    logged, static = by_policy[AS_LOGGED], by_policy["static:2"]
    assert logged.rate_vs_logged_ratio == 1.0
    assert logged.rate_tokens_per_s is not None
    assert static.rate_tokens_per_s is not None
    assert logged.rate_tokens_per_s > static.rate_tokens_per_s
    pieces = over_time(samples, 4)
    assert {line.policy for line in pieces} == set(by_policy)
    assert sum(line.samples for line in pieces) == 4 * len(samples)


def test_a_log_that_begins_in_the_middle_takes_up_who_is_there() -> None:
    planner, lines = recorded()
    world = World(planner, HELLO, acceptance=0.8, requests=2)
    world.run(64)
    planner.on_store_snapshot(scopes(HELLO)[0], [{"ngram|greedy|0|verified|0|0": 50}])
    lines.lines.clear()
    lines.head = True
    world.run(640)
    kinds = [entry["k"] for entry in lines.entries()]
    assert kinds[:4] == ["start", "sums", "settings", "present"]
    replay, samples = played(lines)
    assert replay.agreement.taken_up == 1
    assert samples[-1].cells[AS_LOGGED] is not None


def test_stored_costs_and_leaving_workers_are_played() -> None:
    planner, lines = recorded()
    planner.on_hello(replace(HELLO, cost_table=None), 1, 0.0)
    planner.replan(0.0)
    planner.on_stored_costs(cost_digest(HELLO.identity), table_to_json(make_table(max_draft=4)))
    planner.replan(0.5)
    planner.on_gone("worker-1", 1, 1.0)
    planner.on_tick(100.0)
    planner.on_hello(make_hello(incarnation="worker-2"), 2, 101.0)
    planner.replan(101.0)
    replay, _ = played(lines)
    assert (replay.agreement.same, replay.agreement.different) == (3, 0)
    assert [e["k"] for e in lines.entries()].count("tick") == 1


def test_reads_that_change_nothing_are_not_recorded() -> None:
    planner, lines = recorded()
    planner.on_hello(HELLO, 1, 0.0)
    before = len(lines.lines)
    for _ in range(3):
        planner.on_store_snapshot(scopes(HELLO)[0], [{"ngram|greedy|0|verified|0|0": 50}])
        planner.on_stored_settings("demo", DeploymentSettings().to_json())
        planner.on_tick(1.0)
    assert len(lines.lines) == before + 1


def test_gaps_are_told() -> None:
    _, lines = busy_day()
    lines.lines.insert(8, encode(Entry("gap", 0.0, {"lost": 7}), "planner-a"))
    assert played(lines)[0].agreement.lost == 7
    replay = Replay((), parse)
    assert list(replay.play(lines.entries()[1:])) == []
    assert replay.agreement.lost > 0


@pytest.mark.parametrize(
    "line", ["", "{", "[]", '{"v": 1}', '{"v": 99, "w": "a", "t": 0, "k": "tick"}']
)
def test_what_is_no_entry_is_refused(line: str) -> None:
    with pytest.raises(LogError):
        decode(line)


@pytest.mark.parametrize(
    "wrong",
    [
        {"k": "hello", "hello": {"deployment": "demo"}, "stream": 1},
        {"k": "report", "worker": "worker-1", "stream": 1, "report": {"rounds": 3}},
        {"k": "plan"},
        {"k": "rumour"},
    ],
)
def test_entries_that_cannot_be_played_are_refused(wrong: dict[str, Any]) -> None:
    _, lines = busy_day()
    with pytest.raises(LogError):
        list(Replay((), parse).play([*lines.entries(), {"v": 1, "w": "a", "t": 99.0, **wrong}]))


def test_torn_lines_and_unknown_policies_have_their_own_errors() -> None:
    with pytest.raises(TornLineError):
        decode('{"v":1,"w":"a')
    with pytest.raises(UnknownPolicyError):
        Replay(["fastest"], parse)


def test_columns_come_back_bit_for_bit() -> None:
    cell = make_cell(bin_position=np.array([0, 1]), bin=np.array([3, 2**62]))
    report = make_report(5, None, cell)
    line = encode(Entry("report", 0.1 + 0.2, {"report": report}), "a")
    found = decode(line)
    assert found["t"] == 0.1 + 0.2
    assert found["report"]["cells"][0]["bin"] == [3, 2**62]
