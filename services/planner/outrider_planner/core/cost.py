"""What a round costs: T(b), E(b), D(n, d), c(n) as arrays ready for the search.

Knows the online correction of the measured table by the rounds that ran. Does not know acceptance
or plans. Seconds throughout.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np

from outrider_planner.core.curves import CurveSet, GridSet, between, padded
from outrider_planner.core.residuals import HALF_LIFE_ROUNDS, FadingMeans
from outrider_planner.core.slopes import ContextSlopes
from outrider_planner.core.types import FloatArray, Hello, IntArray, RoundColumns

RESIDUAL_CLIP = 1.0
_SHRINK_WEIGHT, _HOST_SHRINK_WEIGHT = 4.0, 1.0
# Rounds that differ from their table by more than this say little of those that were not measured,
# until they weigh so much.
_DOUBTFUL_LOG, _KNOWN_WEIGHT = 0.1, 16.0
_LEAST_ROUND_S = 1e-5
_US = 1e-6


@dataclass(frozen=True, slots=True, eq=False)
class CostModel:
    """Costs at the present context. ``target_s`` and ``feed_s[drafter]``: (R + 1,), by rows.

    Index 0 stands for no rows at all. Where rows are padded the arrays hold T_eff, the least time
    at which that many rows can be launched. ``draft_s[drafter]``: (steps, K + 1), by ladder step
    and d. ``host_s``: (steps,), c(n), exposed host time. ``context_s``: (steps,), what n requests'
    context adds to any target pass whatever its rows, below 0 where rows are dearer and requests
    cheaper than the table says. ``edges``: bucket row counts, empty where nothing is padded.
    """

    ladder: tuple[int, ...]
    target_s: FloatArray
    feed_s: Mapping[str, FloatArray]
    draft_s: Mapping[str, FloatArray]
    host_s: FloatArray
    context_s: FloatArray
    edges: tuple[int, ...]

    @property
    def max_rows(self) -> int:
        """R: the most rows one forward may have."""
        return int(self.target_s.size) - 1

    @property
    def every_round_s(self) -> FloatArray:
        """What n requests cost in any round, whatever is drafted and verified, (steps,)."""
        return self.host_s + self.context_s

    def off_rate(self) -> FloatArray:
        """Tokens per second with speculation off, (steps,)."""
        n = np.array(self.ladder)
        rate: FloatArray = n / (self.target_s[n] + self.every_round_s)
        return rate


@dataclass(slots=True, eq=False)
class CostTracker:
    """One worker's costs: the table from its hello, corrected by what its rounds measured.

    The corrections are logs of measured over table time, each clipped to ±1.
    """

    hello: Hello
    ladder: tuple[int, ...]
    clips: int = 0
    context_tokens: float = 0.0
    slopes: ContextSlopes = field(init=False)
    _by_bucket: FadingMeans = field(init=False)
    _host_s: FadingMeans = field(init=False)
    _feed: dict[str, FadingMeans] = field(init=False)
    _draft: dict[str, FadingMeans] = field(init=False)
    _target: CurveSet = field(init=False)
    _feeds: dict[str, CurveSet] = field(init=False)
    _drafts: dict[str, GridSet] = field(init=False)

    def __post_init__(self) -> None:
        table = self.hello.cost_table
        costs = {item.drafter: item for item in (table.drafters if table else ())}
        names = [traits.name for traits in self.hello.drafters]
        measured = CurveSet.of(table.target if table else ())
        self._target = measured if self.hello.pads_rows else measured.rising()
        feeds = {n: CurveSet.of(costs[n].feed if n in costs else ()) for n in names}
        self._feeds = feeds if self.hello.pads_rows else {n: c.rising() for n, c in feeds.items()}
        self._feed = {n: FadingMeans.zeros(1) for n in names}
        self._draft = {n: FadingMeans.zeros(1) for n in names}
        self._drafts = {n: GridSet.of(costs[n].draft if n in costs else ()) for n in names}
        self.slopes = ContextSlopes(self._target.token_s())
        self._by_bucket = FadingMeans.zeros(self.hello.most_bucket_rows + 1)
        self._host_s = FadingMeans.zeros(len(self.ladder))

    @property
    def has_table(self) -> bool:
        """Whether a target curve was measured."""
        return bool(self._target)

    def least_round_s(self) -> float:
        """A bound no real round can beat: a fifth of the fastest measured target pass."""
        if not self.has_table:
            return _LEAST_ROUND_S
        return max(0.2 * float(self._target.seconds.min()), _LEAST_ROUND_S)

    def table_target_s(self, rows: IntArray) -> FloatArray:
        """The table's uncorrected time for row counts, at the present context."""
        return self._target.between(self.context_tokens, rows)

    def present_target_s(self, rows: IntArray) -> FloatArray:
        """The same as all rounds lately measured it, whatever their bucket."""
        return self.table_target_s(rows) * float(np.exp(self._by_bucket.common(_SHRINK_WEIGHT)))

    def doubts_off(self, requests: int) -> bool:
        """Whether what a plain round of n requests costs is a guess: rounds do not cost what their
        table says, and hardly any was plain."""
        if not self.has_table or requests == 0:
            return False
        buckets = self.hello.row_buckets if self.hello.pads_rows else ()
        bucket = next((rows for rows in buckets if rows >= requests), requests)
        differs = abs(self._by_bucket.common(_SHRINK_WEIGHT)) > _DOUBTFUL_LOG
        return differs and float(self._by_bucket.weight[bucket]) < _KNOWN_WEIGHT

    def observe(self, rounds: RoundColumns, drafter: str | None = None) -> None:
        """Learns from rounds whose times are believed.

        ``drafter``: the one that drafted in them, which need not be said where there is only one.
        None where there were several or it is not known: their tables stand as measured.
        """
        if len(rounds) == 0:
            return
        mean = rounds.request_context_tokens.sum() / max(int(rounds.requests.sum()), 1)
        keep = 2.0 ** (-len(rounds) / HALF_LIFE_ROUNDS) if self.context_tokens else 0.0
        self.context_tokens = keep * self.context_tokens + (1.0 - keep) * float(mean)
        self._host_s.observe(step_of(self.ladder, rounds.requests), rounds.exposed_host_us * _US)
        if self.has_table:
            contexts = rounds.request_context_tokens / rounds.requests
            table_s = self._target.each(contexts, rounds.bucket_rows)
            self.slopes.observe(rounds, table_s)
            expected_s = self.slopes.expected_s(rounds, table_s)
            self._correct(self._by_bucket, rounds.bucket_rows, rounds.target_us, expected_s)
            if len(self._drafts) == 1:
                (drafter,) = self._drafts
            if drafter is not None:
                self._observe_drafter(rounds, drafter)

    def _observe_drafter(self, rounds: RoundColumns, name: str) -> None:
        context, only = self.context_tokens, np.zeros(len(rounds), dtype=np.int64)
        drafted_s = self._drafts[name].at(context, rounds.requests, rounds.next_draft_tokens)
        self._correct(self._draft[name], only, rounds.draft_us, drafted_s)
        if self._feeds[name]:
            fed_s = self._feeds[name].between(context, rounds.target_rows)
            self._correct(self._feed[name], only, rounds.feed_us, fed_s)

    def _correct(
        self, means: FadingMeans, index: IntArray, measured_us: IntArray, expected_s: FloatArray
    ) -> None:
        """Takes in the log ratios of the rounds where both times are positive."""
        both = (measured_us > 0) & (expected_s > 0)
        if not both.all():
            index, measured_us, expected_s = index[both], measured_us[both], expected_s[both]
        logs = np.log(measured_us * _US / expected_s)
        clipped = np.minimum(np.maximum(logs, -RESIDUAL_CLIP), RESIDUAL_CLIP)
        self.clips += int(np.count_nonzero(clipped != logs))
        means.observe(index, clipped)

    def model(self) -> CostModel | None:
        """Costs for the search, or None without a table."""
        if not self.has_table:
            return None
        limits = self.hello.limits
        rows = limits.max_rows_per_forward + 1
        target_s = self._by_rows(self._target, self._target_factor(), self.slopes)
        return CostModel(
            ladder=self.ladder,
            target_s=target_s,
            feed_s={
                name: self._by_rows(curves, np.full(rows, _factor(self._feed[name])))
                for name, curves in self._feeds.items()
            },
            draft_s={
                name: self._by_step(grid) * _factor(self._draft[name])
                for name, grid in self._drafts.items()
            },
            host_s=self._exposed_host_s(),
            context_s=self._request_context_s(target_s),
            edges=self.hello.row_buckets if self.hello.pads_rows else (),
        )

    def _target_factor(self) -> FloatArray:
        """Measured over table by rows: a bucket's own residual, or the common one."""
        common = self._by_bucket.common(_SHRINK_WEIGHT)
        known = self._by_bucket.seen()
        known[self._target.rows[self._target.rows < known.size]] = True
        logs = self._by_bucket.means(common, _SHRINK_WEIGHT)
        rows = np.arange(self.hello.limits.max_rows_per_forward + 1)
        factor: FloatArray = np.exp(np.interp(rows, np.flatnonzero(known), logs[known]))
        return factor

    def _by_rows(
        self, curves: CurveSet, factor: FloatArray, slopes: ContextSlopes | None = None
    ) -> FloatArray:
        rows = np.arange(factor.size)
        if not curves:
            return np.zeros(rows.size)
        seconds = curves.at(self.context_tokens)
        if slopes is not None:
            known_rows = curves.rows.astype(np.float64)
            seconds = seconds + slopes.by_rows(known_rows, self.context_tokens, seconds)
        if self.hello.pads_rows:
            known = np.minimum(curves.rows, rows.size - 1)
            result = padded(curves.rows, seconds * factor[known], rows)
        else:
            result = between(curves.rows, seconds, rows) * factor
        result[0] = 0.0
        return result

    def _by_step(self, grid: GridSet) -> FloatArray:
        lengths = np.arange(self.hello.limits.max_draft_tokens + 1)
        n, d = np.meshgrid(np.array(self.ladder), lengths, indexing="ij")
        return grid.at(self.context_tokens, n.reshape(-1), d.reshape(-1)).reshape(n.shape)

    def _request_context_s(self, target_s: FloatArray) -> FloatArray:
        n = np.minimum(np.array(self.ladder), target_s.size - 1)
        added = self.slopes.by_requests(n.astype(np.float64), self.context_tokens, target_s[n])
        return added * float(np.exp(self._by_bucket.common(_SHRINK_WEIGHT)))

    def _exposed_host_s(self) -> FloatArray:
        """c(n): measured steps, interpolated over n; 0 before any round ran."""
        seen = self._host_s.seen()
        if not seen.any():
            return np.zeros(len(self.ladder))
        n = np.array(self.ladder, dtype=np.float64)
        means = self._host_s.means(self._host_s.common(), _HOST_SHRINK_WEIGHT)
        return np.interp(n, n[seen], means[seen])


def _factor(residuals: FadingMeans) -> float:
    """Measured over table, of a part that is corrected as a whole."""
    return float(np.exp(residuals.common(_SHRINK_WEIGHT)))


def step_of(ladder: tuple[int, ...], requests: IntArray) -> IntArray:
    """Index of the ladder step that serves n: the next larger one, or the last."""
    return np.minimum(_as_array(ladder).searchsorted(requests), len(ladder) - 1)


@lru_cache(maxsize=1024)
def _as_array(ladder: tuple[int, ...]) -> IntArray:
    return np.array(ladder)


def request_ladder(max_running_requests: int) -> tuple[int, ...]:
    """1, 2, 3, 4, 6, 8, 12, 16, … up to the limit, which is always a step."""
    steps = {1, max_running_requests}
    power = 2
    while power < max_running_requests:
        steps |= {power, min(power + power // 2, max_running_requests)}
        power *= 2
    return tuple(sorted(steps))
