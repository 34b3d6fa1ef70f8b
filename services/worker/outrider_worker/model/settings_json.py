"""Typed access to the settings of a config.json.

Knows: what kind of value is asked for, and how to say that another was found.
Does not know: what any setting means.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from outrider_worker.model.config import ModelError


@dataclass(frozen=True)
class JsonSettings:
    """Settings by name. A value of null is a missing one, except where a method says otherwise."""

    values: Mapping[str, Any]

    def count(self, name: str, default: int | None = None, least: int = 1) -> int:
        """A whole number from `least` up. Raises ModelError where it is none, or missing."""
        value = self._get(name, default)
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            kind = "a positive whole number" if least == 1 else f"a whole number from {least} up"
            raise ModelError(f"config.json: {name} must be {kind}, not {value!r}")
        return value

    def count_or_none(self, name: str, default: int | None) -> int | None:
        """As `count`, but null is None; only where nothing stands, the default counts."""
        value = self.values.get(name, default)
        return None if value is None else self.count(name, default)

    def number(self, name: str, default: float | None = None, above: float = -math.inf) -> float:
        """A finite number greater than `above`. Raises ModelError where it is none, or missing."""
        value = self._get(name, default)
        good = isinstance(value, int | float) and not isinstance(value, bool)
        if not good or not above < value < math.inf:
            bound = "" if above == -math.inf else f" above {above:g}"
            raise ModelError(f"config.json: {name} must be a number{bound}, not {value!r}")
        return float(value)

    def flag(self, name: str, default: bool) -> bool:
        """Raises ModelError where it is neither true nor false."""
        value = self._get(name, default)
        if not isinstance(value, bool):
            raise ModelError(f"config.json: {name} must be true or false, not {value!r}")
        return value

    def numbers(self, name: str) -> list[int]:
        """A list of whole numbers; empty where missing."""
        value = self._get(name, [])
        if not isinstance(value, list) or not all(type(entry) is int for entry in value):
            raise ModelError(f"config.json: {name} must list whole numbers, not {value!r}")
        return value

    def choice(self, name: str, known: tuple[str, ...], default: str) -> str:
        """One of `known`."""
        value = self._get(name, default)
        if value not in known:
            raise ModelError(
                f"config.json: {name} {value!r} is not supported: only {', '.join(known)}"
            )
        return str(value)

    def _get(self, name: str, default: Any) -> Any:
        value = self.values.get(name)
        return default if value is None else value
