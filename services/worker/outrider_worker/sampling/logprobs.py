"""Log-probabilities of emitted tokens and of the likeliest ones at their places.

Of the logits as given: by default the target's own, before any option acts on them. What was
drafted, drawn or filtered out never shows.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from outrider_worker.sampling.rank import ranked


@dataclass(frozen=True)
class Logprobs:
    """Of R rows; natural logarithms, so that exp of a whole row's would sum to 1."""

    logprob: Tensor
    """[R] float32, of the token that was emitted."""
    top_ids: Tensor
    """[R, top] int64, the likeliest first, ties by the lower id."""
    top_logprobs: Tensor
    """[R, top] float32"""


def logprobs_of(logits: Tensor, tokens: Tensor, top: int) -> Logprobs:
    """Log-softmax at the tokens and at the `top` best of each row.

    Args:
        logits: [R, V] float32.
        tokens: [R] int64.
        top: how many alternatives; a vocabulary smaller than that gives all it has.
    """
    # log_softmax works on one row after the other; a reduction of its own would be split among
    # threads when there is one row only, and give other bits.
    every = logits.double().log_softmax(-1)
    top_ids = ranked(logits, min(top, logits.shape[1]))
    return Logprobs(
        logprob=every.gather(1, tokens[:, None]).squeeze(1).float(),
        top_ids=top_ids,
        top_logprobs=every.gather(1, top_ids).float(),
    )
