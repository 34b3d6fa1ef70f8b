"""Rules and dashboards ask for what the services export, and say what they show."""

import json
import re
from collections.abc import Mapping
from pathlib import Path

import pytest
import yaml

from deploy.generate.__main__ import outdated
from deploy.generate.exported import exported_series
from tests.support.promql import names
from tests.support.questions import DASHBOARDS, ROOT, questions, rules

# What Prometheus itself adds, and what describes a target.
ADDED = {"job", "instance"}


@pytest.fixture(scope="module")
def series() -> Mapping[str, frozenset[str]]:
    """Exported by services, recorded by rules, or made by Prometheus."""
    recorded = {rule["record"]: names(rule["expr"]).labels for rule in rules() if "record" in rule}
    return {**exported_series(), **recorded, "up": frozenset()}


def test_a_misspelt_metric_and_label_would_be_found() -> None:
    found = names(
        'sum by (le, part) (rate(a_total{mode="x y", b=~"$c"}[5m] offset 1h)) / (b:c > 0)'
    )
    assert found.metrics == {"a_total", "b:c"}
    assert found.labels == {"le", "part", "mode", "b"}


def test_every_metric_exists(series: Mapping[str, frozenset[str]]) -> None:
    unknown = {q.where: names(q.expr).metrics - series.keys() for q in questions()}
    assert {where: left for where, left in unknown.items() if left} == {}


def test_every_label_exists(series: Mapping[str, frozenset[str]]) -> None:
    wrong = {}
    for question in questions():
        asked = names(question.expr)
        known = ADDED.union(*(series.get(metric, frozenset()) for metric in asked.metrics))
        wrong[question.where] = (asked.labels | question.shown) - known
    assert {where: left for where, left in wrong.items() if left} == {}


@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.stem)
def test_panels_can_be_told_apart_and_explain_themselves(path: Path) -> None:
    board = json.loads(path.read_text())
    panels = board["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    assert [p["title"] for p in panels if p["type"] != "row" and not p["description"]] == []
    sources = {json.dumps(p["datasource"]) for p in panels if p["type"] != "row"}
    assert sources == {json.dumps({"type": "prometheus", "uid": "${datasource}"})}
    for panel in panels:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
    assert not overlaps([panel["gridPos"] for panel in panels])


def overlaps(places: list[dict[str, int]]) -> bool:
    """Whether two panels cover the same spot."""
    spots = [
        (x, y)
        for place in places
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    return len(set(spots)) < len(spots)


def test_generated_files_are_up_to_date() -> None:
    assert outdated() == []


def test_every_alert_has_an_entry_in_the_runbook_and_tests_of_both_kinds() -> None:
    guide = (ROOT / "docs/operations.md").read_text()
    cases = yaml.safe_load((ROOT / "deploy/prometheus/tests/alerts_test.yml").read_text())
    alerts = [rule for rule in rules() if "alert" in rule]
    assert len(alerts) >= 13
    for rule in alerts:
        name = rule["alert"]
        assert rule["labels"]["severity"] in {"info", "warning", "critical"}
        assert rule["annotations"]["runbook"] == f"docs/operations.md#{name.lower()}"
        assert f"### {name}\n" in guide
        expected = [
            case["exp_samples"]
            for test in cases["tests"]
            for case in test["promql_expr_test"]
            if f'alertname="{name}", alertstate="firing"' in case["expr"]
        ]
        assert any(expected), f"{name} never fires in a test"
        assert not all(expected), f"{name} is never silent in a test"


def test_jobs_are_the_same_everywhere() -> None:
    """Rules name jobs; what scrapes must call them so, in compose as in Kubernetes."""
    config = yaml.safe_load((ROOT / "deploy/prometheus/prometheus.yml").read_text())
    scraped = {job["job_name"] for job in config["scrape_configs"]}
    monitors = yaml.safe_load_all(
        (ROOT / "deploy/kubernetes/components/monitoring/monitors.yaml").read_text()
    )
    monitored = {
        relabeling["replacement"]
        for monitor in monitors
        for endpoint in monitor["spec"]["endpoints"]
        for relabeling in endpoint["relabelings"]
    }
    asked = set(re.findall(r'job="([^"]+)"', " ".join(q.expr for q in questions())))
    assert scraped == monitored == {"outrider-router", "outrider-planner", "outrider-worker"}
    assert asked <= scraped
