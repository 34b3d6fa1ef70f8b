"""How plans are put into words: the same words at every n, in a plan's reason and in `explain`.

Knows phrases and units. Does not know where the numbers come from, nor which policy speaks.
"""

from __future__ import annotations

from collections.abc import Sequence

from outrider_planner.core.search import TIE_RATIO, DrafterDecision


def drafting(
    drafter: str, requests: int, planned: tuple[int, int], accepted_tokens: float, rate: float
) -> str:
    """A drafter that drafts at n; ``planned``: the d and V of its plan, ``rate``: tokens/s."""
    draft_tokens, verify_tokens = planned
    return (
        f"{drafter} at n={requests} drafts {draft_tokens}, verifies up to {verify_tokens} "
        f"({requests + verify_tokens} rows): {accepted_tokens:.2f} accepted per round, "
        f"{rate:.0f} tokens/s"
    )


def against(rate: float, off_rate: float) -> str:
    """A rate beside that without drafts, both in tokens/s."""
    return f" against {off_rate:.0f} off ({rate / off_rate:.2f}x)"


def off(drafter: str, requests: int, off_rate: float) -> str:
    """A drafter that does not draft at n, because nothing is predicted to be better."""
    return (
        f"{drafter} off at n={requests}: no draft length is predicted to beat "
        f"{off_rate:.0f} tokens/s without drafts"
    )


def evidence(verified: float) -> str:
    """How much was seen of a drafter (decayed count)."""
    return f", from {verified:.0f} verified drafts"


def latency(found: Sequence[DrafterDecision], bound_s: float, step: int) -> str:
    """Whether the bound on latency is predicted to hold at a step of the ladder."""
    token_s = max(float(item.token_s[step]) for item in found if item.token_s is not None)
    if token_s <= bound_s * (1.0 + TIE_RATIO):
        return f"; {token_s * 1e3:.1f} ms between tokens, bound {bound_s * 1e3:.1f} ms"
    return (
        f"; the bound of {bound_s * 1e3:.1f} ms between tokens is out of reach, "
        f"{token_s * 1e3:.1f} ms is nearest"
    )
