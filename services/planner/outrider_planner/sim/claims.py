"""A claim with its target, its value over repetitions, and whether it is met.

Knows nothing of how anything was measured.
"""

from __future__ import annotations

from dataclasses import dataclass

from outrider_planner.core.types import FloatArray
from outrider_planner.sim.contenders import Interval


@dataclass(frozen=True, slots=True)
class Claim:
    """One row of the report. ``at_most``: the value must not exceed the target."""

    claim: str
    target: float
    value: float
    low: float
    high: float
    at_most: bool = False
    note: str = ""

    @property
    def met(self) -> bool:
        """By the mean over repetitions."""
        return self.value <= self.target if self.at_most else self.value >= self.target

    def as_json(self) -> dict[str, object]:
        """As `--json` writes it."""
        return {
            "claim": self.claim,
            "target": self.target,
            "value": round(self.value, 4),
            "low": round(self.low, 4),
            "high": round(self.high, 4),
            "met": self.met,
            "note": self.note,
        }


def claim_of(
    text: str, target: float, values: FloatArray, *, at_most: bool = False, note: str = ""
) -> Claim:
    """A claim about the mean of one value per repetition."""
    found = Interval.of(values)
    return Claim(text, target, found.value, found.low, found.high, at_most, note)
