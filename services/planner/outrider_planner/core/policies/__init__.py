"""Policies: pure functions from a snapshot of statistics to a decision, chosen by name.

``parse`` understands ``two_stage``, ``static:4`` and ``off``, and outside policies handed to it.
"""

from outrider_planner.core.policies.base import (
    Decision,
    DrafterStatistics,
    Policy,
    Snapshot,
)
from outrider_planner.core.policies.registry import Factory, UnknownPolicyError, parse

__all__ = [
    "Decision",
    "DrafterStatistics",
    "Factory",
    "Policy",
    "Snapshot",
    "UnknownPolicyError",
    "parse",
]
