"""A simulated worker: executes plans round by round, as the real one does.

Knows the order of one round: clamp, pick by score map, verify, emit, draft. Does not know where
plans come from, nor when they arrive. The rounds' expectations use the true survivals, so that
rates are measured without the noise of single acceptances.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from outrider_planner.core.types import FloatArray, IntArray
from outrider_planner.sim.acceptance import Drafter, Drafts
from outrider_planner.sim.machine import Machine, RoundTimes
from outrider_planner.sim.plans import PlanTables
from outrider_planner.sim.tally import RoundOutcome
from outrider_planner.sim.world import World

_NOISES = 256


class RoundRecord(NamedTuple):
    """One round as the results keep it; ``expected_tokens`` by the true survivals."""

    requests: int
    carried: int
    pool: int
    verified: int
    accepted: int
    expected_tokens: float
    expected_s: float
    measured_s: float


@dataclass(frozen=True, slots=True)
class Shift:
    """From a round on: every request's text becomes ``domain`` (None: keeps its own), and all
    logits move by ``logit``."""

    first_round: int
    domain: int | None = None
    logit: float = 0.0


class SimulatedWorker:
    """Serves a world with a drafter on a machine, obeying ``plan``."""

    def __init__(
        self,
        world: World,
        drafter: Drafter,
        machine: Machine,
        classes: IntArray,
        max_rows: int,
        rng: np.random.Generator,
    ) -> None:
        """``classes``: index of the class that the planner is told, by domain."""
        self.world, self.drafter, self.machine = world, drafter, machine
        self._class_of, self._max_rows, self._rng = classes, max_rows, rng
        self._drafts = Drafts(np.zeros((0, 0)), np.zeros((0, 0), np.int64), np.zeros(0, np.int64))
        self._asked = np.zeros(0, dtype=np.int64)
        self._burst = np.zeros(0)
        self._carried, self._probe_phase, self._plain_phase = 0, 0.0, 0.0
        self._probing = False
        self._noise = np.zeros((0, 4))
        self.rounds = 0

    @property
    def has_work(self) -> bool:
        """Whether any request runs or waits."""
        world = self.world
        return world.endless or world.requests > 0 or world.started < len(world.work)

    @property
    def prevailing_domain(self) -> int:
        """The domain that most running requests came with."""
        return int(np.bincount(self.world.work.domain[self.world.request], minlength=1).argmax())

    def idle_s(self, now_s: float) -> float:
        """How long there is nothing to do."""
        return 0.0 if self.world.requests else max(self.world.next_arrival_s() - now_s, 0.0)

    def warm_start(self) -> None:
        """In an endless world requests start in the middle of their lives."""
        self._join(self.world.admit(0.0))
        if self.world.endless:
            self.world.age(self._rng)

    def round(
        self, tables: PlanTables, shift: Shift, now_s: float
    ) -> tuple[RoundOutcome, RoundRecord]:
        """Plays one round; at least one request runs or has arrived."""
        self._join(self.world.admit(now_s))
        n = self.world.requests
        verified = self._pick(tables, self._verify_tokens(tables, n))
        verify = int(verified.sum())
        accepted, expected = self._judge(verified)
        emitted = accepted + 1
        domain = self._domain(shift)
        next_tokens = self._next_draft_tokens(tables, n)
        context = int(self.world.context_tokens.sum())
        times = self.machine.times(n, n + verify, next_tokens, context / n, self._next_noise())
        outcome = RoundOutcome(
            requests=n,
            carried=self._carried,
            rows=n + verify,
            bucket=int(self.machine.bucket_of[n + verify]),
            context_tokens=context,
            next_draft_tokens=next_tokens,
            times=times,
            request_class=self._classes(),
            asked=self._asked,
            lengths=self._drafts.lengths,
            verified=verified,
            accepted=accepted,
            emitted=int(emitted.sum()),
            bins=self._drafts.bins,
        )
        record = _record(outcome, n + expected, verify)
        self._advance(emitted, times, domain, next_tokens, shift.logit)
        return outcome, record

    def _join(self, new: int) -> None:
        """Requests that just started have no drafts in their first round."""
        if not new:
            return
        d = self._carried
        self._drafts = Drafts(
            np.concatenate([self._drafts.survival, np.zeros((new, d))]),
            np.concatenate([self._drafts.bins, np.zeros((new, d), np.int64)]),
            np.concatenate([self._drafts.lengths, np.zeros(new, np.int64)]),
        )
        self._asked = np.concatenate([self._asked, np.zeros(new, np.int64)])
        fresh = self.drafter.spread.burst * self._rng.standard_normal(new)
        self._burst = np.concatenate([self._burst, fresh])

    def _verify_tokens(self, tables: PlanTables, requests: int) -> int:
        """V within the pool and the row limit; a probe verifies all; buckets are filled."""
        pool = int(self._drafts.lengths.sum())
        most = min(pool, self._max_rows - requests)
        if self._probing:
            return most
        self._plain_phase += tables.plan.probe.plain_share
        if self._plain_phase >= 1.0:
            self._plain_phase -= 1.0
            return 0
        planned = min(tables.verify_tokens(requests, self._carried), most)
        if planned in (0, most):
            return planned
        return min(int(self.machine.bucket_of[requests + planned]) - requests, most)

    def _pick(self, tables: PlanTables, verify: int) -> IntArray:
        """How many drafts of each chain: the V of best rank, a prefix of every chain, (n,)."""
        lengths = self._drafts.lengths
        if verify >= int(lengths.sum()):
            return lengths
        if verify == 0:
            return np.zeros_like(lengths)
        bins = self._drafts.bins
        position = np.arange(bins.shape[1])
        rank = tables.rank[self._classes()[:, None], position, bins]
        np.maximum.accumulate(rank, axis=1, out=rank)
        rank[position >= lengths[:, None]] = np.iinfo(np.uint16).max
        # By position, then by request: the order in which equals are taken.
        order = np.argsort(rank.T, axis=None, kind="stable")[:verify]
        return np.bincount(order % lengths.size, minlength=lengths.size)

    def _judge(self, verified: IntArray) -> tuple[IntArray, float]:
        """Accepted drafts by request, and their expected number in all."""
        survival, u = self._drafts.survival, self._rng.random((verified.size, 1))
        if survival.shape[1] == 0:
            return np.zeros_like(verified), 0.0
        # A request's last token comes from the target: drafts beyond its end are in vain.
        counted = np.minimum(verified, self.world.left_tokens - 1)
        shown = np.where(np.arange(survival.shape[1]) < counted[:, None], survival, 0.0)
        accepted = (u < shown).sum(axis=1)
        return accepted, float(shown.sum())

    def _next_draft_tokens(self, tables: PlanTables, requests: int) -> int:
        planned = tables.draft_tokens(requests)
        self._probing = False
        probe = tables.plan.probe
        if planned or not probe.draft_tokens:
            return planned
        self._probe_phase += probe.cohort_share
        if self._probe_phase < 1.0:
            return 0
        self._probe_phase -= 1.0
        self._probing = True
        return min(probe.draft_tokens, self.drafter.positions)

    def _advance(
        self, emitted: IntArray, times: RoundTimes, domain: IntArray, drafts: int, logit: float
    ) -> None:
        """Ends finished requests and drafts for those that go on."""
        kept = self.world.emit(emitted, times.measured_s)
        if kept is not None:
            self._burst, domain = self._burst[kept], domain[kept]
        self._burst = self.drafter.burst(self._burst)
        spread = self.drafter.spread
        request_logits = (
            spread.request * self.world.work.difficulty[self.world.request] + self._burst + logit
        )
        if spread.context_fall:
            request_logits -= spread.context_fall * self.world.context_tokens / 1000.0
        made = self.drafter.draw(domain, request_logits, drafts)
        self._asked = np.full(domain.size, drafts, dtype=np.int64)
        self._drafts = made
        self._carried = drafts
        self.rounds += 1

    def _classes(self) -> IntArray:
        """What was known of a request before it ran, whatever its text turned into."""
        result: IntArray = self._class_of[self.world.work.domain[self.world.request]]
        return result

    def _domain(self, shift: Shift) -> IntArray:
        own = self.world.work.domain[self.world.request]
        return own if shift.domain is None else np.full_like(own, shift.domain)

    def _next_noise(self) -> FloatArray:
        place = self.rounds % _NOISES
        if place == 0:
            self._noise = np.clip(self._rng.standard_normal((_NOISES, 4)), -4.0, 4.0)
        row: FloatArray = self._noise[place]
        return row


def _record(outcome: RoundOutcome, expected_tokens: float, verify: int) -> RoundRecord:
    return RoundRecord(
        requests=outcome.requests,
        carried=outcome.carried,
        pool=int(outcome.lengths.sum()),
        verified=verify,
        accepted=int(outcome.accepted.sum()),
        expected_tokens=expected_tokens,
        expected_s=outcome.times.expected_s,
        measured_s=outcome.times.measured_s,
    )
