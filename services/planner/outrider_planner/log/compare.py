"""Samples of a replay, gathered into what is worth printing: by policy, and by policy over time.

Knows means and ratios. Rates are predictions on the statistics that the logged plans gathered: a
policy that would have explored elsewhere is not given what it would have found there.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from outrider_planner.core.cells import Cell
from outrider_planner.log.replay import AS_LOGGED, Sample


@dataclass(frozen=True, slots=True)
class Line:
    """Means over the samples of one policy in a span of time; ``samples`` 0: all are None.

    ``rate_vs_logged_ratio``: of the sums of predicted rates, over the samples both have.
    """

    policy: str
    start_s: float
    end_s: float
    samples: int
    requests: float | None
    draft_tokens: float | None
    rows: float | None
    rate_tokens_per_s: float | None
    rate_vs_off_ratio: float | None
    rate_vs_logged_ratio: float | None


def summary(samples: Sequence[Sample]) -> list[Line]:
    """One line per policy, over the whole log."""
    if not samples:
        return []
    return _lines(samples, samples[0].time_s, samples[-1].time_s)


def over_time(samples: Sequence[Sample], spans: int = 20) -> list[Line]:
    """Lines per policy for so many equal spans of time, without the empty ones."""
    if not samples or spans < 1:
        return []
    first_s, last_s = samples[0].time_s, samples[-1].time_s
    length_s = max(last_s - first_s, 1e-9) / spans
    pieces: list[list[Sample]] = [[] for _ in range(spans)]
    for sample in samples:
        pieces[min(int((sample.time_s - first_s) / length_s), spans - 1)].append(sample)
    return [
        line
        for number, piece in enumerate(pieces)
        if piece
        for line in _lines(piece, first_s + number * length_s, first_s + (number + 1) * length_s)
    ]


def _lines(samples: Sequence[Sample], start_s: float, end_s: float) -> list[Line]:
    return [_line(name, samples, start_s, end_s) for name in samples[0].cells]


def _line(policy: str, samples: Sequence[Sample], start_s: float, end_s: float) -> Line:
    pairs = [
        (sample.requests, found, sample.cells[AS_LOGGED])
        for sample in samples
        if (found := sample.cells[policy]) is not None
    ]
    cells = [found for _, found, _ in pairs]
    return Line(
        *(policy, start_s, end_s, len(cells)),
        requests=_mean(n for n, _, _ in pairs),
        draft_tokens=_mean(c.draft_tokens for c in cells),
        rows=_mean(c.rows for c in cells),
        rate_tokens_per_s=_mean(c.rate_tokens_per_s for c in cells),
        rate_vs_off_ratio=_mean(c.rate_vs_off_ratio for c in cells),
        rate_vs_logged_ratio=_ratio([(found, logged) for _, found, logged in pairs if logged]),
    )


def _mean(values: Iterable[float]) -> float | None:
    found = list(values)
    return sum(found) / len(found) if found else None


def _ratio(pairs: Sequence[tuple[Cell, Cell]]) -> float | None:
    logged = sum(item.rate_tokens_per_s for _, item in pairs)
    return sum(item.rate_tokens_per_s for item, _ in pairs) / logged if logged > 0 else None
