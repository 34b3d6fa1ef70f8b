"""The worker's counters, from rounds whose numbers are known."""

from collections.abc import Mapping

import pytest

from outrider_worker.engine.costs import CostCurve, CostTable, Timing
from outrider_worker.engine.records import DraftOutcome, LaunchMode, RoundRecord, RoundTimes
from outrider_worker.metrics import WorkerMetrics

COSTS = CostTable((CostCurve(0, (1, 8), (Timing(0.1, 0.0, 1), Timing(0.8, 0.0, 1))),))


def outcome(drafter: str, request_class: str, verified: int, accepted: int) -> DraftOutcome:
    bins = (0,) * max(verified, 3)
    return DraftOutcome(drafter, request_class, 64, 4, bins, verified, accepted)


def round_of(*outcomes: DraftOutcome, carried: int = 3, target_s: float = 0.5) -> RoundRecord:
    rows = len(outcomes) + sum(each.verified for each in outcomes)
    return RoundRecord(
        round=1,
        requests=len(outcomes),
        carried_draft_tokens=carried,
        pool_tokens=0,
        target_rows=rows,
        bucket_rows=rows,
        prefill_tokens=0,
        request_context_tokens=64,
        row_context_tokens=64 * rows,
        times=RoundTimes(target_s=target_s, draft_s=0.25),
        launch_mode=LaunchMode.AHEAD,
        emitted_tokens=len(outcomes) + sum(each.accepted for each in outcomes),
        accepted_tokens=sum(each.accepted for each in outcomes),
        next_draft_tokens=0,
        plan_version=1,
        outcomes=outcomes,
    )


@pytest.fixture
def metrics() -> WorkerMetrics:
    """Three requests of one drafter, one of another, then a round without drafts."""
    metrics = WorkerMetrics(COSTS, 4)
    metrics.observe_round(
        round_of(
            outcome("ngram", "greedy", 3, 3),
            outcome("ngram", "greedy", 0, 0),
            outcome("ngram", "batch/sampled", 2, 1),
            outcome("suffix", "greedy", 1, 0),
        )
    )
    metrics.observe_round(round_of(outcome("ngram", "greedy", 0, 0), carried=0, target_s=0.1))
    return metrics


def value(metrics: WorkerMetrics, name: str, **labels: str) -> float | None:
    return metrics.registry.get_sample_value(f"outrider_worker_{name}", labels)


@pytest.mark.parametrize(
    ("labels", "drafted", "verified", "accepted", "steps"),
    [
        ({"drafter": "ngram", "class": "greedy"}, 9, 3, 3, 1),
        ({"drafter": "ngram", "class": "batch/sampled"}, 3, 2, 1, 1),
        ({"drafter": "suffix", "class": "greedy"}, 3, 1, 0, 1),
    ],
)
def test_drafts_are_summed_by_drafter_and_class(
    metrics: WorkerMetrics,
    labels: Mapping[str, str],
    drafted: int,
    verified: int,
    accepted: int,
    steps: int,
) -> None:
    assert value(metrics, "draft_tokens_total", **labels) == drafted
    assert value(metrics, "verified_tokens_total", **labels) == verified
    assert value(metrics, "accepted_tokens_total", **labels) == accepted
    assert value(metrics, "verify_steps_total", **labels) == steps


def test_positions_count_the_drafts_that_reach_them(metrics: WorkerMetrics) -> None:
    verified, accepted = (
        [
            value(metrics, f"{what}_tokens_by_position_total", drafter="ngram", position=str(place))
            for place in range(4)
        ]
        for what in ("verified", "accepted")
    )
    assert verified == [2, 2, 1, None]
    assert accepted == [2, 1, 1, None]
    first = {"drafter": "suffix", "position": "0"}
    assert value(metrics, "verified_tokens_by_position_total", **first) == 1
    assert value(metrics, "accepted_tokens_by_position_total", **first) is None


def test_time_is_shared_out_by_the_planned_length(metrics: WorkerMetrics) -> None:
    assert value(metrics, "budget_seconds_total", draft_length="3") == 0.75
    assert value(metrics, "budget_seconds_total", draft_length="0") == pytest.approx(0.35)
    total_s = value(metrics, "round_duration_seconds_sum")
    assert total_s == pytest.approx(0.75 + 0.35)
    assert value(metrics, "draft_length_sum") == 3
