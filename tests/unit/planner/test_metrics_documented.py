"""Every series of the planner stands in the guide, and those promised by name exist."""

from pathlib import Path

import pytest

from outrider_planner.metrics import PlannerMetrics

GUIDE = (Path(__file__).resolve().parents[3] / "docs" / "planner.md").read_text()
PREFIX = "outrider_planner_"
PROMISED = (
    *("draft_length", "verify_rows", "predicted_accepted_tokens", "realised_accepted_tokens"),
    *("predicted_round_seconds", "measured_round_seconds", "rate_vs_off_ratio"),
    *("headroom_ratio", "plan_age_seconds", "drift_events_total", "guard_trips_total"),
    *("store_up", "reports_dropped_total"),
    # What the guards did, what they allow to be lost, and how often they let drafts back in.
    *("guard_threshold_tokens", "guard_readmissions_total"),
)


def families() -> dict[str, str]:
    """Name, with the ending of its series, by family."""
    endings = {"counter": "_total"}
    return {
        family.name.removeprefix(PREFIX): endings.get(family.type, "")
        for family in PlannerMetrics().registry.collect()
        if family.name.startswith(PREFIX)
    }


@pytest.mark.parametrize("name", PROMISED)
def test_promised_names_exist(name: str) -> None:
    assert name in {family + ending for family, ending in families().items()}


def test_names_cannot_be_confused_when_they_are_summed_by_a_pattern() -> None:
    """G05: no series beside the one that is meant begins with a counter's whole name."""
    names = {name + ending for name, ending in families().items()}
    counters = {name for name in names if name.endswith("_total")}
    longer = [(one, other) for one in counters for other in names - {one} if other.startswith(one)]
    assert longer == []
    assert not [name for name in names if "position" in name]


def test_every_series_is_in_the_guide() -> None:
    missing = [f"{name}{end}" for name, end in families().items() if f"`{name}{end}`" not in GUIDE]
    assert missing == []
