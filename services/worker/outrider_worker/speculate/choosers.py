"""How a draft is drawn from a drafter's logits, when the target's own draw will judge it.

Knows: the request's options and the noise of its next tokens. Does not know: drafters, verdicts.
"""

from __future__ import annotations

from torch import Tensor

from outrider_worker.sampling import RowSampling, SampledRows
from outrider_worker.speculate.device import Chosen


class SamplerMatchChooser:
    """Draws as the target will: same options, same noise (a Chooser).

    Drafts are *coupled* (Daliri et al. 2024, arXiv 2408.07978): the more the drafter's law is like
    the target's, the more often one noise gives both the same token. A greedy request's draft is
    the drafter's best.
    """

    def __init__(self, sampling: RowSampling) -> None:
        """`sampling`: of the n requests' next token, the one behind all that is known."""
        self._sampling = sampling

    def choose(self, logits: Tensor, step: int) -> Chosen:
        """See Chooser.choose; the confidence is the drafter's probability of the token drawn.

        That looks at the token itself, which is harmless here: what is emitted does not depend on
        which drafts get a row (`cuts`).
        """
        ahead = self._sampling.ahead(step)
        adjusted = ahead.adjust(logits)
        tokens = ahead.sample_adjusted(adjusted)
        confidence = ahead.beliefs(adjusted).gather(1, tokens[:, None]).squeeze(1)
        write_draft(ahead.rows, tokens)
        return Chosen(tokens, confidence)


def write_draft(rows: SampledRows, tokens: Tensor) -> None:
    """Put tokens [R] behind what their rows see, where the next step's penalties find them."""
    rows.history[rows.seat, rows.known] = tokens
