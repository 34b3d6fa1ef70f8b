"""Physics: what a report may claim, and that nothing else counts (F19, Z05)."""

from typing import Any

import numpy as np
import pytest

from outrider_planner.core.bounds import (
    REASONS,
    ReportContext,
    ReportRejectedError,
    bound_report,
    class_label,
)
from outrider_planner.core.hellos import (
    HelloRefusedError,
    ProtocolVersionError,
    check_hello,
    statistics_digest,
)
from outrider_planner.core.types import (
    CostCurve,
    CostTable,
    DraftCostGrid,
    DrafterCosts,
    DrafterTraits,
    EngineIdentity,
    RoundColumns,
    StepReports,
    WorkerLimits,
)
from tests.unit.planner.builders import (
    column,
    make_cell,
    make_hello,
    make_report,
    make_rounds,
    target_us,
)


def bounded(  # type: ignore[no-untyped-def]
    report: StepReports,
    credit_s: float = 60.0,
    least_round_s: float = 1e-3,
    dropped: int = 0,
    bins: int = 16,
):
    context = ReportContext(
        hello=make_hello(bins=bins),
        credit_s=credit_s,
        least_round_s=least_round_s,
        table_target_s=lambda rows: np.array([target_us(int(r)) * 1e-6 for r in rows]),
        dropped_rounds=dropped,
    )
    return bound_report(report, context)


def test_an_honest_report_passes_whole() -> None:
    found = bounded(make_report(1, make_rounds(8), make_cell((16, 16), (16, 16), (8, 4))))
    assert len(found.rounds) == 8
    assert found.timed.all()
    assert not found.rejected
    ((key, counts),) = found.cells
    assert (key.drafter, key.request_class) == ("ngram", "greedy")
    assert counts.verified[:2, 0].tolist() == [16, 16]
    assert counts.asked[:2].tolist() == [16, 16]


@pytest.mark.parametrize(
    "change",
    [
        {"requests": 0},
        {"requests": 9},
        {"requests": -1},
        {"carried_draft_tokens": 5},
        {"next_draft_tokens": 5},
        {"pool_tokens": 100},
        {"target_rows": 1},
        {"target_rows": 200, "bucket_rows": 200},
        {"bucket_rows": 1},
        {"bucket_rows": 129},
        {"bucket_rows": 2**40},
        {"request_context_tokens": 2**62},
        {"accepted_tokens": 5},
        {"accepted_tokens": -1},
        {"emitted_tokens": 50},
        {"emitted_tokens": -1},
        {"pool_tokens": 3},
        {"pool_tokens": 5},
        {"target_us": -5},
    ],
)
def test_impossible_rounds_are_dropped_and_counted(change: dict[str, int]) -> None:
    found = bounded(make_report(1, make_rounds(4, **change)))
    assert len(found.rounds) == 0
    assert found.rejected["impossible_round"] == 4


@pytest.mark.parametrize("target", [1, target_us(6) // 10, target_us(6) * 10])
def test_times_far_from_the_table_are_not_believed(target: int) -> None:
    found = bounded(make_report(1, make_rounds(4, target_us=target)))
    assert len(found.rounds) == 4
    assert not found.timed.any()
    assert found.rejected["time_out_of_range"] == 4


@pytest.mark.parametrize("what", ["exposed_host_us", "draft_us", "feed_us"])
def test_times_beside_the_target_pass_are_bounded_too(what: str) -> None:
    """5 × the pass, and 50 ms at least: a host that stalls for minutes is no price of a round."""
    found = bounded(make_report(1, make_rounds(4, **{what: 2**61})))
    assert not found.timed.any()
    assert found.rejected["time_out_of_range"] == 4
    assert bounded(make_report(1, make_rounds(4, **{what: 50_000}))).timed.all()


@pytest.mark.parametrize(
    "cell",
    [
        make_cell((8, 8), (8, 9), (4, 2)),
        make_cell((8, 8), (8, 8), (4, 9)),
        make_cell((8, 8), (8, 8), (2, 4)),
        make_cell((4, 8), (4, 4), (2, 1)),
        make_cell((8, -8), (8, -8), (4, -9)),
        make_cell((8,) * 5, (8,) * 5, (4,) * 5),
        make_cell((8, 8), (8, 8), (4, 2), asked=5),
        make_cell((10**6, 8), (8, 8), (4, 2)),
        make_cell(
            bin_position=column([0]),
            bin=column([16]),
            bin_drafted=column([1]),
            bin_verified=column([1]),
            bin_accepted=column([1]),
        ),
        make_cell(
            bin_position=column([0]),
            bin=column([1]),
            bin_drafted=column([9]),
            bin_verified=column([1]),
            bin_accepted=column([1]),
        ),
        make_cell(
            bin_position=column([0]),
            bin=column([1]),
            bin_drafted=column([4]),
            bin_verified=column([1]),
            bin_accepted=column([2]),
        ),
        make_cell(bin_position=column([0, 1]), bin=column([1])),
    ],
)
def test_impossible_cells_are_dropped_and_counted(cell) -> None:  # type: ignore[no-untyped-def]
    found = bounded(make_report(1, make_rounds(8), cell))
    assert found.cells == ()
    assert found.rejected["impossible_cell"] == 1


@pytest.mark.parametrize("size", [2**62, 2**61, 2**53])
def test_sums_that_would_overflow_are_impossible(size: int) -> None:
    """Four times 2^62 is 0 in 64 bits: every count is held against what was asked by itself."""
    four = column([size] * 4)
    cell = make_cell(
        bin_position=column([0] * 4),
        bin=column([0, 1, 2, 3]),
        bin_drafted=four,
        bin_verified=four,
        bin_accepted=four,
    )
    found = bounded(make_report(1, make_rounds(8), cell))
    assert found.cells == ()
    assert found.rejected["impossible_cell"] == 1


@pytest.mark.parametrize("bins", [1, 3])
def test_bins_that_the_drafter_did_not_announce_are_impossible(bins: int) -> None:
    def cell(bin_: int):  # type: ignore[no-untyped-def]
        one = column([1])
        return make_cell(
            bin_position=column([0]),
            bin=column([bin_]),
            bin_drafted=one,
            bin_verified=one,
            bin_accepted=one,
        )

    last = bounded(make_report(1, make_rounds(8), cell(bins - 1)), bins=bins)
    beyond = bounded(make_report(1, make_rounds(8), cell(bins)), bins=bins)
    assert len(last.cells) == 1
    assert beyond.rejected["impossible_cell"] == 1


@pytest.mark.parametrize("claimed", [100, 2**62])
def test_dropped_rounds_count_only_as_far_as_time_allows(claimed: int) -> None:
    """The worker's own number: 60 s at 1 ms hold 60,000 rounds of 8 requests and no more."""
    for asked, believed in ((8 * 100, True), (8 * 60_001, False), (2**62, False)):
        cell = make_cell((asked,), (asked,), (asked,))
        found = bounded(make_report(1, make_rounds(8), cell), dropped=claimed)
        assert bool(found.cells) is believed
        assert found.rejected["impossible_cell"] == (not believed)


def test_cells_of_drafters_never_introduced_are_dropped() -> None:
    found = bounded(make_report(1, make_rounds(8), make_cell(drafter="eagle")))
    assert found.cells == ()
    assert found.rejected["unknown_drafter"] == 1


def test_more_request_rounds_than_ran_are_not_believed() -> None:
    """Many cells that are possible one by one, and impossible together."""
    cells = [make_cell(request_class=f"c{i}") for i in range(5)]
    found = bounded(make_report(1, make_rounds(8, requests=2), *cells))
    assert len(found.cells) == 3
    assert found.rejected["impossible_cell"] == 2


def test_more_rounds_than_time_allows_are_rejected() -> None:
    report = make_report(2, make_rounds(3000))
    with pytest.raises(ReportRejectedError) as refused:
        bounded(report, credit_s=0.25)
    assert refused.value.reason == "too_many_rounds"
    assert len(bounded(report, credit_s=3.5).rounds) == 3000


def test_columns_of_unequal_length_are_malformed() -> None:
    from dataclasses import replace

    rounds: RoundColumns = replace(make_rounds(4), target_us=column([1, 2]))
    with pytest.raises(ReportRejectedError) as refused:
        bounded(make_report(1, rounds))
    assert refused.value.reason == "malformed"
    assert refused.value.reason in REASONS


def test_an_idle_report_is_valid_and_empty() -> None:
    found = bounded(make_report(1, make_rounds(0)))
    assert len(found.rounds) == 0
    assert not found.rejected


def test_odd_and_surplus_classes_become_other() -> None:
    assert class_label("", set(), 16) == "default"
    assert class_label("greedy", set(), 16) == "greedy"
    assert class_label("a|b", set(), 16) == "other"
    assert class_label("x" * 65, set(), 16) == "other"
    assert class_label("new", {f"c{i}" for i in range(15)}, 15) == "other"
    assert class_label("c3", {f"c{i}" for i in range(15)}, 15) == "c3"


def curve(rows: tuple[int, ...] = (1, 2), us: tuple[int, ...] | None = None) -> CostTable:
    times = tuple(10 * (i + 1) for i in range(len(rows))) if us is None else us
    return CostTable((CostCurve(0, rows, times),))


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"deployment": ""}, "deployment"),
        ({"deployment": "a b"}, "deployment"),
        ({"worker_incarnation": "x" * 100}, "worker_incarnation"),
        ({"limits": WorkerLimits(0, 8, 4)}, "max_running_requests"),
        ({"limits": WorkerLimits(16, 8, 4)}, "max_rows_per_forward"),
        ({"limits": WorkerLimits(4, 8, 1000)}, "max_draft_tokens"),
        ({"limits": WorkerLimits(2048, 65_536, 64)}, "too much to search"),
        ({"row_buckets": (4, 2)}, "ascend"),
        ({"pads_rows": True, "row_buckets": (4, 8)}, "bucket"),
        ({"drafters": (DrafterTraits("a"), DrafterTraits("a"))}, "named once"),
        ({"drafters": (DrafterTraits("a|b"),)}, "plain"),
        ({"drafters": (DrafterTraits("a", score_bins=17),)}, "score_bins"),
        ({"row_buckets": (1, 10**6)}, "row_buckets"),
        ({"cost_table": curve((2, 1))}, "ascend"),
        ({"cost_table": curve((1, 10**6))}, "at most"),
        ({"pads_rows": True, "cost_table": curve((1, 64))}, "up to 64 rows"),
        ({"cost_table": CostTable(curve((1,)).target + curve((2,)).target)}, "every context"),
        (
            {
                "pads_rows": True,
                "cost_table": CostTable(
                    curve((1, 128)).target, (DrafterCosts("a", feed=curve().target),)
                ),
            },
            "feed of 'a'",
        ),
        ({"cost_table": curve((1, 2), (10,))}, "equal length"),
        ({"cost_table": curve((1, 2), (0, 5))}, "positive"),
        ({"cost_table": curve((), ())}, "equal length"),
        (
            {
                "cost_table": CostTable(
                    curve().target,
                    (DrafterCosts("a", draft=(DraftCostGrid(0, (1,), (1, 2), (5, 5)),)),),
                )
            },
            "draft costs",
        ),
    ],
)
def test_malformed_hellos_are_refused_in_words(change: dict[str, Any], word: str) -> None:
    with pytest.raises(HelloRefusedError, match=word):
        check_hello(make_hello(**change))


def test_another_protocol_version_is_refused_as_such() -> None:
    with pytest.raises(ProtocolVersionError, match="version 2"):
        check_hello(make_hello(protocol_version=2))


def test_statistics_belong_to_model_drafter_and_engine() -> None:
    """Z03: what changes acceptance changes the digest, the machine does not."""
    base = EngineIdentity(model="m", model_digest="1", drafters=("ngram",), engine_version="1")
    other = [
        EngineIdentity(model="m", model_digest="2", drafters=("ngram",), engine_version="1"),
        EngineIdentity(model="m", model_digest="1", drafters=("mtp",), engine_version="1"),
        EngineIdentity(model="m", model_digest="1", drafters=("ngram",), engine_version="2"),
    ]
    digests = {statistics_digest(identity) for identity in (base, *other)}
    assert len(digests) == 4
    elsewhere = EngineIdentity(
        model="m", model_digest="1", drafters=("ngram",), engine_version="1", device="H200"
    )
    assert statistics_digest(elsewhere) == statistics_digest(base)
