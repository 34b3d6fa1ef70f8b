"""What a scenario allows at best: the clairvoyant's plan and the best fixed lengths in hindsight.

Knows the world's truth and uses it by plain enumeration over simulated batches, not by the
planner's own formulas, so that it can tell what those miss. Does not play rounds.

The clairvoyant knows the true survival of every (class, position, score bin), the true costs and
the mix of requests that is running (hard ones stay longer); it does not see single outcomes, nor
more of a draft than its score.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from outrider_planner.core.cost import request_ladder
from outrider_planner.core.types import MAX_BINS, FloatArray, IntArray, Plan
from outrider_planner.sim.acceptance import Drafter
from outrider_planner.sim.cost_tables import DRAFTER, named
from outrider_planner.sim.fleet import class_names, domain_shares
from outrider_planner.sim.machine import Machine
from outrider_planner.sim.plans import fixed_plan, static_plan
from outrider_planner.sim.scenarios import Scenario

_REQUESTS, _ROUNDS_EACH = 1024, 64


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """All choices at one n. ``verify`` (C,); the rest (K + 1, C), impossible ones infinite in
    seconds; ``pass_s`` is T + E, ``prepare_s`` (K + 1,) is D + c."""

    requests: int
    verify: IntArray
    gain: FloatArray
    pass_s: FloatArray
    prepare_s: FloatArray

    def rates(self) -> FloatArray:
        """Long-run tokens per second of every (d, V)."""
        result: FloatArray = (self.requests + self.gain) / (self.pass_s + self.prepare_s[:, None])
        return result

    def static_rates(self) -> FloatArray:
        """Of every K with all of it verified, (K + 1,)."""
        rates = self.rates()
        lengths = np.arange(rates.shape[0])
        full = np.minimum(self.requests * lengths, self.verify[-1])
        found: FloatArray = rates[lengths, np.searchsorted(self.verify, full)]
        return found

    def plan(self) -> tuple[int, IntArray]:
        """(d*, V* by carried d), by both stages."""
        rates = self.rates()
        length = int(rates.max(axis=1).argmax())
        value = np.where(np.isfinite(self.pass_s), self.gain - rates.max() * self.pass_s, -np.inf)
        return length, self.verify[value.argmax(axis=1)]


@dataclass(frozen=True, slots=True, eq=False)
class Chains:
    """A large sample of one request's round: class (M,), true survival and bins (M, K)."""

    request_class: IntArray
    survival: FloatArray
    bins: IntArray
    lengths: IntArray


class Truth:
    """Everything that can be known of a scenario whose text does not change."""

    def __init__(self, scenario: Scenario, chains: int = 16_384) -> None:
        """``chains``: how many are looked at for every n; more are more exact and slower."""
        self.scenario, self._most_chains = scenario, chains
        source = named(scenario.machine)
        requests, positions = scenario.max_requests, scenario.draft_tokens
        self._machine = Machine(source, requests, positions, scenario.truth)
        self._most_rows = scenario.most_rows(source)
        self._rng = np.random.default_rng(99)
        labels = class_names(scenario)
        self.classes = tuple(dict.fromkeys(labels))
        self._chains = self._sample([self.classes.index(label) for label in labels])
        self.maps = self._calibrated()
        self._score = self.maps[
            self._chains.request_class[:, None], np.arange(positions), self._chains.bins
        ]

    def step(self, requests: int) -> Step:
        """Gain and seconds of every (d, V) at n."""
        positions = self.scenario.draft_tokens
        verify = self._candidates(requests)
        gain = np.zeros((positions + 1, verify.size))
        pass_s = np.full(gain.shape, np.inf)
        context = self._context_tokens()
        rows = requests + np.arange(verify[-1] + 1)
        row_s = self._machine.expected_s(requests, rows, 0, context)
        prepare_s = np.array([self._prepare_s(requests, d, context) for d in range(positions + 1)])
        pass_s[0, 0] = row_s[0] - prepare_s[0]
        # With drafts in flight the drafter is fed also where none is verified.
        fed_s = self._machine.expected_s(requests, rows[:1], 1, context)[0] - prepare_s[1]
        row_s = row_s - prepare_s[0]
        row_s[0] = fed_s
        chains = self._batches(requests)
        for d in range(1, positions + 1):
            worth, pool = self._best_first(chains, d)
            reached = np.minimum(verify[None, :], pool[:, None])
            gain[d] = np.take_along_axis(worth, reached, axis=1).mean(axis=0)
            seconds = row_s[reached].mean(axis=0)
            pass_s[d] = np.where(verify <= requests * d, seconds, np.inf)
        return Step(requests, verify, gain, pass_s, prepare_s)

    def _sample(self, class_of_domain: list[int]) -> Chains:
        """Requests as they are found running: the slower one is, the longer it is there."""
        scenario, rng = self.scenario, self._rng
        shift = scenario.shift_at(0)
        drafter = Drafter(scenario.domains, scenario.spread, scenario.draft_tokens, rng)
        domain = rng.choice(len(scenario.domains), _REQUESTS, p=domain_shares(scenario))
        request = np.repeat(np.arange(_REQUESTS), _ROUNDS_EACH)
        logits = scenario.spread.request * rng.standard_normal(_REQUESTS)
        each = logits[request] + shift.logit
        each += scenario.spread.burst * rng.standard_normal(request.size)
        drafts = drafter.draw(domain[request], each, scenario.draft_tokens)
        exists = np.arange(scenario.draft_tokens) < drafts.lengths[:, None]
        accepted = (drafts.survival * exists).sum(axis=1).reshape(_REQUESTS, -1).mean(axis=1)
        lasting = scenario.lengths.persistent
        stay = np.ones(_REQUESTS) if lasting else 1.0 / (1.0 + accepted)
        weight = np.repeat(stay, _ROUNDS_EACH)
        kept = rng.choice(request.size, request.size, p=weight / weight.sum())
        of_class = np.array(class_of_domain)[domain[request]]
        return Chains(
            of_class[kept], drafts.survival[kept], drafts.bins[kept], drafts.lengths[kept]
        )

    def _calibrated(self) -> FloatArray:
        """Mean true survival by (class, position, bin), falling along chains."""
        chains, positions = self._chains, self.scenario.draft_tokens
        maps = np.zeros((len(self.classes), positions, MAX_BINS))
        for c in range(len(self.classes)):
            of = chains.request_class == c
            for j in range(positions):
                there = of & (chains.lengths > j)
                count = np.bincount(chains.bins[there, j], minlength=MAX_BINS)
                total = np.bincount(
                    chains.bins[there, j], chains.survival[there, j], minlength=MAX_BINS
                )
                before = maps[c, j - 1] if j else np.ones(MAX_BINS)
                mean = np.where(count > 0, total / np.maximum(count, 1), before)
                maps[c, j] = np.minimum(mean, before)
        return maps

    def _batches(self, requests: int) -> IntArray:
        """(batches, n) places of chains."""
        batches = max(self._most_chains // requests, 8)
        return self._rng.integers(0, self._chains.lengths.size, (batches, requests))

    def _best_first(self, chains: IntArray, length: int) -> tuple[FloatArray, IntArray]:
        """Accepted drafts if the V best of every batch are verified, (batches, n·d + 1), and the
        pools, (batches,)."""
        batches = chains.shape[0]
        # By position, then by request: the order in which equals are taken.
        exists = np.arange(length)[:, None] < self._chains.lengths[chains][:, None, :]
        score = np.swapaxes(self._score[chains, :length], 1, 2)
        score = np.where(exists, np.minimum.accumulate(score, axis=1), -1.0).reshape(batches, -1)
        survival = np.swapaxes(self._chains.survival[chains, :length], 1, 2)
        survival = np.where(exists, survival, 0.0).reshape(batches, -1)
        order = np.argsort(-score, axis=1, kind="stable")
        worth = np.cumsum(np.take_along_axis(survival, order, axis=1), axis=1)
        pool: IntArray = exists.reshape(batches, -1).sum(axis=1)
        return np.concatenate([np.zeros((batches, 1)), worth], axis=1), pool

    def _candidates(self, requests: int) -> IntArray:
        positions = self.scenario.draft_tokens
        most = min(requests * positions, self._most_rows - requests)
        source = named(self.scenario.machine)
        if not source.pads_rows:
            return np.arange(most + 1)
        full = requests * np.arange(positions + 1)
        verify = np.concatenate([np.array(source.row_buckets) - requests, full, [most]])
        return np.unique(verify[(verify >= 0) & (verify <= most)])

    def _context_tokens(self) -> float:
        """Mean over running requests: half of an exponential life is its mean."""
        lengths = self.scenario.lengths
        return lengths.prompt_tokens + lengths.mean_tokens

    def _prepare_s(self, requests: int, length: int, context: float) -> float:
        return self._machine.prepare_s(requests, length, context)


@lru_cache(maxsize=64)
def truth_of(scenario: Scenario) -> Truth:
    """The truth of a scenario, worked out once."""
    return Truth(scenario)


def clairvoyant_plan(scenario: Scenario) -> Plan:
    """The best plan of one who knows the world as it is at first; for every n that occurs."""
    truth = truth_of(scenario)
    ladder = request_ladder(scenario.max_requests)
    positions = scenario.draft_tokens
    lengths, rows = [], []
    fixed_load = len({stretch.limit for stretch in scenario.stretches}) == 1 and scenario.rounds
    for n in ladder:
        if fixed_load and n != ladder[-1]:
            lengths.append(0)
            rows.append([n] * (positions + 1))
            continue
        length, verify = truth.step(n).plan()
        lengths.append(length)
        rows.append((n + verify).tolist())
    maps = [*zip(truth.classes, truth.maps, strict=True)]
    return fixed_plan(ladder, DRAFTER, lengths, rows, maps, policy="clairvoyant")


def static_plan_of(scenario: Scenario, draft_tokens: int) -> Plan:
    """K at every n, all verified as far as rows go."""
    ladder = request_ladder(scenario.max_requests)
    most = scenario.most_rows(named(scenario.machine))
    return static_plan(ladder, DRAFTER, draft_tokens, scenario.draft_tokens, most)


def likely_best_lengths(scenario: Scenario, count: int = 2) -> tuple[int, ...]:
    """The fixed lengths that can be best at a steady load, by expectation; best first."""
    rates = truth_of(scenario).step(scenario.max_requests).static_rates()
    order = np.argsort(-rates, kind="stable")[:count]
    return tuple(order.tolist())


def frozen_at(scenario: Scenario, round_: int) -> Scenario:
    """The same world with the text of one round for ever."""
    return replace(scenario, shifts=(replace(scenario.shift_at(round_), first_round=0),))
