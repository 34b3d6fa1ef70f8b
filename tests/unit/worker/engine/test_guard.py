"""The guard bounds what speculation can cost, trips on real losses and on nothing else."""

import random

import pytest

from outrider_worker.engine.guard import Guard, GuardRound, Permission
from outrider_worker.engine.trial import Trial

OFF_S = 0.05
# θ of the start: σ = 0.6.
FIRST_THRESHOLD = 3.45 * 0.6**2 / 0.02


class Machine:
    """A guard over simulated rounds, booked as the engine books them: drafts are made at the end
    of one round and verified in the next. Losses are counted in tokens per request, uncapped."""

    def __init__(self, seed: int = 0, requests: int = 1) -> None:
        self.guard = Guard()
        self.now_s = 0.0
        self.lost_tokens = 0.0
        self.verifying_rounds = 0
        self._requests = requests
        self._random = random.Random(seed)
        self._carried = Permission.PLAIN

    def run(
        self, rounds: int, cost: float, accepted: float, slowness: float = 1.0, noise: float = 0.05
    ) -> None:
        """Verify whatever was drafted; `accepted` of 4 drafts hold per request on average.

        A verifying round takes `cost` plain rounds.
        """
        for _ in range(rounds):
            carried, self._carried = self._carried, self.guard.permission(self.now_s)
            verifying = carried is not Permission.PLAIN
            emitted = self._requests + (self._accepted(accepted) if verifying else 0)
            jitter = max(0.5, self._random.gauss(1.0, noise))
            elapsed_s = OFF_S * slowness * jitter * (cost if verifying else 1.0)
            self.now_s += elapsed_s
            self.verifying_rounds += verifying
            self.lost_tokens += elapsed_s / (OFF_S * slowness) - emitted / self._requests
            self.guard.observe(self._round(emitted, verifying, elapsed_s, carried), self.now_s)

    def _round(
        self, emitted: int, verifying: bool, elapsed_s: float, carried: Permission
    ) -> GuardRound:
        return GuardRound(
            requests=self._requests,
            emitted_tokens=emitted,
            extra_rows=4 * self._requests if verifying else 0,
            speculative=verifying,
            drafted=self._carried is not Permission.PLAIN,
            elapsed_s=elapsed_s,
            plain_s=elapsed_s,
            off_s=OFF_S,
            trial=Permission.TRIAL in (carried, self._carried),
        )

    def _accepted(self, mean: float) -> int:
        return sum(self._random.random() < mean / 4 for _ in range(4 * self._requests))


@pytest.mark.parametrize("requests", [1, 8, 64])
@pytest.mark.parametrize("seed", range(3))
def test_a_hopeless_drafter_is_switched_off_within_the_bound(seed: int, requests: int) -> None:
    """Always wrong drafts at half again the cost: θ is lost once, then 0.3 % at most."""
    machine = Machine(seed, requests)
    machine.run(200, cost=1.5, accepted=0.0)
    first = machine.guard.snapshot()
    assert first.trips == 1
    assert machine.lost_tokens < FIRST_THRESHOLD + 1
    lost, rounds = machine.lost_tokens, 20_000
    machine.run(rounds, cost=1.5, accepted=0.0)
    state = machine.guard.snapshot()
    assert (state.trips, state.readmissions) == (1, 0)
    # The first look of every trial comes at its full share, before its price is known.
    assert machine.lost_tokens - lost < 0.003 * rounds + 20


@pytest.mark.parametrize("requests", [1, 8, 32, 64])
def test_a_drafter_that_loses_ten_per_cent_is_not_let_back_in_by_luck(requests: int) -> None:
    machine = Machine(1, requests)
    while not machine.guard.snapshot().tripped:
        machine.run(10, cost=2.4 / 0.9, accepted=1.4)
    lost, rounds = machine.lost_tokens, 30_000
    machine.run(rounds, cost=2.4 / 0.9, accepted=1.4)
    state = machine.guard.snapshot()
    assert (state.trips, state.readmissions) == (1, 0)
    assert machine.lost_tokens - lost < 0.003 * rounds + 20


@pytest.mark.parametrize("seed", range(5))
def test_a_gain_of_five_per_cent_never_trips(seed: int) -> None:
    """1.4 accepted at 2.28 plain rounds' cost: 2.4 / 2.28 = 1.05 × off."""
    machine = Machine(seed)
    machine.run(5000, cost=2.28, accepted=1.4)
    assert machine.guard.snapshot().trips == 0


def test_a_loss_of_ten_per_cent_trips_once_it_stands_out_of_the_noise() -> None:
    """σ ≈ 0.95 here, so θ ≈ 160 tokens; 0.27 are lost in a round."""
    machine = Machine()
    machine.run(900, cost=2.4 / 0.9, accepted=1.4)
    assert machine.guard.snapshot().trips == 1


def test_a_slow_machine_is_no_losing_drafter() -> None:
    """Everything takes three times the table: plain rounds renew the scale before any trip."""
    machine = Machine()
    machine.run(100, cost=1.5, accepted=2.0)
    machine.run(600, cost=1.5, accepted=2.0, slowness=3.0)
    state = machine.guard.snapshot()
    assert state.trips == 0
    assert state.plain_scale_ratio == pytest.approx(3.0, rel=0.2)


def test_a_hiccup_in_a_plain_round_does_not_blind_the_guard() -> None:
    """One plain round of a second among rounds of 50 ms; then drafts that lose a third."""
    machine = Machine()
    machine.guard.observe(
        GuardRound(1, 1, 0, speculative=False, drafted=False, elapsed_s=1, plain_s=1, off_s=OFF_S),
        0.0,
    )
    machine.run(400, cost=1.5, accepted=0.0)
    assert machine.guard.snapshot().trips == 1


def test_no_trip_before_the_scale_was_renewed() -> None:
    """Drafts under way when L passes θ/2 are still booked; plain rounds come before the trip."""
    guard = Guard()
    steps = []
    for _ in range(60):
        permission = guard.permission(0.0)
        drafting = permission is Permission.SPECULATE
        steps.append((permission, guard.snapshot().trips))
        guard.observe(
            GuardRound(
                1, 1, 4 if drafting else 0, drafting, drafting, 0.6 if drafting else OFF_S, OFF_S,
                OFF_S,
            ),
            0.0,
        )  # fmt: skip
        if guard.snapshot().trips:
            break
    plain = [permission for permission, _ in steps].count(Permission.PLAIN)
    assert guard.snapshot().trips == 1
    assert plain == 3


def test_speculation_comes_back_when_it_pays_again() -> None:
    machine = Machine()
    machine.run(300, cost=1.5, accepted=0.0)
    assert machine.guard.snapshot().tripped
    machine.run(6000, cost=1.5, accepted=3.0)
    state = machine.guard.snapshot()
    assert (state.trips, state.readmissions) == (1, 1)
    assert not state.tripped


def test_a_disabled_guard_permits_everything_and_counts_nothing() -> None:
    machine = Machine()
    machine.guard = Guard(enabled=False)
    machine.run(300, cost=3.0, accepted=0.0)
    assert machine.verifying_rounds == 299
    assert machine.guard.snapshot().trips == 0


def test_rounds_without_a_cost_are_not_booked() -> None:
    guard = Guard()
    for _ in range(100):
        guard.observe(GuardRound(1, 1, 4, True, True, 1.0, 1.0, 0.0), now_s=0.0)
    assert guard.snapshot().ledger_tokens == 0.0


def test_a_trial_needs_rounds_and_requests_and_more_than_noise() -> None:
    trial = Trial()
    for number in range(16):
        assert not trial.over
        trial.book(64, 0.1, verifying=False)
        trial.book(64, -0.2 if number % 2 else 0.0, verifying=True)
    assert trial.over
    assert not trial.gained  # 0.1 − 0.1 on average
    clear = Trial()
    for _ in range(64):
        clear.book(1, -0.5, verifying=True)
    assert clear.over
    assert clear.gained
