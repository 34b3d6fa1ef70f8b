"""Policies: pure functions from a snapshot of statistics to a decision, chosen by name.

``parse`` understands ``two_stage``, ``static:4`` and ``off``; outside policies come in through
the registry's ``register``.
"""

from outrider_planner.core.policies.base import (
    Decision,
    DrafterStatistics,
    Policy,
    Snapshot,
)
from outrider_planner.core.policies.registry import UnknownPolicyError, parse, register

__all__ = [
    "Decision",
    "DrafterStatistics",
    "Policy",
    "Snapshot",
    "UnknownPolicyError",
    "parse",
    "register",
]
