"""The parts of a Grafana dashboard, as plain values that become its JSON.

Knows the dashboard format (schema 39), panel kinds, and how panels are laid out. Does not know any
metric of Outrider. Every panel says in its description what to read from it.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

Json = dict[str, Any]

WIDTH_COLUMNS = 24
TOKENS_PER_S = "si:tok/s"  # a unit of one's own, shortened as k, M, …
DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}


@dataclass(frozen=True)
class Query:
    """One PromQL expression and what its series are called."""

    expr: str
    legend: str
    heat: bool = False

    def json(self, index: int) -> Json:
        return {
            "refId": chr(ord("A") + index),
            "datasource": DATASOURCE,
            "expr": self.expr,
            "legendFormat": self.legend,
            "format": "heatmap" if self.heat else "time_series",
        }


@dataclass(frozen=True)
class Panel:
    """A panel; `options` and `custom` are of its kind."""

    kind: str
    title: str
    description: str
    queries: tuple[Query, ...]
    unit: str
    columns: int
    rows: int
    options: Json
    custom: Json
    limits: Json

    def json(self, number: int, column: int, row: int) -> Json:
        return {
            "id": number,
            "type": self.kind,
            "title": self.title,
            "description": self.description,
            "datasource": DATASOURCE,
            "gridPos": {"x": column, "y": row, "w": self.columns, "h": self.rows},
            "targets": [query.json(index) for index, query in enumerate(self.queries)],
            "options": self.options,
            "fieldConfig": {
                "defaults": {"unit": self.unit, "custom": self.custom, **self.limits},
                "overrides": [],
            },
        }


def lines(
    title: str, description: str, *queries: Query, unit: str = "short", stacked: bool = False
) -> Panel:
    """Series over time; stacked where their sum means something."""
    custom = {
        "lineWidth": 1,
        "fillOpacity": 25 if stacked else 5,
        "stacking": {"mode": "normal" if stacked else "none"},
    }
    options = {"legend": {"displayMode": "table", "placement": "bottom", "calcs": ["lastNotNull"]}}
    limits: Json = {"min": 0}
    return Panel("timeseries", title, description, queries, unit, 8, 8, options, custom, limits)


def number(title: str, description: str, query: Query, unit: str = "short") -> Panel:
    """The latest value, large."""
    options = {"reduceOptions": {"calcs": ["lastNotNull"]}, "graphMode": "area"}
    return Panel("stat", title, description, (query,), unit, 4, 4, options, {}, {})


def bars(title: str, description: str, *queries: Query, unit: str = "short") -> Panel:
    """The latest values side by side."""
    options = {
        "orientation": "horizontal",
        "displayMode": "basic",
        "reduceOptions": {"calcs": ["lastNotNull"]},
    }
    return Panel("bargauge", title, description, queries, unit, 8, 8, options, {}, {"min": 0})


def heat(title: str, description: str, query: Query, unit: str = "short") -> Panel:
    """Values over time by colour: of a histogram, or of series that form a scale."""
    options = {
        "calculate": False,
        "yAxis": {"unit": unit},
        "color": {"mode": "scheme", "scheme": "Viridis"},
        "tooltip": {"mode": "single"},
    }
    return Panel("heatmap", title, description, (query,), unit, 8, 8, options, {}, {})


@dataclass(frozen=True)
class Row:
    """A heading and its panels, which fill lines from left to right."""

    title: str
    panels: tuple[Panel, ...]


@dataclass(frozen=True)
class Mark:
    """Moments drawn through every panel."""

    name: str
    expr: str
    color: str
    text: str

    def json(self) -> Json:
        return {
            "name": self.name,
            "datasource": DATASOURCE,
            "enable": True,
            "expr": self.expr,
            "iconColor": self.color,
            "titleFormat": self.name,
            "textFormat": self.text,
        }


def dashboard(
    uid: str,
    title: str,
    description: str,
    rows: Sequence[Row],
    marks: Iterable[Mark] = (),
    variables: Iterable[Json] = (),
) -> Json:
    """The whole file."""
    return {
        "uid": uid,
        "title": title,
        "description": description,
        "tags": ["outrider"],
        "schemaVersion": 39,
        "version": 1,
        "editable": False,
        "refresh": "10s",
        "time": {"from": "now-30m", "to": "now"},
        "timezone": "browser",
        "links": [{"type": "dashboards", "title": "Outrider", "tags": ["outrider"]}],
        "annotations": {"list": [mark.json() for mark in marks]},
        "templating": {"list": [_datasource_variable(), *variables]},
        "panels": _placed(rows),
    }


def label_variable(name: str, title: str, metric: str) -> Json:
    """A choice among the values of a label of one metric; all of them at first."""
    return {
        "name": name,
        "label": title,
        "type": "query",
        "datasource": DATASOURCE,
        "query": f"label_values({metric}, {name})",
        "includeAll": True,
        "allValue": ".*",
        "multi": True,
        "refresh": 2,
        "current": {"text": "All", "value": "$__all"},
    }


def _datasource_variable() -> Json:
    return {"name": "datasource", "label": "Source", "type": "datasource", "query": "prometheus"}


def _placed(rows: Sequence[Row]) -> list[Json]:
    placed: list[Json] = []
    y = 0
    for row in rows:
        heading = {"id": len(placed) + 1, "type": "row", "title": row.title, "collapsed": False}
        placed.append({**heading, "gridPos": {"x": 0, "y": y, "w": WIDTH_COLUMNS, "h": 1}})
        y += 1
        x = height = 0
        for panel in row.panels:
            if x + panel.columns > WIDTH_COLUMNS:
                x, y, height = 0, y + height, 0
            placed.append(panel.json(len(placed) + 1, x, y))
            x, height = x + panel.columns, max(height, panel.rows)
        y += height
    return placed
