"""The guard bounds what speculation can cost, trips on real losses and on nothing else."""

import random

import pytest

from outrider_worker.engine.guard import Guard, GuardRound, Permission
from outrider_worker.engine.plans import GuardSettings

OFF_S = 0.05


class Machine:
    """A guard over simulated rounds: each costs `cost` plain rounds and emits `tokens`."""

    def __init__(self, seed: int = 0) -> None:
        self.guard = Guard()
        self.now_s = 0.0
        self.lost_tokens = 0.0
        self.drafting_rounds = 0
        self._random = random.Random(seed)

    def run(
        self, rounds: int, cost: float, accepted: float, slowness: float = 1.0, noise: float = 0.05
    ) -> None:
        """Draft whenever permitted; `accepted` drafts per round on average, at most 4."""
        for _ in range(rounds):
            permission = self.guard.permission(self.now_s)
            drafting = permission is not Permission.PLAIN
            emitted = 1 + (self._accepted(accepted) if drafting else 0)
            jitter = max(0.5, self._random.gauss(1.0, noise))
            elapsed_s = OFF_S * slowness * jitter * (cost if drafting else 1.0)
            self.now_s += elapsed_s
            self.drafting_rounds += drafting
            self.lost_tokens += elapsed_s / (OFF_S * slowness) - emitted
            self.guard.observe(
                GuardRound(
                    requests=1,
                    emitted_tokens=emitted,
                    verified_tokens=4 if drafting else 0,
                    speculative=drafting,
                    drafted=drafting,
                    elapsed_s=elapsed_s,
                    plain_s=elapsed_s,
                    off_s=OFF_S,
                ),
                trial=permission is Permission.TRIAL,
                now_s=self.now_s,
            )

    def _accepted(self, mean: float) -> int:
        return sum(self._random.random() < mean / 4 for _ in range(4))


@pytest.mark.parametrize("seed", range(5))
def test_a_hopeless_drafter_is_switched_off_within_the_bound(seed: int) -> None:
    """Always wrong drafts at half again the cost: the loss stays near the threshold for ever."""
    machine = Machine(seed)
    machine.run(200, cost=1.5, accepted=0.0)
    first = machine.guard.snapshot()
    assert first.trips >= 1
    assert first.tripped
    # θ of the start (σ = 0.6), and at most one round beyond it.
    assert machine.lost_tokens < 3.45 * 0.6**2 / 0.02 + 1
    lost_until_trip, drafting_until_trip = machine.lost_tokens, machine.drafting_rounds
    machine.run(4000, cost=1.5, accepted=0.0)
    # After that only trials: 0.3 % of the time, and the first round of each.
    assert machine.drafting_rounds - drafting_until_trip < 0.02 * 4000
    assert machine.lost_tokens - lost_until_trip < 0.006 * 4000


@pytest.mark.parametrize("seed", range(5))
def test_a_gain_of_five_per_cent_never_trips(seed: int) -> None:
    """1.4 accepted at 2.28 plain rounds' cost: 2.4 / 2.28 = 1.05 × off."""
    machine = Machine(seed)
    machine.run(5000, cost=2.28, accepted=1.4)
    assert machine.guard.snapshot().trips == 0


def test_a_loss_of_ten_per_cent_trips_within_a_few_hundred_rounds() -> None:
    machine = Machine()
    machine.run(400, cost=2.4 / 0.9, accepted=1.4)
    assert machine.guard.snapshot().trips >= 1


def test_a_slow_machine_is_no_losing_drafter() -> None:
    """Everything takes three times the table: plain rounds renew the scale before any trip."""
    machine = Machine()
    machine.run(100, cost=1.5, accepted=2.0)
    machine.run(600, cost=1.5, accepted=2.0, slowness=3.0)
    state = machine.guard.snapshot()
    assert state.trips == 0
    assert state.plain_scale_ratio > 2.0


def test_speculation_comes_back_when_it_pays_again() -> None:
    machine = Machine()
    machine.run(300, cost=1.5, accepted=0.0)
    assert machine.guard.snapshot().tripped
    machine.run(6000, cost=1.5, accepted=3.0)
    state = machine.guard.snapshot()
    assert state.readmissions == 1
    assert not state.tripped


def test_trial_waits_double_up_to_a_minute() -> None:
    machine = Machine()
    machine.run(20_000, cost=1.5, accepted=0.0)
    # 1000 simulated seconds: trials of 64 rounds at a share of 0.3 % / 50 %, ever longer waits.
    assert machine.guard.snapshot().trips == 1
    assert machine.drafting_rounds < 300


def test_a_disabled_guard_permits_everything() -> None:
    machine = Machine()
    machine.guard.settings = GuardSettings(enabled=False)
    machine.run(300, cost=3.0, accepted=0.0)
    assert machine.drafting_rounds == 300


def test_rounds_without_a_cost_table_are_not_booked() -> None:
    guard = Guard()
    for _ in range(100):
        guard.observe(GuardRound(1, 1, 4, True, True, 1.0, 1.0, 0.0), trial=False, now_s=0.0)
    assert guard.snapshot().ledger_tokens == 0.0
