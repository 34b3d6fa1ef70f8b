"""The plain average beside the histograms: its cells, its interpolation, its bounds."""

import numpy as np
import pytest

from outrider_planner.core.checks import checks
from outrider_planner.core.ema import MOST_KINDS, AcceptedAverage, Kind
from outrider_planner.core.events import PlannerConfig
from outrider_planner.core.planner import Planner
from outrider_planner.core.policies import parse
from outrider_planner.core.types import RoundColumns
from tests.unit.planner.builders import World, make_hello, make_rounds


def rounds(
    requests: int, carried: int, verified: int, accepted: int, count: int = 1
) -> RoundColumns:
    rows = requests + verified
    return make_rounds(
        count,
        requests=requests,
        carried=carried,
        target_rows=rows,
        bucket_rows=rows,
        accepted_tokens=accepted,
    )


def test_old_weight_is_nine_tenths_and_the_first_round_counts_whole() -> None:
    average = AcceptedAverage()
    average.observe(rounds(4, 2, 8, 4))
    assert average.predict(4, 2, 8) == pytest.approx(4.0)
    average.observe(rounds(4, 2, 8, 8))
    assert average.predict(4, 2, 8) == pytest.approx(0.9 * 4 + 0.1 * 8)
    (kind,) = average.kinds
    assert kind == Kind(4, 2, 4)
    assert average.kinds[kind].rounds == 2


@pytest.mark.parametrize(
    ("requests", "verified", "kind"),
    [
        (1, 2, (1, 4)),
        (3, 6, (4, 4)),
        (5, 5, (8, 2)),
        (8, 10, (8, 2)),
        (8, 11, (8, 3)),
        (64, 1, (64, 1)),
    ],
)
def test_loads_fall_into_powers_of_two_and_budgets_into_halves(
    requests: int, verified: int, kind: tuple[int, int]
) -> None:
    average = AcceptedAverage()
    average.observe(rounds(requests, 4, verified, 0))
    assert list(average.kinds) == [Kind(kind[0], 4, kind[1])]


def test_between_known_budgets_it_is_linear_and_beyond_them_unknown() -> None:
    average = AcceptedAverage()
    average.observe(rounds(4, 4, 4, 3))
    average.observe(rounds(4, 4, 12, 6))
    assert average.predict(4, 4, 0) == 0.0
    assert average.predict(4, 4, 2) == pytest.approx(1.5)
    assert average.predict(4, 4, 8) == pytest.approx(4.5)
    assert average.predict(3, 4, 6) == pytest.approx(4.5 * 3 / 4)
    assert average.predict(4, 4, 16) is None
    assert average.predict(4, 3, 4) is None
    assert average.predict(8, 4, 4) is None


def test_rounds_without_verified_drafts_say_nothing() -> None:
    average = AcceptedAverage()
    average.observe(rounds(4, 2, 0, 0, count=8))
    assert average.kinds == {}


def test_one_report_counts_as_its_rounds_one_by_one() -> None:
    rng = np.random.default_rng(0)
    accepted = rng.integers(0, 9, 64)
    many = rounds(4, 2, 8, 0, count=64)
    many.accepted_tokens[:] = accepted
    at_once, by_round = AcceptedAverage(), AcceptedAverage()
    at_once.observe(many)
    for value in accepted:
        by_round.observe(rounds(4, 2, 8, int(value)))
    assert at_once.predict(4, 2, 8) == pytest.approx(by_round.predict(4, 2, 8))


def test_it_holds_a_bounded_number_of_kinds() -> None:
    average = AcceptedAverage()
    for verified in range(1, MOST_KINDS + 50):
        average.observe(rounds(1, 64, verified, 0))
    assert len(average.kinds) == MOST_KINDS
    assert Kind(1, 64, 2) not in average.kinds


def test_gain_is_held_against_the_average_of_the_rounds_that_ran() -> None:
    """A worker whose drafts are accepted as believed: predicted and realised agree."""
    planner = Planner(PlannerConfig(policy=parse("static:3")))
    played = World(planner, make_hello(), 0.7, requests=8)
    played.run(400, per_report=16)
    (statistics,) = planner.basis["worker-1"].snapshot.drafters
    most, *_ = checks(planner.workers["worker-1"].evidence.average, statistics.gain)
    assert (most.requests, most.draft_tokens, most.verified_per_request) == (8, 3, 3.0)
    assert most.realised_tokens == pytest.approx(0.7 + 0.49 + 0.343, rel=0.15)
    assert most.predicted_tokens == pytest.approx(0.7 + 0.49 + 0.343, rel=0.1)


def test_what_cannot_be_predicted_is_shown_as_unknown() -> None:
    average = AcceptedAverage()
    average.observe(rounds(4, 2, 8, 4))
    (check,) = checks(average, None)
    assert check.predicted_tokens is None
    assert check.realised_tokens == pytest.approx(1.0)
