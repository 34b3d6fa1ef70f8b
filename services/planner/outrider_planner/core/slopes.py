"""How a target pass depends on context beyond what its table says: two slopes, learned online.

Knows ``measured / table − 1`` of rounds and their context, summed over requests and over rows. A
table is measured with one row per request. Where several rows of a request share one reading of
its keys and values, its rows cost less and its requests make up for it: the slopes differ in sign;
where they do not, both are 0. Does not know buckets: what is common to all rounds is no slope.

Axes: S ladder steps, R rows.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from outrider_planner.core.residuals import fading_weights
from outrider_planner.core.types import FloatArray, RoundColumns

# The way a kernel works does not change with the hour, but a noisy one must be forgotten.
HALF_LIFE_ROUNDS = 256.0
# A feature that varies less than this around its mean tells nothing, nor do so few rounds.
_LEAST_VARIATION = 0.03
_LEAST_ROUNDS = 64.0
# However the fit falls out, it moves a pass by no more than these parts of its table: nearly all
# of a long context's reading may be shared, and requests make up for what their rows do not cost.
LEAST_RATIO, MOST_RATIO = -0.9, 4.0


@dataclass(slots=True, eq=False)
class ContextSlopes:
    """Seconds per token of context: ``request_s`` summed over requests, ``row_s`` over rows.

    ``most_s``: what a token of context costs in the table; neither slope can be larger, and where
    the table holds one context only there are none.
    """

    most_s: float
    request_s: float = 0.0
    row_s: float = 0.0
    # Fading sums over rounds of the outer product of (1, requests' part, rows' part, error).
    _moments: FloatArray = field(default_factory=lambda: np.zeros((4, 4)))

    def observe(self, rounds: RoundColumns, table_s: FloatArray) -> None:
        """Learns from rounds, oldest first, whose table times are positive."""
        ratio = rounds.target_us * 1e-6 / table_s - 1.0
        by_request, by_row = _tokens(rounds)
        columns = np.ones((4, len(rounds)))
        columns[1] = by_request / table_s
        columns[2] = by_row / table_s
        columns[3] = np.minimum(np.maximum(ratio, -1.0), 1.0)
        weighed = columns * fading_weights(len(rounds), HALF_LIFE_ROUNDS)
        fade = 2.0 ** (-len(rounds) / HALF_LIFE_ROUNDS)
        self._moments = fade * self._moments + weighed @ columns.T
        self._fit()

    def _fit(self) -> None:
        """Ridge regression of the error on both parts, around their means.

        Two equations, in plain numbers: arrays of two cost ten times as much.
        """
        (rounds, *sums), *products = self._moments.tolist()
        by_request, by_row, error = (total / rounds for total in sums)
        if by_request <= 0.0 or by_row <= 0.0:
            return
        # In units of the mean parts, so that one ridge fits both.
        ridge = _LEAST_VARIATION**2 * (1.0 + _LEAST_ROUNDS / rounds)
        (_, aa, ab, ae), (_, _, bb, be), _ = products
        a = aa / rounds / by_request**2 - 1.0 + ridge
        b = bb / rounds / by_row**2 - 1.0 + ridge
        both = ab / rounds / (by_request * by_row) - 1.0
        at_a, at_b = ae / rounds / by_request - error, be / rounds / by_row - error
        determinant = a * b - both * both
        self.request_s = self._possible((b * at_a - both * at_b) / determinant / by_request)
        self.row_s = self._possible((a * at_b - both * at_a) / determinant / by_row)

    def _possible(self, slope_s: float) -> float:
        return min(max(slope_s, -self.most_s), self.most_s)

    def expected_s(self, rounds: RoundColumns, table_s: FloatArray) -> FloatArray:
        """The table's times of rounds, corrected."""
        by_request, by_row = _tokens(rounds)
        added = self.request_s * by_request + self.row_s * by_row
        return table_s + _within(added, table_s)

    def by_rows(self, rows: FloatArray, context_tokens: float, table_s: FloatArray) -> FloatArray:
        """What to add to the table at row counts (R,) and a context per request."""
        added = self.row_s * context_tokens * rows
        return _within(added, table_s)

    def by_requests(
        self, requests: FloatArray, context_tokens: float, table_s: FloatArray
    ) -> FloatArray:
        """What requests (S,) add to any pass of theirs; ``table_s`` (S,): their pass without
        drafts."""
        added = self.request_s * context_tokens * requests
        return _within(added, table_s)


def _within(added: FloatArray, table_s: FloatArray) -> FloatArray:
    return np.minimum(np.maximum(added, LEAST_RATIO * table_s), MOST_RATIO * table_s)


def _tokens(rounds: RoundColumns) -> tuple[FloatArray, FloatArray]:
    """Context summed over requests and over rows, which see their request's context."""
    by_request = rounds.request_context_tokens.astype(np.float64)
    return by_request, by_request * rounds.target_rows / rounds.requests
