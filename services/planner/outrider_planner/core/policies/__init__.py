"""Policies: pure functions from a snapshot of statistics to a decision, chosen by name.

``parse`` understands ``two_stage``, ``lightspec``, ``dspark``, ``table:1=7,8=3,32=0``,
``static:4`` and ``off``, and outside policies handed to it.
"""

from outrider_planner.core.policies.base import (
    Bounds,
    Decision,
    DrafterStatistics,
    Policy,
    Snapshot,
    remembers_rounds,
)
from outrider_planner.core.policies.history import RoundHistory
from outrider_planner.core.policies.registry import Factory, UnknownPolicyError, parse, usages
from outrider_planner.core.policies.rules import bounded

__all__ = [
    "Bounds",
    "Decision",
    "DrafterStatistics",
    "Factory",
    "Policy",
    "RoundHistory",
    "Snapshot",
    "UnknownPolicyError",
    "bounded",
    "parse",
    "remembers_rounds",
    "usages",
]
