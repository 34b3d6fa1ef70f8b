"""Line charts as SVG text: a few panels over one axis, without a library.

Knows how to draw. Does not know what is drawn.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

import numpy as np

from outrider_planner.core.types import FloatArray

_WIDTH, _PANEL, _LEFT, _TOP, _GAP = 900, 190, 70, 34, 26
_COLOURS = ("#1b6ca8", "#c0392b", "#2e8b57", "#8e44ad", "#d68910", "#566573")
_MOST_POINTS = 450


@dataclass(frozen=True, slots=True, eq=False)
class Line:
    """One curve of equal-length x and y."""

    label: str
    x: FloatArray
    y: FloatArray


@dataclass(frozen=True, slots=True)
class Panel:
    """Curves over one pair of axes."""

    title: str
    lines: tuple[Line, ...]


def chart(title: str, x_label: str, panels: Sequence[Panel]) -> str:
    """The panels under one another, sharing their x axis."""
    height = _TOP + len(panels) * (_PANEL + _GAP) + 20
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{height}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{_WIDTH}" height="{height}" fill="white"/>',
        _text(_LEFT, 20, title, "font-weight='bold' font-size='14'"),
    ]
    ends = np.concatenate([line.x for panel in panels for line in panel.lines])
    x_range = (float(ends.min()), float(ends.max()))
    for place, panel in enumerate(panels):
        parts += _panel(panel, x_range, _TOP + place * (_PANEL + _GAP))
    parts += [_text(_WIDTH // 2, height - 6, x_label), "</svg>"]
    return "\n".join(parts)


def _panel(panel: Panel, x_range: tuple[float, float], top: int) -> list[str]:
    values = np.concatenate([line.y[np.isfinite(line.y)] for line in panel.lines])
    low, high = (float(values.min()), float(values.max())) if values.size else (0.0, 1.0)
    low = min(low, 0.0) if low < 0.5 * high else low
    high = high if high > low else low + 1.0
    width = _WIDTH - _LEFT - 20
    parts = [
        f'<rect x="{_LEFT}" y="{top}" width="{width}" height="{_PANEL}" fill="none" '
        'stroke="#bbb"/>',
        _text(_LEFT + 4, top + 14, panel.title),
        _text(4, top + 12, f"{high:.4g}"),
        _text(4, top + _PANEL, f"{low:.4g}"),
        _text(_LEFT, top + _PANEL + 14, f"{x_range[0]:.4g}"),
        _text(_WIDTH - 60, top + _PANEL + 14, f"{x_range[1]:.4g}"),
    ]
    for place, line in enumerate(panel.lines):
        colour = _COLOURS[place % len(_COLOURS)]
        parts.append(_polyline(line, x_range, (low, high), top, colour))
        at = _LEFT + 220 + 110 * place
        parts.append(_text(at, top + 14, line.label, f"fill='{colour}'"))
    return parts


def _polyline(
    line: Line, x_range: tuple[float, float], y_range: tuple[float, float], top: int, colour: str
) -> str:
    x, y = _thinned(line.x), _thinned(line.y)
    span = max(x_range[1] - x_range[0], 1e-12)
    at_x = _LEFT + (x - x_range[0]) / span * (_WIDTH - _LEFT - 20)
    at_y = top + _PANEL - (y - y_range[0]) / (y_range[1] - y_range[0]) * _PANEL
    points = " ".join(f"{a:.1f},{b:.1f}" for a, b in zip(at_x, at_y, strict=True) if np.isfinite(b))
    return f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="1.3"/>'


def _thinned(values: FloatArray) -> FloatArray:
    """Means over neighbours, where there are more points than can be seen."""
    each = -(-values.size // _MOST_POINTS)
    if each <= 1:
        return values
    whole = values.size // each * each
    result: FloatArray = values[:whole].reshape(-1, each).mean(axis=1)
    return result


def _text(x: float, y: float, text: str, style: str = "") -> str:
    return f'<text x="{x}" y="{y}" {style}>{escape(text)}</text>'
