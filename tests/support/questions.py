"""Everything that rules, panels, marks and variables of `deploy` ask Prometheus."""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]
DASHBOARDS = sorted((ROOT / "deploy/grafana/dashboards").glob("*.json"))
RULES = sorted((ROOT / "deploy/prometheus/rules").glob("*.yml"))
_LEGEND = re.compile(r"\{\{\s*\$?(?:labels\.)?(\w+)\s*\}\}")
_VARIABLE = re.compile(r"label_values\((\w+), (\w+)\)")


@dataclass(frozen=True)
class Question:
    """An expression.

    Attributes:
        where: the rule's name, or dashboard and panel.
        kind: `record`, `alert`, `mark`, `variable`, or the panel's kind.
        shown: labels that a text beside it shows.
        unit: the panel's, empty elsewhere.
    """

    where: str
    expr: str
    kind: str
    shown: frozenset[str]
    unit: str = ""


def rules() -> Iterator[Mapping[str, Any]]:
    """Recording and alerting rules."""
    for path in RULES:
        for group in yaml.safe_load(path.read_text())["groups"]:
            yield from group["rules"]


def questions() -> Iterator[Question]:
    """All of them, variables of Grafana not yet filled in."""
    for rule in rules():
        kind = "record" if "record" in rule else "alert"
        texts = " ".join(rule.get("annotations", {}).values())
        shown = frozenset(re.findall(r"\$labels\.(\w+)", texts))
        yield Question(rule[kind], rule["expr"], kind, shown)
    for path in DASHBOARDS:
        yield from _of_dashboard(path.stem, json.loads(path.read_text()))


def _of_dashboard(name: str, board: Mapping[str, Any]) -> Iterator[Question]:
    for panel in board["panels"]:
        for target in panel.get("targets", ()):
            yield Question(
                f"{name}: {panel['title']}",
                target["expr"],
                panel["type"],
                _labels(target["legendFormat"]),
                panel["fieldConfig"]["defaults"]["unit"],
            )
    for mark in board["annotations"]["list"]:
        yield Question(f"{name}: {mark['name']}", mark["expr"], "mark", _labels(mark["textFormat"]))
    for variable in board["templating"]["list"]:
        if found := _VARIABLE.match(variable["query"]):
            where = f"{name}: {variable['name']}"
            yield Question(where, found[1], "variable", frozenset({found[2]}))


def _labels(text: str) -> frozenset[str]:
    return frozenset(_LEGEND.findall(text))
