"""Requests and how many of them run: fixed lists of work, served in order.

Knows each request's text, difficulty and length, and how the number of running requests follows
the work. Does not know drafts, plans or costs.

Request i starts once it has arrived and fewer than limit[i] run. With all arrivals at 0,
concurrency follows the work, not the clock. Either way every policy serves the same list in the
same order, and its speed shows in the time that takes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from outrider_planner.core.types import FloatArray, IntArray

_FOR_EVER = 1 << 40


@dataclass(frozen=True, slots=True, eq=False)
class WorkList:
    """Columns with one entry per request, in order of start.

    ``limit``: how many may run at once from this request's start on; ``arrival_s``: never before.
    """

    domain: IntArray
    difficulty: FloatArray
    tokens: IntArray
    prompt_tokens: IntArray
    limit: IntArray
    arrival_s: FloatArray

    def __len__(self) -> int:
        return int(self.domain.size)


@dataclass(frozen=True, slots=True)
class Stretch:
    """Part of a list: so many requests with one limit and one mix of domains (shares by index).

    ``arrivals_per_s`` 0: all of them wait at the door when their turn comes.
    """

    requests: int
    limit: int
    mix: tuple[float, ...] = (1.0,)
    arrivals_per_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Lengths:
    """Tokens per request: exponential about the mean, at least ``least_tokens``.

    ``persistent``: requests stay for the whole run, at the context they had at first.
    """

    mean_tokens: float = 256.0
    least_tokens: int = 16
    prompt_tokens: int = 256
    persistent: bool = False


def work_list(stretches: Sequence[Stretch], lengths: Lengths, rng: np.random.Generator) -> WorkList:
    """Draws a list; the same generator state gives the same list."""
    count = sum(stretch.requests for stretch in stretches)
    domain = [rng.choice(len(s.mix), s.requests, p=np.array(s.mix)) for s in stretches]
    extra = rng.exponential(lengths.mean_tokens - lengths.least_tokens, count)
    return WorkList(
        domain=np.concatenate(domain).astype(np.int64),
        difficulty=rng.standard_normal(count),
        tokens=lengths.least_tokens + extra.astype(np.int64),
        prompt_tokens=np.full(count, lengths.prompt_tokens, dtype=np.int64),
        limit=np.concatenate([np.full(s.requests, s.limit, dtype=np.int64) for s in stretches]),
        arrival_s=np.cumsum(np.concatenate([_gaps_s(s, rng) for s in stretches])),
    )


def _gaps_s(stretch: Stretch, rng: np.random.Generator) -> FloatArray:
    """Times between arrivals, (requests,): a Poisson stream."""
    if not stretch.arrivals_per_s:
        return np.zeros(stretch.requests)
    return rng.exponential(1.0 / stretch.arrivals_per_s, stretch.requests)


class World:
    """The running requests. Arrays (n,) in step with each other; new requests come last."""

    def __init__(self, work: WorkList, endless: bool, persistent: bool = False) -> None:
        """``endless``: the list starts over, for runs that are measured by rounds;
        ``persistent``: nothing ever ends."""
        self.work, self.endless, self._persistent = work, endless, persistent
        self.request = np.zeros(0, dtype=np.int64)
        self.left_tokens = np.zeros(0, dtype=np.int64)
        self.context_tokens = np.zeros(0, dtype=np.int64)
        self.started = 0
        self.busy_s_of = np.zeros(len(work))

    @property
    def requests(self) -> int:
        """n."""
        return int(self.request.size)

    def next_arrival_s(self) -> float:
        """When the next request of the list is there."""
        return float(self.work.arrival_s[self.started % len(self.work)])

    def admit(self, now_s: float) -> int:
        """Starts those that have arrived while the limit allows; returns how many."""
        before = self.started
        total = len(self.work)
        while self.endless or self.started < total:
            at = self.started % total
            full = self.requests + self.started - before >= self.work.limit[at]
            if full or self.work.arrival_s[at] > now_s:
                break
            self.started += 1
        if self.started > before:
            self._append(np.arange(before, self.started) % total)
        return self.started - before

    def emit(self, tokens: IntArray, round_s: float) -> IntArray | None:
        """Books a round; returns the places of those that go on, or None where all do."""
        if self._persistent:
            return None
        self.busy_s_of[self.request] += round_s
        self.left_tokens -= tokens
        self.context_tokens += tokens
        if self.left_tokens.min() > 0:
            return None
        kept = np.flatnonzero(self.left_tokens > 0)
        self.request, self.left_tokens = self.request[kept], self.left_tokens[kept]
        self.context_tokens = self.context_tokens[kept]
        return kept

    def age(self, rng: np.random.Generator) -> None:
        """Replaces those running by requests in the middle of their lives, as a steady state has
        them: the longer a life, the likelier it is met."""
        tokens = self.work.tokens
        self.request = rng.choice(tokens.size, self.requests, p=tokens / tokens.sum())
        done = (rng.random(self.requests) * tokens[self.request]).astype(np.int64)
        self.left_tokens = tokens[self.request] - done
        self.context_tokens = self.work.prompt_tokens[self.request] + done
        if self._persistent:
            self.left_tokens = np.full(self.requests, _FOR_EVER)

    def _append(self, new: IntArray) -> None:
        self.request = np.concatenate([self.request, new])
        self.left_tokens = np.concatenate([self.left_tokens, self.work.tokens[new]])
        self.context_tokens = np.concatenate([self.context_tokens, self.work.prompt_tokens[new]])
