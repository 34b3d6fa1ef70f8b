"""How often a younger stream may take over from a living one."""

import pytest

from outrider_planner.core.hellos import NameTakenError
from outrider_planner.sessions import MOST_TAKEOVERS, TAKEOVER_EVERY_S, Takeovers


def test_takeovers_come_in_a_burst_and_then_at_a_rate() -> None:
    takeovers = Takeovers()
    for _ in range(MOST_TAKEOVERS):
        takeovers.count("w", 0.0)
    with pytest.raises(NameTakenError, match="another worker"):
        takeovers.count("w", 0.0)
    takeovers.count("other", 0.0)
    takeovers.count("w", TAKEOVER_EVERY_S)
    with pytest.raises(NameTakenError):
        takeovers.count("w", TAKEOVER_EVERY_S)


def test_a_refusal_costs_nothing_and_old_debts_are_forgotten() -> None:
    takeovers = Takeovers()
    for second in range(2000):
        takeovers.count(f"w{second}", float(second))
    assert len(takeovers._paid_s) <= 11
    for _ in range(MOST_TAKEOVERS):
        takeovers.count("w", 5000.0)
    for _ in range(100):
        with pytest.raises(NameTakenError):
            takeovers.count("w", 5000.0)
    takeovers.count("w", 5000.0 + TAKEOVER_EVERY_S)
