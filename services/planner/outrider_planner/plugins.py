"""Policies that installed packages announce under the entry-point group ``outrider.policies``.

Knows how they are found. A package is imported only when its policy is asked for.
"""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points

from outrider_planner.core.policies import Factory, Policy

GROUP = "outrider.policies"


def installed_policies() -> dict[str, Factory]:
    """Factories by name, each taking what a configuration says after the colon."""
    return {point.name: _factory(point) for point in entry_points(group=GROUP)}


def _factory(point: EntryPoint) -> Factory:
    def build(argument: str) -> Policy:
        outside: Factory = point.load()
        return outside(argument)

    return build
