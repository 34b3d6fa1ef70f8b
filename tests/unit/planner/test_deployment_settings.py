"""Settings of a deployment as values: their bounds, their text, and who wins."""

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider_planner.core.policies import parse
from outrider_planner.core.settings import (
    MOST_TEXT_BYTES,
    DeploymentSettings,
    SettingsConflictError,
    SettingsError,
)
from outrider_planner.core.settings_book import SettingsBook, Settled
from outrider_planner.core.types import ClassRule, GuardSettings, Objective

FULL = DeploymentSettings(
    policy="static:3",
    objective=Objective.LATENCY,
    latency_bound_s=0.05,
    max_draft_tokens=4,
    class_rules=(ClassRule("greedy", 2.0, 3), ClassRule("sampled")),
    shadows=("off", "static:2"),
    guard=GuardSettings(minimum_threshold_tokens=16.0, detectable_loss_ratio=0.05),
    version=7,
)


def book() -> SettingsBook:
    return SettingsBook(Settled(DeploymentSettings(), parse("two_stage")), parse)


def test_settings_survive_their_text() -> None:
    assert DeploymentSettings.from_json(FULL.to_json()) == FULL
    assert DeploymentSettings.from_json("{}") == DeploymentSettings()


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ([], "settings must be an object"),
        ({"polcy": "off"}, "no field polcy"),
        ({"policy": 3}, "policy must be a text"),
        ({"policy": " "}, "policy must be a text"),
        ({"objective": "profit"}, "objective must be one of throughput, latency"),
        ({"objective": ["latency"]}, "objective must be one of"),
        ({"objective": "latency"}, "latency needs latency_bound_s"),
        ({"latency_bound_s": float("nan")}, "latency_bound_s must be"),
        ({"latency_bound_s": 10**400}, "latency_bound_s must be"),
        ({"latency_bound_s": True}, "latency_bound_s must be"),
        ({"max_draft_tokens": 65}, "max_draft_tokens must be 0…64"),
        ({"max_draft_tokens": 2.5}, "max_draft_tokens must be 0…64"),
        ({"shadows": "off"}, "shadows must be a list"),
        ({"shadows": ["off", "off"]}, "each named once"),
        ({"shadows": [{}]}, "shadows must be"),
        ({"class_rules": [{"weight": 1}]}, "class_rules needs request_class"),
        ({"class_rules": [{"request_class": "a", "weight": -1}]}, "weight of 'a'"),
        ({"class_rules": [{"request_class": "a"}] * 2}, "each class named once"),
        ({"guard": {"enabled": False}}, "only a worker can switch its guard off"),
        ({"guard": {"detectable_loss_ratio": 0.9}}, "guard.detectable_loss_ratio must be"),
        ({"version": -1}, "version must be a whole number"),
    ],
)
def test_what_is_wrong_is_named(values: Any, words: str) -> None:
    with pytest.raises(SettingsError) as refused:
        DeploymentSettings.from_json(json.dumps(values))
    assert words in str(refused.value)


def test_texts_are_bounded_before_they_are_read() -> None:
    with pytest.raises(SettingsError, match="longer than"):
        DeploymentSettings.from_json(" " * (MOST_TEXT_BYTES + 1))
    with pytest.raises(SettingsError, match="no JSON"):
        DeploymentSettings.from_json("[" * 10_000)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=6,
)
names = st.sampled_from([*DeploymentSettings.__slots__, "other"])


@given(st.dictionaries(names, json_values, max_size=4))
def test_whatever_comes_is_read_or_refused(values: dict[str, Any]) -> None:
    try:
        found = DeploymentSettings.from_values(values)
    except SettingsError:
        return
    assert DeploymentSettings.from_json(found.to_json()) == found


def test_a_change_needs_the_version_that_was_read() -> None:
    settled = book()
    first = settled.put("demo", DeploymentSettings(policy="off"))
    assert (first.version, settled.of("demo").policy.name) == (1, "off")
    with pytest.raises(SettingsConflictError, match="version 1, not 0"):
        settled.put("demo", DeploymentSettings(policy="static:2"))
    assert settled.of("demo").settings == first
    assert settled.of("other").settings == DeploymentSettings()


def test_unknown_policies_change_nothing() -> None:
    settled = book()
    for wrong in (DeploymentSettings(policy="fastest"), DeploymentSettings(shadows=("fastest",))):
        with pytest.raises(SettingsError, match="unknown policy"):
            settled.put("demo", wrong)
    assert settled.of("demo").settings == DeploymentSettings()


def test_the_newer_version_wins_and_at_one_version_the_store() -> None:
    settled = book()
    mine = settled.put("demo", DeploymentSettings(policy="static:1"))
    assert not settled.adopt("demo", DeploymentSettings(policy="off"))
    assert not settled.adopt("demo", mine)
    assert settled.adopt("demo", replace(mine, policy="static:2"))
    assert settled.of("demo").policy.name == "static:2"
    assert settled.adopt("demo", replace(mine, policy="off", version=9))
    assert settled.of("demo").settings.version == 9
