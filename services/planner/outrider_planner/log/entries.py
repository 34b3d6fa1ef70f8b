"""The lines of a decision log: one JSON object per input of the core, and per plan.

Knows how the core's values are written and read back without loss: integers and times come back
bit for bit, so that a replay decides as the planner did. Does not know files or Redis.

Every line has ``v`` (format), ``w`` (writer: the planner's incarnation), ``t`` (the planner's
monotonic seconds) and ``k`` (kind); the rest depends on the kind.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, is_dataclass
from enum import Enum
from typing import Any

import numpy as np

from outrider_planner.core.shared_costs import CostTableError, table_from_values
from outrider_planner.core.types import (
    AcceptanceCell,
    DrafterCost,
    DrafterTraits,
    EngineIdentity,
    GuardState,
    Hello,
    Plan,
    RoundColumns,
    StepReports,
    WorkerLimits,
)

FORMAT = 1


class LogError(ValueError):
    """A line that is no entry of a decision log."""


class TornLineError(LogError):
    """A line that is no JSON: half of one, most likely."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One line before it is encoded; ``values`` hold the core's own, immutable values."""

    kind: str
    time_s: float
    values: Mapping[str, Any]

    @property
    def weight(self) -> int:
        """What it holds in memory while it waits, in rounds."""
        report = self.values.get("report")
        return 1 + (len(report.rounds) if isinstance(report, StepReports) else 0)


def encode(entry: Entry, writer: str) -> str:
    """The line, without its end."""
    head = {"v": FORMAT, "w": writer, "t": entry.time_s, "k": entry.kind}
    return json.dumps({**head, **entry.values}, default=_plain, separators=(",", ":"))


def decode(line: str) -> dict[str, Any]:
    """A line's object.

    Raises:
        LogError: not JSON, without its head, or of a format that is not read here.
    """
    try:
        found = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise TornLineError("a line is no JSON") from error
    if not isinstance(found, dict) or not {"v", "w", "t", "k"} <= found.keys():
        raise LogError("a line has no v, w, t and k")
    if found["v"] != FORMAT:
        raise LogError(f"a line has format {found['v']!r}; this version reads {FORMAT}")
    return found


def plan_values(plan: Plan) -> dict[str, Any]:
    """What of a plan the log keeps: its integers, and the sentence."""
    return {
        "ladder": plan.requests_ladder,
        "draft_tokens": {item.drafter: item.draft_tokens for item in plan.drafters},
        "target_rows": {item.drafter: item.target_rows for item in plan.drafters},
        "policy": plan.policy,
        "reason": plan.reason,
    }


def hello_from(values: Mapping[str, Any]) -> Hello:
    """The hello of an entry. Raises ``LogError``."""
    try:
        table = values["cost_table"]
        nested = {
            "row_buckets": tuple(values["row_buckets"]),
            "identity": EngineIdentity(**_tuples(values["identity"], "drafters", "row_ladder")),
            "limits": WorkerLimits(**values["limits"]),
            "drafters": tuple(map(_traits, values["drafters"])),
            "cost_table": None if table is None else table_from_values(table),
        }
        return Hello(**{**values, **nested})
    except (KeyError, TypeError, ValueError, CostTableError) as error:
        raise LogError(f"an entry holds no hello: {error!r}") from error


def report_from(values: Mapping[str, Any]) -> StepReports:
    """The report of an entry. Raises ``LogError``."""
    try:
        guard = values["guard"]
        nested = {
            "rounds": RoundColumns(**_arrays(values["rounds"])),
            "cells": tuple(AcceptanceCell(**_arrays(cell)) for cell in values["cells"]),
            "guard": None if guard is None else GuardState(**guard),
        }
        return StepReports(**{**values, **nested})
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise LogError(f"an entry holds no report: {error!r}") from error


def _names(kind: Any) -> set[str]:
    return {item.name for item in fields(kind)}


def _traits(values: Mapping[str, Any]) -> DrafterTraits:
    return DrafterTraits(**{**values, "cost": DrafterCost(values["cost"])})


def _tuples(values: Mapping[str, Any], *names: str) -> dict[str, Any]:
    return {**values, **{name: tuple(values[name]) for name in names}}


def _arrays(values: Mapping[str, Any]) -> dict[str, Any]:
    """Lists as int64 columns, everything else as it is."""
    return {
        name: np.array(value, dtype=np.int64) if isinstance(value, list) else value
        for name, value in values.items()
    }


def _plain(value: object) -> Any:
    """The core's values as JSON takes them; called for what it does not know."""
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, StepReports | RoundColumns | AcceptanceCell):
        return {name: getattr(value, name) for name in _names(type(value))}
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    raise TypeError(f"{type(value).__name__} has no place in a decision log")
