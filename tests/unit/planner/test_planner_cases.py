"""Failures that users of other controllers met, played in a small world with a virtual clock."""

from itertools import pairwise

import pytest

from outrider_planner.core.events import PlannerConfig
from outrider_planner.core.planner import Planner
from outrider_planner.core.types import Plan
from tests.unit.planner.builders import World, make_hello, make_table, target_us


def dear_us(rows: int) -> int:
    """A pass that is bound by compute: 1 ms for every row, next to nothing besides."""
    return 2_000 + 1_000 * rows


def dear_world(requests: int, acceptance: float) -> World:
    table = make_table(target=dear_us, max_draft=4)
    hello = make_hello(requests=32, table=table)
    return World(Planner(PlannerConfig()), hello, acceptance, requests, target=dear_us)


def drafts_at(plan: Plan, requests: int) -> int:
    step = next(i for i, n in enumerate(plan.requests_ladder) if n >= requests)
    return plan.drafters[0].draft_tokens[step]


@pytest.mark.parametrize("requests", [8, 16, 32])
def test_dear_rows_under_load_are_not_drafted_for(requests: int) -> None:
    """D01: drafts that half hold cost more than they bring once a row costs what it costs here.

    Against the same rounds without drafts: what was lost on the way there and on probes is 1 %.
    """
    played = dear_world(requests, acceptance=0.4)
    played.run(600)
    assert drafts_at(played.plan, requests) == 0
    plain_s = (dear_us(requests) + played.host_us) * 1e-6
    rate, off_rate = played.tokens / played.busy_s, requests / plain_s
    assert rate >= 0.99 * off_rate


def test_a_load_around_the_threshold_changes_no_plan() -> None:
    """D02: n goes to and fro between a step that drafts and one that does not.

    The plan holds both, so nothing need be decided anew, and where it is off only probes draft.
    """
    played = dear_world(1, acceptance=0.75)
    played.run(400)
    drafting = [n for n in played.plan.requests_ladder if drafts_at(played.plan, n)]
    below = drafting[-1]
    above = next(n for n in played.plan.requests_ladder if n > below)
    seen, rounds = [played.plan], 1600
    for turn in range(rounds // 8):
        played.requests = (below, above)[turn % 2]
        played.run(8)
        seen.append(played.plan)
    lengths = [(drafts_at(plan, below), drafts_at(plan, above)) for plan in seen]
    changes = sum(a != b for a, b in pairwise(lengths))
    assert changes <= 0.005 * rounds
    assert played.plan.version - seen[0].version <= 0.05 * rounds


def best_rate(acceptance: float, requests: int, draft_us: int = 200) -> float:
    """Tokens per second of the best fixed length, by expectation."""
    rates = []
    for length in range(5):
        tokens = requests * (1 + sum(acceptance**j for j in range(1, length + 1)))
        micros = target_us(requests * (1 + length)) + draft_us * length + 100
        rates.append(tokens / micros * 1e6)
    return max(rates)


def test_acceptance_that_falls_as_texts_grow_is_followed() -> None:
    """D05: 0.9 for short contexts, 0.2 for long ones, on the way through sixteen hundred rounds.

    Against whoever knows the acceptance of every moment; a mean over all of it would draft on.
    """
    played = World(Planner(PlannerConfig()), make_hello(), 0.9, requests=2)
    played.run(160)
    first = drafts_at(played.plan, 2)
    played.tokens, played.busy_s, best = 0, 0.0, 0.0
    for turn in range(200):
        played.acceptance = 0.9 - 0.7 * turn / 199
        before_s = played.busy_s
        played.run(8)
        best += best_rate(played.acceptance, 2) * (played.busy_s - before_s)
    assert drafts_at(played.plan, 2) < first
    assert played.tokens >= 0.97 * best
