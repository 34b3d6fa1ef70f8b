"""Which drafts may be left without a row, and by what, so that the target's law stays as it is.

A draft x_k is *cut* when it gets no row. If drafts are drawn and then judged by rejection
sampling, the decision may look at everything known before x_k was drawn, other requests included,
but not at x_k: a drawn token that is kept because of what it is no longer comes from the law that
the verdict divides by. Any cut is harmless where the emitted text does not depend on drafts
(sampler match), and for drafts that were not drawn at all (n-gram, suffix, predicted output).

Knows: what a cut can look at, and what is wrong when it looks at too much. Does not know:
drafters, verifiers (`verify.check_cuts` compares the two), who picks.
"""

from __future__ import annotations

from enum import IntEnum


class Cut(IntEnum):
    """The most that a rule may have looked at when it decides whether draft k gets a row."""

    FIXED = 0
    """Nothing of this draft: draft lengths, load, room, what earlier rounds accepted."""
    PAST = 1
    """The drafts before k and the drafter's law of draft k, but not which token was drawn."""
    OWN_TOKEN = 2
    """Draft k itself, as the drafter's own probability of it does."""


class LossyCut(ValueError):
    """A verifier and a score that together would change the target's law."""

    def __init__(self, verifier: str, drafter: str) -> None:
        super().__init__(
            f"{verifier} does not keep the target's law with the scores of drafter {drafter!r}: "
            "they look at the drafted token itself, and a token that gets a row because of what it "
            "is was not drawn from the law it is judged by. Score by what is known before the draw "
            "(the greatest probability, a confidence head), give each draft the score of the one "
            "before it, or use sampler match, which any cut leaves exact."
        )
