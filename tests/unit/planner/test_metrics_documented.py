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


def test_every_series_is_in_the_guide() -> None:
    missing = [f"{name}{end}" for name, end in families().items() if f"`{name}{end}`" not in GUIDE]
    assert missing == []
