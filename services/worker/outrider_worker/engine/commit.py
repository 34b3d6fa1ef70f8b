"""From what the verifier let through to what the request really gets. Pure.

The run of one round is walked token by token and the earliest event wins: a stop token at or
before the length limit beats the limit, one beyond it is never seen. Whatever lies behind the
event is dropped, the bonus token included, and no counter ever knew of it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from outrider_worker.engine.types import Finish, FinishReason, Request


@dataclass(frozen=True, slots=True)
class Commit:
    """Tokens that count, how many of them were drafts, and the end if it was reached."""

    token_ids: tuple[int, ...]
    accepted_tokens: int
    finish: Finish | None


def commit_run(
    run: Sequence[int],
    accepted: int,
    room_tokens: int,
    stop_token_ids: frozenset[int],
) -> Commit:
    """Cut a run of `accepted` drafts and the target's own last token.

    Args:
        run: the emitted tokens in order; the first `accepted` were drafts.
        room_tokens: tokens the request may still get, at least 1.
        stop_token_ids: end-of-sequence and stop ids; the one that ends the request is hidden.
    """
    kept: list[int] = []
    finish: Finish | None = None
    for token_id in run:
        if token_id in stop_token_ids:
            finish = Finish(FinishReason.STOP_TOKEN, token_id)
            break
        kept.append(token_id)
        if len(kept) == room_tokens:
            finish = Finish(FinishReason.LENGTH)
            break
    return Commit(tuple(kept), min(accepted, len(kept)), finish)


def end_ids(request: Request, eos_token_ids: frozenset[int]) -> frozenset[int]:
    """All ids that end the request. A grammar says itself when its text may end, by these."""
    sampling = request.spec.sampling
    if sampling.ignore_eos and request.spec.grammar is None:
        return sampling.stop_token_ids
    return sampling.stop_token_ids | eos_token_ids


def draft_room(request: Request, carried_limit: int) -> int:
    """How many tokens may be drafted for it: one less than it may emit, never past its end."""
    return max(0, min(carried_limit, request.room_tokens - 1))
