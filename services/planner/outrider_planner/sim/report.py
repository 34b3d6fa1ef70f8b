"""What is shown of runs and claims: tables for people, JSON for programs, a plot per scenario.

Knows layout. Does not know how anything was measured.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from outrider_planner.core.types import FloatArray
from outrider_planner.sim.claims import Claim
from outrider_planner.sim.contenders import CLAIRVOYANT, Interval
from outrider_planner.sim.runner import Run
from outrider_planner.sim.svg import Line, Panel, chart

_WINDOW_ROUNDS = 25


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Rows with the columns of all of them, aligned."""
    columns = list(dict.fromkeys(name for row in rows for name in row))
    cells = [columns, *([_cell(row.get(name)) for name in columns] for row in rows)]
    widths = [max(len(line[i]) for line in cells) for i in range(len(columns))]
    lines = ["  ".join(c.rjust(w) for c, w in zip(line, widths, strict=True)) for line in cells]
    return "\n".join(lines)


def claim_lines(claims: Sequence[Claim]) -> str:
    """One claim a line: met or missed, value with its interval, and what there is to say.

    A single repetition has no interval.
    """
    return "\n".join(
        f"{'met   ' if claim.met else 'MISSED'} {claim.claim}: {claim.value:.4f}"
        f"{_range(claim)}target {'≤' if claim.at_most else '≥'} "
        f"{claim.target:g}{'; ' + claim.note if claim.note else ''}"
        for claim in claims
    )


def _range(claim: Claim) -> str:
    return f" ({claim.low:.4f}–{claim.high:.4f}), " if claim.high > claim.low else ", "


def write_json(path: Path, claims: Sequence[Claim]) -> None:
    """The list that programs read."""
    text = json.dumps([claim.as_json() for claim in claims], indent=1, ensure_ascii=False)
    path.write_text(text + "\n")


def scenario_rows(runs: Mapping[str, Sequence[Run]]) -> list[dict[str, Any]]:
    """Every contender of one scenario: its rate, or its time for the work, and what it drafted."""
    found = {name: Interval.of([_speed(run) for run in each]) for name, each in runs.items()}
    best = max(interval.value for interval in found.values())
    return [
        {
            "policy": name,
            **_speed_columns(each, found[name].value),
            **_spread_column(each, found[name]),
            "of_best": round(found[name].value / best, 4),
            "draft": round(_mean(each, "carried"), 2),
            "verified/n": round(_mean(each, "verified", "requests"), 2),
            "accepted/n": round(_mean(each, "accepted", "requests"), 2),
        }
        for name, each in runs.items()
    ]


def _fixed_work(run: Run) -> bool:
    return run.scenario.rounds is None


def _speed(run: Run) -> float:
    """More is better: tokens per second, or work per second."""
    return 1.0 / run.busy_s if _fixed_work(run) else run.rate()


def _spread_column(runs: Sequence[Run], found: Interval) -> dict[str, str]:
    """Half the interval's width; a single run has none."""
    return {"±": f"{found.high / found.value - 1.0:.1%}"} if len(runs) > 1 else {}


def _speed_columns(runs: Sequence[Run], speed: float) -> dict[str, float]:
    if not _fixed_work(runs[0]):
        return {"tokens_per_s": round(speed, 1)}
    token_ms = 1e3 * float(np.mean([run.token_s for run in runs]))
    return {"busy_s": round(1.0 / speed, 2), "ms_per_token": round(token_ms, 2)}


def plot(title: str, runs: Mapping[str, Run]) -> str:
    """One run of each contender: throughput, d, B, regret, predicted against realised."""
    panels = [
        Panel("tokens/s", tuple(_rate_line(name, run) for name, run in runs.items())),
        Panel("d (drafted last round)", _lines(runs, "carried")),
        Panel("B (rows)", tuple(_rows_line(name, run) for name, run in runs.items())),
    ]
    if CLAIRVOYANT in runs:
        panels.append(Panel("regret to the clairvoyant", _regret_lines(runs)))
    forecasts = _forecast_lines(runs)
    if forecasts:
        panels.append(Panel("accepted, predicted / realised", forecasts))
    return chart(title, "virtual seconds", panels)


def _times(run: Run) -> FloatArray:
    result: FloatArray = np.cumsum(run.column("measured_s"))
    return result


def _lines(runs: Mapping[str, Run], column: str) -> tuple[Line, ...]:
    return tuple(Line(name, _times(run), run.column(column)) for name, run in runs.items())


def _rows_line(name: str, run: Run) -> Line:
    return Line(name, _times(run), run.column("requests") + run.column("verified"))


def _rate_line(name: str, run: Run) -> Line:
    return Line(name, _times(run), _smooth_rate(run))


def _smooth_rate(run: Run) -> FloatArray:
    ones = np.ones(min(_WINDOW_ROUNDS, run.rounds.shape[0]))
    tokens = np.convolve(run.column("expected_tokens"), ones, mode="same")
    result: FloatArray = tokens / np.convolve(run.column("expected_s"), ones, mode="same")
    return result


def _regret_lines(runs: Mapping[str, Run]) -> tuple[Line, ...]:
    """By time, against the clairvoyant's smoothed rate at the same moment."""
    known = runs[CLAIRVOYANT]
    times, best = _times(known), _smooth_rate(known)
    return tuple(
        Line(name, _times(run), 1.0 - _smooth_rate(run) / np.interp(_times(run), times, best))
        for name, run in runs.items()
        if name != CLAIRVOYANT
    )


def _forecast_lines(runs: Mapping[str, Run]) -> tuple[Line, ...]:
    found = []
    for name, run in runs.items():
        known = [
            (at_s, forecast.predicted_accepted_tokens / forecast.realised_accepted_tokens)
            for at_s, forecast in run.forecasts
            if forecast.realised_accepted_tokens > 0
        ]
        if known:
            x, y = np.array(known).T
            found.append(Line(name, x, y))
    return tuple(found)


def _mean(runs: Sequence[Run], column: str, over: str | None = None) -> float:
    """Over the measured rounds of all runs; by round relative to another column."""
    first = runs[0].scenario.skip_rounds
    ratios = [run.column(column) / (run.column(over) if over else 1.0) for run in runs]
    return float(np.mean([ratio[first:].mean() for ratio in ratios]))


def _cell(value: Any) -> str:
    if value is None:
        return "–"
    return f"{value:.4g}" if isinstance(value, float) and abs(value) < 10 else str(value)
