"""Rejection sampling of drafts, one after the other (Leviathan et al. 2023, arXiv 2211.17192;
Chen et al. 2023, arXiv 2302.01318).

Draft x, drawn from the drafter's law q, is accepted with probability min(1, p(x) / q(x)); the first
refused one is replaced by a draw from (p − q)₊, and if all are accepted one more is drawn from p.
So every emitted token has the target's law p, as requests shaped it: temperature, filters,
penalties, bias, bans, mask. A draft that was not drawn (n-gram, suffix, predicted output) is the
same rule with all of q on it.

Against sampler match: more drafts are accepted, most so at high temperatures, but the *text* of a
seed now depends on drafts, draft lengths and picks, hence on plan and load. And memory for laws.

Knows: the rule, its noise, the laws kept by seat. Does not know: drafters, programs, plans.
"""

from __future__ import annotations

import torch
from torch import Tensor

from outrider_worker.philox import Purpose, uniform
from outrider_worker.sampling import RowSampling
from outrider_worker.speculate.choosers import write_draft
from outrider_worker.speculate.cuts import Cut
from outrider_worker.speculate.device import Chooser, Chosen
from outrider_worker.speculate.draft_laws import DraftLaws
from outrider_worker.speculate.verify import JudgedRows, Verdict, leading

_LEAST_RESIDUAL = 1e-8
"""Below that p and q are one, and what their difference holds is rounding."""

_REQUESTS_AT_ONCE = 64
"""Laws of so many requests at a time when the last token is drawn."""


def accepts(u: Tensor, p: Tensor, q: Tensor) -> Tensor:
    """Whether drafts hold: u uniform in (0, 1), p and q the two laws' probabilities of the draft.

    u ≤ p/q without the division. What the target rules out never holds.
    """
    return (u * q <= p) & (p > 0)


def residual(p: Tensor, q: Tensor) -> Tensor:
    """[n, V] laws → [n, V] weights of the token behind the accepted drafts, not normalised.

    Where less than 1e-8 is left, p itself.
    """
    left = (p - q).clamp_(min=0.0)
    nothing = left.cumsum(-1)[:, -1:] < _LEAST_RESIDUAL
    return torch.where(nothing, p, left)


def drawn(weights: Tensor, u: Tensor) -> Tensor:
    """[M, C] weights ≥ 0 and u [M] uniform in (0, 1) → [M] columns, drawn in proportion.

    By the inverse distribution function: noise that is shared with nobody needs no race among all
    tokens. A column without weight is never drawn, as no step of the sum is there.
    """
    sums = weights.cumsum(-1)
    return torch.searchsorted(sums, (u * sums[:, -1])[:, None], right=True).squeeze(1)


class RejectionChooser:
    """Draws from the drafter's law with noise of its own and keeps the law (a Chooser)."""

    def __init__(self, sampling: RowSampling, laws: DraftLaws) -> None:
        self._sampling = sampling
        self._laws = laws

    def choose(self, logits: Tensor, step: int) -> Chosen:
        """See Chooser.choose; the confidence is the greatest probability, whatever was drawn.

        With the probability of the token drawn, a cut would look at the token: see `cuts`.
        """
        ahead = self._sampling.ahead(step)
        adjusted = ahead.adjust(logits)
        seats = ahead.rows.seat
        ids, weights = self._laws.keep(seats, step, ahead.law_adjusted(adjusted))
        column = drawn(weights, _noise(ahead, seats, ahead.rows.index, Purpose.DRAFT))
        tokens = ids.gather(1, column[:, None]).squeeze(1)
        write_draft(ahead.rows, tokens)
        return Chosen(tokens, ahead.beliefs(adjusted).amax(-1))


class RejectionVerifier:
    """Keeps the target's law, not the seed's text (a Verifier)."""

    name = "rejection"

    def __init__(self, laws: DraftLaws) -> None:
        self.laws = laws

    @property
    def lossless_cut(self) -> Cut:
        return Cut.PAST

    def chooser(self, sampling: RowSampling) -> Chooser:
        """See Verifier.chooser."""
        self.laws.forget(sampling.rows.seat)
        return RejectionChooser(sampling, self.laws)

    def given(self, seats: Tensor) -> None:
        """See Verifier.given."""
        self.laws.forget(seats)

    def verify(self, rows: JudgedRows) -> Verdict:
        """See Verifier.verify. The token behind a draft that holds throughout is the target's own
        sample, so that a request without drafts gets the text of plain decoding."""
        width = rows.drafts.shape[1]
        accepted = self._accepted(rows) if width else torch.zeros_like(rows.lengths)
        judging = rows.row_at(accepted)
        last = rows.sampling.take(judging).sample(rows.logits[judging])
        if width:
            refused = accepted < rows.lengths
            last = torch.where(refused, self._replacements(rows, accepted, judging), last)
        places = torch.arange(width + 1, device=last.device)
        drafts = torch.cat([rows.drafts, last[:, None]], dim=1)
        emitted = torch.where(places < accepted[:, None], drafts, last[:, None])
        return Verdict(accepted=accepted, emitted=emitted)

    def _accepted(self, rows: JudgedRows) -> Tensor:
        """[n] drafts before the first refused one."""
        index = rows.index[:, None] + rows.places
        seats = rows.seats[:, None].expand_as(index).flatten()
        u = _noise(rows.sampling, seats, index.flatten(), Purpose.ACCEPT).view_as(index)
        q = self.laws.masses(rows.seats, rows.drafts)
        return leading(accepts(u, rows.draft_masses(), q), rows)

    def _replacements(self, rows: JudgedRows, place: Tensor, judging: Tensor) -> Tensor:
        """[n] what comes for draft `place` [n], judged by rows `judging` [n], if it was refused."""
        u = _noise(rows.sampling, rows.seats, rows.index + place, Purpose.RESIDUAL)
        drafts, tokens = rows.draft_at(place), []
        for at in range(0, max(len(judging), 1), _REQUESTS_AT_ONCE):
            part = slice(at, at + _REQUESTS_AT_ONCE)
            q = self.laws.law_at(rows.seats[part], place[part], drafts[part])
            tokens.append(drawn(residual(rows.law(judging[part]), q), u[part]))
        return torch.cat(tokens)


def _noise(sampling: RowSampling, seats: Tensor, index: Tensor, purpose: Purpose) -> Tensor:
    """[M] uniform, one number for each token `index` [M] of the requests in `seats` [M]."""
    where = sampling.table.draw_columns(seats, index)
    one_each = torch.zeros_like(index)[:, None]
    return uniform(one_each, where.seed, where.choice, index, purpose).squeeze(1)
