"""Scenarios: a machine, a world of acceptance, a list of work, and what happens in between.

Knows how a scenario is written down and the ones that can be asked for by name. Does not know how
they are played (runner.py) or judged (baselines.py, targets.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from outrider_planner.sim.acceptance import CHAT, CODE, EDIT, ESSAY, MATH, PROSE, Domain, Spread
from outrider_planner.sim.cost_tables import CPU, MachineTable
from outrider_planner.sim.machine import TrueCosts
from outrider_planner.sim.worker import Shift
from outrider_planner.sim.world import Lengths, Stretch

# Published confidences have areas under the curve of 0.81 to 0.91. Tokens differ here so much that
# perfect scores reach 0.91; a noise of 1.95 on their logits leaves 0.85.
INFORMATIVE = Spread(token=2.2, score_noise=1.95)
PERFECT = replace(INFORMATIVE, score_noise=0.0)


@dataclass(frozen=True, slots=True)
class Scenario:
    """Everything but the policy and the seed.

    ``rounds`` None: the list is served to its end, as fixed work. ``skip_rounds`` are played
    before anything is measured. ``warm``: the fleet's statistics are in the store before the
    worker starts. ``labelled``: the planner is told each request's domain as its class.
    ``claims_dense``: a sparse drafter that does not say so.
    """

    name: str
    machine: str
    domains: tuple[Domain, ...]
    stretches: tuple[Stretch, ...]
    spread: Spread = field(default_factory=Spread)
    lengths: Lengths = field(default_factory=Lengths)
    truth: TrueCosts = field(default_factory=TrueCosts)
    shifts: tuple[Shift, ...] = ()
    rounds: int | None = 400
    skip_rounds: int = 50
    draft_tokens: int = 7
    warm: bool = True
    labelled: bool = False
    claims_dense: bool = False
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
    machine: str, requests: int, domains: Sequence[Domain], name: str = "", **changes: Any
) -> Scenario:
    """n requests at all times; one that ends is replaced at once. Domains in equal shares."""
    shares = (1.0 / len(domains),) * len(domains)
    text = name or f"steady:{machine}:{'+'.join(d.name for d in domains)}:n={requests}"
    stretches = (Stretch(max(64, 8 * requests), requests, shares),)
    return replace(Scenario(text, machine, tuple(domains), stretches), **changes)


def dip(machine: str = "h200_14b", requests: int = 16, span_rounds: int = 300) -> Scenario:
    """Acceptance good, then next to none, then good again (conditionals 0.8 → 0.05 → 0.8).

    Measured after the return, for eight times as long as the dip took.
    """
    return steady(
        machine,
        requests,
        (Domain.of("good", (0.8,) * 7),),
        name=f"dip:{machine}:n={requests}",
        shifts=(Shift(span_rounds, logit=-6.0), Shift(2 * span_rounds, logit=0.0)),
        rounds=10 * span_rounds,
        skip_rounds=2 * span_rounds,
        spread=Spread(request=0.2, token=0.5),
        lengths=Lengths(persistent=True),
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
    """All text turns from code to chat in round 300, or back."""
    first, second = (1, 0) if back else (0, 1)
    return steady(
        machine,
        requests,
        (CODE, CHAT),
        name=f"switch:{machine}:n={requests}:{'to-code' if back else 'to-chat'}",
        shifts=(Shift(0, domain=first), Shift(300, domain=second)),
        lengths=Lengths(persistent=True),
        rounds=500,
        skip_rounds=350,
    )


def ramp(machine: str = "h200_14b", each: int = 2) -> Scenario:
    """1 → 256 → 1 requests at once, with code on the way up and prose on the way down.

    Fixed work: every place serves so many requests at each step, however long it takes.
    """
    loads = (1, 2, 4, 8, 16, 32, 64, 128, 256)
    stretches = [
        *(Stretch(max(2, each * load), load, (1.0, 0.0)) for load in loads),
        *(Stretch(max(2, each * load), load, (0.0, 1.0)) for load in reversed(loads)),
    ]
    return _fixed_work(f"ramp:{machine}", machine, stretches)


# Tokens per second that the 14B model gives without drafts, by n: what the arrivals ask of it.
_PLAIN_RATES = {
    1: 112.0,
    2: 224.0,
    4: 445.0,
    8: 880.0,
    16: 1740.0,
    32: 3350.0,
    64: 6150.0,
    128: 10_000.0,
    256: 12_500.0,
}


def arrivals(machine: str = "h200_14b", octave_s: float = 2.0) -> Scenario:
    """Arrivals at which plain decoding runs 1 → 256 → 1 requests, in time; code, then prose.

    Fixed work from outside: a faster policy has fewer requests running at once.
    """
    loads = (*_PLAIN_RATES, *reversed(_PLAIN_RATES))
    stretches = []
    for place, load in enumerate(loads):
        mix = (1.0, 0.0) if place < len(loads) // 2 else (0.0, 1.0)
        per_s = _PLAIN_RATES[load] / Lengths().mean_tokens
        # The outermost steps last longer, so that more than one request runs alone.
        span_s = octave_s * max(1.0, 4.0 / load)
        stretches.append(Stretch(max(round(span_s * per_s), 2), 256, mix, per_s))
    return _fixed_work(f"arrivals:{machine}", machine, stretches)


def mixed(machine: str = "h200_14b", requests: int = 96, spread: Spread = INFORMATIVE) -> Scenario:
    """Chat, code and maths in one batch, that differ from token to token."""
    name = f"mixed:{machine}:n={requests}:noise={spread.score_noise}"
    return steady(machine, requests, (CHAT, CODE, MATH), name=name, spread=spread)


def lookups(machine: str = CPU, requests: int = 4) -> Scenario:
    """Prompt lookup: code edits and prose in one batch; most rounds of prose have no draft."""
    name = f"lookups:{machine}:n={requests}"
    return steady(machine, requests, (EDIT, PROSE), name=name, spread=Spread(score_noise=None))


def misread_costs(machine: str = "h200_14b", requests: int = 64) -> Scenario:
    """The target is 1.3 times as dear as its table says, the drafter twice."""
    truth = TrueCosts(target_factor=1.3, draft_factor=2.0)
    return steady(machine, requests, (CODE,), name="misread-costs", truth=truth)


def bursts(machine: str = "h200_14b", requests: int = 64) -> Scenario:
    """Requests go through easy and hard stretches of some thirty rounds."""
    spread = Spread(burst=1.0, burst_keep=0.97)
    return steady(machine, requests, (CODE,), name="bursts", spread=spread)


def long_contexts(machine: str = "h200_14b", requests: int = 32) -> Scenario:
    """Answers of thousands of tokens, whose drafts hold less and less.

    The clairvoyant knows the text and not that it changes: here a planner can beat it.
    """
    spread, lengths = Spread(context_fall=0.5), Lengths(mean_tokens=3000.0)
    return steady(
        machine, requests, (CODE,), name="long-contexts", spread=spread, lengths=lengths, rounds=800
    )


def _fixed_work(name: str, machine: str, stretches: Sequence[Stretch]) -> Scenario:
    return Scenario(name, machine, (CODE, ESSAY), tuple(stretches), rounds=None, skip_rounds=0)


def _steady_of(domain: Domain) -> Callable[..., Scenario]:
    def make(machine: str = "h200_14b", requests: int = 32) -> Scenario:
        return steady(machine, requests, (domain,))

    return make


# Every one takes ``machine``; those that hold a load steady take ``requests``.
NAMED: Mapping[str, Callable[..., Scenario]] = {
    "steady-chat": _steady_of(CHAT),
    "steady-code": _steady_of(CODE),
    "steady-math": _steady_of(MATH),
    "mixed": mixed,
    "perfect-scores": partial(mixed, spread=PERFECT),
    "useless-scores": partial(mixed, spread=replace(INFORMATIVE, score_noise=float("inf"))),
    "bursts": bursts,
    "long-contexts": long_contexts,
    "dip": dip,
    "switch": switch,
    "churn": churn,
    "ramp": ramp,
    "arrivals": arrivals,
    "lookups": lookups,
    "misread-costs": misread_costs,
}
