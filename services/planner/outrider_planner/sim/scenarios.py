"""Scenarios: a machine, a world of acceptance, a list of work, and what happens in between.

Knows how a scenario is written down and the ones that can be asked for by name. Does not know how
they are played (runner.py) or judged (baselines.py, suite.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from outrider_planner.sim.acceptance import CHAT, CODE, EDIT, ESSAY, MATH, PROSE, Domain, Spread
from outrider_planner.sim.cost_tables import MachineTable
from outrider_planner.sim.machine import TrueCosts
from outrider_planner.sim.worker import Shift
from outrider_planner.sim.world import Lengths, Stretch


@dataclass(frozen=True, slots=True)
class Scenario:
    """Everything but the policy and the seed.

    ``rounds`` None: the list is served to its end, as fixed work. ``warm``: the fleet's
    statistics are in the store before the worker starts. ``labelled``: the planner is told each
    request's domain as its class. ``skip_rounds`` are played before anything is measured.
    """

    name: str
    machine: str
    domains: tuple[Domain, ...]
    stretches: tuple[Stretch, ...]
    spread: Spread = Spread()
    lengths: Lengths = Lengths()
    truth: TrueCosts = TrueCosts()
    shifts: tuple[Shift, ...] = ()
    rounds: int | None = 400
    skip_rounds: int = 50
    draft_tokens: int = 7
    warm: bool = True
    labelled: bool = False
    report_interval_ms: int = 250
    plan_delay_s: float = 0.01

    @property
    def max_requests(self) -> int:
        """The most that ever run at once."""
        return max(stretch.limit for stretch in self.stretches)

    def most_rows(self, machine: MachineTable) -> int:
        """Rows for every draft of every request, as far as the machine goes."""
        wanted = self.max_requests * (1 + self.draft_tokens)
        return max(min(wanted, machine.most_rows), self.max_requests)

    @property
    def sparse(self) -> bool:
        """Whether the drafter often proposes fewer drafts than asked for."""
        return any(domain.hit < 1 or domain.reach < 1 for domain in self.domains)

    def shift_at(self, round_: int) -> Shift:
        """What holds in a round."""
        current = Shift(0)
        for shift in self.shifts:
            if round_ >= shift.first_round:
                current = shift
        return current


def steady(
    machine: str,
    requests: int,
    domains: Sequence[Domain],
    *,
    mix: Sequence[float] | None = None,
    name: str | None = None,
    **changes: object,
) -> Scenario:
    """n requests at all times; one that ends is replaced at once."""
    shares = tuple(mix) if mix else (1.0 / len(domains),) * len(domains)
    text = name or f"steady:{machine}:{'+'.join(d.name for d in domains)}:n={requests}"
    stretches = (Stretch(max(64, 8 * requests), requests, shares),)
    scenario = Scenario(text, machine, tuple(domains), stretches)
    return replace(scenario, **changes)  # type: ignore[arg-type]


def dip(machine: str = "h200_14b", requests: int = 16, span_rounds: int = 300) -> Scenario:
    """Acceptance good, then next to none, then good again (conditionals 0.8 → 0.05 → 0.8)."""
    good = Domain.of("good", (0.8,) * 7)
    shifts = (Shift(span_rounds, logit=-6.0), Shift(2 * span_rounds, logit=0.0))
    return steady(
        machine,
        requests,
        (good,),
        name=f"dip:{machine}:n={requests}",
        shifts=shifts,
        rounds=5 * span_rounds,
        skip_rounds=2 * span_rounds,
        spread=Spread(request=0.2, token=0.5),
    )


def churn(machine: str = "h200_14b", requests: int = 96) -> Scenario:
    """Short answers: a new request in nearly every round."""
    return steady(
        machine,
        requests,
        (CHAT, CODE),
        name=f"churn:{machine}:n={requests}",
        lengths=Lengths(mean_tokens=40.0, least_tokens=8),
        rounds=500,
        skip_rounds=150,
        warm=False,
    )


def switch(machine: str = "h200_14b", requests: int = 16, back: bool = False) -> Scenario:
    """All text turns from code to chat, or back."""
    first, second = (1, 0) if back else (0, 1)
    shifts = (Shift(0, domain=first), Shift(300, domain=second))
    return steady(
        machine,
        requests,
        (CODE, CHAT),
        name=f"switch:{machine}:n={requests}:{'to-code' if back else 'to-chat'}",
        shifts=shifts,
        rounds=500,
        skip_rounds=350,
    )


# Tokens per second that the 14B model gives without drafts, by n: what the ramp asks of it.
_PLAIN_RATES = {
    **{1: 112.0, 2: 224.0, 4: 445.0, 8: 880.0, 16: 1740.0, 32: 3350.0, 64: 6150.0},
    **{128: 10_000.0, 256: 12_500.0},
}


def ramp(machine: str = "h200_14b", octave_s: float = 4.0) -> Scenario:
    """Arrivals for which plain decoding runs 1 → 256 → 1 requests, code on the way up and prose
    on the way down. Fixed work: every policy serves the same requests."""
    lengths = Lengths()
    loads = (*_PLAIN_RATES, *reversed(_PLAIN_RATES))
    stretches = []
    for place, load in enumerate(loads):
        mix = (1.0, 0.0) if place < len(loads) // 2 else (0.0, 1.0)
        per_s = _PLAIN_RATES[load] / lengths.mean_tokens
        # The outermost steps last longer, so that more than one request runs alone.
        span_s = octave_s * max(1.0, 4.0 / load)
        stretches.append(Stretch(max(round(span_s * per_s), 2), 256, mix, per_s))
    return Scenario(
        name=f"ramp:{machine}",
        machine=machine,
        domains=(CODE, ESSAY),
        stretches=tuple(stretches),
        lengths=lengths,
        rounds=None,
        skip_rounds=0,
    )


def mixed(machine: str = "h200_14b", requests: int = 96, noise: float | None = 0.5) -> Scenario:
    """Chat, code and maths in one batch; scores of AUC 0.85 at a noise of 0.5."""
    return steady(
        machine,
        requests,
        (CHAT, CODE, MATH),
        name=f"mixed:{machine}:n={requests}:noise={noise}",
        spread=Spread(score_noise=noise),
    )


def sparse(machine: str = "cpu_135m", requests: int = 4) -> Scenario:
    """Prompt lookup: code edits and prose in one batch; most rounds of prose have no draft."""
    return steady(
        machine,
        requests,
        (EDIT, PROSE),
        name=f"sparse:{machine}:n={requests}",
        spread=Spread(score_noise=None),
    )


NAMED: Mapping[str, partial[Scenario]] = {
    "steady-code": partial(steady, "h200_14b", 16, (CODE,)),
    "steady-chat": partial(steady, "h200_14b", 128, (CHAT,)),
    "mixed": partial(mixed),
    "dip": partial(dip),
    "churn": partial(churn),
    "switch": partial(switch),
    "ramp": partial(ramp),
    "sparse": partial(sparse),
    "misread-costs": partial(
        steady,
        "h200_14b",
        64,
        (CODE,),
        name="misread-costs",
        truth=TrueCosts(target_factor=1.3, draft_factor=2.0),
    ),
    "bursts": partial(
        steady, "h200_14b", 64, (CODE,), name="bursts", spread=Spread(burst=1.0, burst_keep=0.97)
    ),
}
