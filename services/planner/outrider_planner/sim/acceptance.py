"""Worlds of acceptance: how likely each draft is to be accepted, and what the drafter says of it.

Knows published position vectors, the differences between requests and between tokens, and scores
that are noisy views of the truth. Does not know time, plans or requests' lengths.

The logit of a draft's conditional acceptance is base_k(domain) + request + burst + token: the
first drawn per request, the second an autoregression along a request's rounds, the third partly
shared by the positions of a round. Bases are solved by quadrature so that, over all of these, the
survival of every position is the domain's published one.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np

from outrider_planner.core.types import MAX_BINS, FloatArray, IntArray

_NODES = 13
_LEAST_SCORE, _MOST_SCORE = 0.01, 0.99


@dataclass(frozen=True, slots=True)
class Domain:
    """A kind of text. ``survival``: S_1, S_2, …; ``hit``: share of requests-rounds in which a
    sparse drafter proposes anything, and ``reach`` the chance that its draft goes on a position."""

    name: str
    survival: tuple[float, ...]
    hit: float = 1.0
    reach: float = 1.0

    @classmethod
    def of(cls, name: str, conditional: tuple[float, ...]) -> Domain:
        """From conditional acceptance by position."""
        return cls(name, tuple(np.cumprod(conditional).tolist()))


# One-layer chained drafter on three kinds of text: conditionals fitted to published anchors.
CHAT = Domain.of("chat", (0.53, 0.60, 0.63, 0.67, 0.70, 0.74, 0.77))
CODE = Domain.of("code", (0.78, 0.76, 0.77, 0.78, 0.78, 0.79, 0.80))
MATH = Domain.of("math", (0.81, 0.83, 0.84, 0.84, 0.85, 0.85, 0.86))
ESSAY = Domain.of("essay", (0.45, 0.40, 0.40, 0.40, 0.40, 0.40, 0.40))
# Prompt lookup: good where it finds anything.
EDIT = Domain("edit", (0.81, 0.74, 0.70, 0.68, 0.66, 0.64, 0.62), hit=0.84, reach=0.97)
PROSE = Domain("prose", (0.35, 0.15, 0.07, 0.03, 0.015, 0.008, 0.004), hit=0.12, reach=0.6)


@dataclass(frozen=True, slots=True)
class Spread:
    """Deviations of the logits' parts, and of the noise on scores.

    ``shared``: the part of the token's variance that a round's positions have in common.
    ``context_fall``: by how much a logit falls with every thousand tokens of context.
    ``score_noise`` None: the drafter gives no scores at all; infinite: scores that mean nothing.
    """

    request: float = 0.5
    token: float = 1.2
    shared: float = 0.3
    burst: float = 0.0
    burst_keep: float = 0.95
    context_fall: float = 0.0
    score_noise: float | None = 0.5


@cache
def base_logits(domain: Domain, spread: Spread, positions: int) -> FloatArray:
    """Logits by position, (K,), for which survival over all draws is the domain's."""
    wanted = extended(domain.survival, positions)
    nodes, weights = np.polynomial.hermite_e.hermegauss(_NODES)
    weights = weights / weights.sum()
    common = _outer(
        float(np.hypot(spread.request, spread.burst)), spread.token * spread.shared**0.5
    )
    alive = np.outer(weights, weights).reshape(-1)
    own = spread.token * (1.0 - spread.shared) ** 0.5 * nodes
    bases = np.empty(positions)
    for k in range(positions):
        low, high = np.full(1, -30.0), np.full(1, 30.0)
        for _ in range(60):
            middle = (low + high) / 2
            accepted = sigmoid(middle + common[:, None] + own) @ weights
            above = float(alive @ accepted) > wanted[k]
            low, high = (low, middle) if above else (middle, high)
        bases[k] = middle[0]
        alive = alive * (sigmoid(bases[k] + common[:, None] + own) @ weights)
    return bases


def extended(survival: tuple[float, ...], positions: int) -> FloatArray:
    """Survival to any depth: beyond the last position its conditional goes on."""
    known = list(survival[:positions])
    last = known[-1] / known[-2] if len(known) > 1 else known[-1]
    while len(known) < positions:
        known.append(known[-1] * last)
    return np.array(known)


def sigmoid(logits: FloatArray) -> FloatArray:
    """1 / (1 + e^−x)."""
    result: FloatArray = 1.0 / (1.0 + np.exp(-logits))
    return result


@dataclass(frozen=True, slots=True, eq=False)
class Drafts:
    """One round's drafts of n requests, all (n, d): true survival, and the score's bin.

    ``lengths`` (n,): drafts that exist.
    """

    survival: FloatArray
    bins: IntArray
    lengths: IntArray


class Drafter:
    """Draws drafts in a world of domains; all chance comes from one generator."""

    def __init__(
        self,
        domains: tuple[Domain, ...],
        spread: Spread,
        positions: int,
        rng: np.random.Generator,
    ) -> None:
        self.domains, self.spread, self.positions = domains, spread, positions
        self._rng = rng
        self._bases = np.stack([base_logits(domain, spread, positions) for domain in domains])
        self._hits = np.array([domain.hit for domain in domains])
        self._reach = np.array([domain.reach for domain in domains])
        self._sparse = any(domain.hit < 1 or domain.reach < 1 for domain in domains)

    @property
    def score_bins(self) -> int:
        """Bins in use."""
        return 1 if self.spread.score_noise is None else MAX_BINS

    def burst(self, before: FloatArray) -> FloatArray:
        """The next round's burst logits, (n,), after those before."""
        if not self.spread.burst:
            return before
        keep = self.spread.burst_keep
        fresh = self._rng.standard_normal(before.size)
        moved: FloatArray = keep * before + self.spread.burst * (1 - keep**2) ** 0.5 * fresh
        return moved

    def draw(self, domain: IntArray, logits: FloatArray, draft_tokens: int) -> Drafts:
        """d drafts for each request; ``domain`` and ``logits`` (n,): the request's own part.

        Draws as much chance for any d: rounds of policies that draft differently meet the same.
        """
        spread, count = self.spread, slice(draft_tokens)
        fresh = self._rng.standard_normal((domain.size, self.positions))
        token = spread.token * (1.0 - spread.shared) ** 0.5 * fresh[:, count]
        common = spread.token * spread.shared**0.5 * self._rng.standard_normal(domain.size)
        token += (logits + common)[:, None]
        token += self._bases[domain, count]
        survival = sigmoid(token)
        np.cumprod(survival, axis=1, out=survival)
        return Drafts(survival, self._bins(token), self._lengths(domain, draft_tokens))

    def _bins(self, logits: FloatArray) -> IntArray:
        noise = self.spread.score_noise
        if noise is None:
            return np.zeros(logits.shape, dtype=np.int64)
        drawn = self._rng.standard_normal((logits.shape[0], self.positions))
        fresh = drawn[:, : logits.shape[1]]
        seen: FloatArray = 2.0 * fresh if np.isinf(noise) else logits + noise * fresh
        scores: FloatArray = np.clip(sigmoid(seen), _LEAST_SCORE, _MOST_SCORE)
        return score_bins(np.cumprod(scores, axis=1, dtype=np.float64))

    def _lengths(self, domain: IntArray, draft_tokens: int) -> IntArray:
        if not self._sparse:
            return np.full(domain.size, draft_tokens, dtype=np.int64)
        on = self._rng.random((domain.size, self.positions))[:, :draft_tokens]
        if draft_tokens == 0:
            return np.zeros(domain.size, dtype=np.int64)
        goes_on = on < self._reach[domain][:, None]
        goes_on[:, 0] = on[:, 0] < self._hits[domain]
        reached: IntArray = np.logical_and.accumulate(goes_on, axis=1).sum(axis=1)
        return reached


def score_bins(scores: FloatArray) -> IntArray:
    """Bins of a running score, two for each halving: 15 from 2^−½ up, 0 below 2^−7½."""
    places = MAX_BINS + np.floor(2.0 * np.log2(scores)).astype(np.int64)
    return np.clip(places, 0, MAX_BINS - 1)


def auc(drafter: Drafter, requests: int = 20_000) -> float:
    """Area under the curve of a draft's score against its acceptance, over all drafted positions.

    The score is the bin of the running score, which is what drafts are picked by.
    """
    rng = np.random.default_rng(1)
    domain = rng.integers(0, len(drafter.domains), requests)
    logits = drafter.spread.request * rng.standard_normal(requests)
    drafts = drafter.draw(domain, logits, drafter.positions)
    accepted = rng.random((requests, 1)) < drafts.survival
    right, wrong = (
        np.bincount(drafts.bins[mask], minlength=MAX_BINS).astype(float)
        for mask in (accepted, ~accepted)
    )
    below = np.cumsum(wrong) - wrong / 2
    return float((right * below).sum() / (right.sum() * wrong.sum()))


def _outer(first: float, second: float) -> FloatArray:
    nodes, _ = np.polynomial.hermite_e.hermegauss(_NODES)
    return np.add.outer(first * nodes, second * nodes).reshape(-1)
