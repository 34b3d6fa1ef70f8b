"""Which steps of the sampling chain a request needs.

The host joins the stages of a batch's requests with |, so that a step that nobody asks for costs
nothing, and that no device has to be asked what it holds. No tensors here.
"""

from enum import Flag, auto

from outrider_worker.engine.types import SamplingParams


class Stages(Flag):
    """Steps beyond the plain argmax, and what else a row allows."""

    NONE = 0
    PENALTIES = auto()
    BIAS = auto()
    BAD_WORDS = auto()
    MIN_TOKENS = auto()
    MASK = auto()
    """A grammar's bitmask. Not told by SamplingParams: added by whoever has a mask."""
    DRAW = auto()
    FILTER = auto()
    """min-p, top-k or top-p; only ever together with DRAW."""
    LOGPROBS = auto()
    RELAXED = auto()
    """Drafts may be accepted that are nearly as good as the target's own token. Never with
    logprobs: they are of what the target would say."""


ADJUSTING = Stages.PENALTIES | Stages.BIAS | Stages.BAD_WORDS | Stages.MIN_TOKENS | Stages.MASK


def stages_of(params: SamplingParams) -> Stages:
    """What one request asks for. Filters of a greedy request change nothing and are left out."""
    draws = params.temperature > 0
    asked = {
        Stages.PENALTIES: params.repetition_penalty != 1
        or params.presence_penalty != 0
        or params.frequency_penalty != 0,
        Stages.BIAS: bool(params.logit_bias),
        Stages.BAD_WORDS: bool(params.bad_words),
        Stages.MIN_TOKENS: params.min_tokens > 0,
        Stages.DRAW: draws,
        Stages.FILTER: draws and (params.min_p > 0 or params.top_k > 0 or params.top_p < 1),
        Stages.LOGPROBS: params.top_logprobs is not None,
        Stages.RELAXED: params.relaxed and params.top_logprobs is None,
    }
    stages = Stages.NONE
    for stage, wanted in asked.items():
        if wanted:
            stages |= stage
    return stages
