"""What a step brought back, as plain values for the engine.

Knows: the names under which a step's tensors come, and how to cut padded tables to what counts.
Does not know: how they were computed, whose they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from outrider_worker.engine.types import Draft, TokenLogprobs
from outrider_worker.streams import Done


@dataclass(frozen=True, slots=True)
class Times:
    """Device seconds of one step by part."""

    target_s: float = 0.0
    feed_s: float = 0.0
    draft_s: float = 0.0
    prefill_s: float = 0.0


@dataclass(frozen=True, slots=True)
class RoundOutcome:
    """What a round gave one request.

    verified: drafts that got a row. accepted: how many of them held; relaxed: how many of these
    the target would not have drawn itself. emitted: accepted + 1 tokens.
    logprobs: of the emitted tokens; empty where none were wanted.
    """

    verified: int
    accepted: int
    emitted: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...] = ()
    relaxed: int = 0


@dataclass(frozen=True, slots=True)
class FirstToken:
    """The token a finished prompt emitted."""

    token_id: int
    logprobs: tuple[TokenLogprobs, ...] = ()


@dataclass(frozen=True, slots=True)
class StepResult:
    """By request, in the orders' sequence: the round's, the completing chunks', the drafted ones'.

    drafts is empty where the device made none.
    """

    round: tuple[RoundOutcome, ...]
    first: tuple[FirstToken, ...]
    drafts: tuple[Draft, ...]
    times: Times


NOTHING = StepResult((), (), (), Times())
"""Of a step in which nothing was launched."""


def step_result(begun: Done | None, finished: Done) -> StepResult:
    """Put together what the two pieces of work of a step brought back."""
    tensors = finished.tensors
    seconds = dict(finished.seconds)
    for part, part_s in (begun.seconds if begun else {}).items():
        seconds[part] = seconds.get(part, 0.0) + part_s
    return StepResult(
        round=_round(tensors),
        first=_first(tensors),
        drafts=_drafts(tensors),
        times=Times(**{f"{part}_s": value for part, value in seconds.items()}),
    )


def _round(tensors: Mapping[str, Tensor]) -> tuple[RoundOutcome, ...]:
    if "accepted" not in tensors:
        return ()
    verified, accepted = tensors["verified"].tolist(), tensors["accepted"].tolist()
    emitted = tensors["emitted"].tolist()
    relaxed = tensors["relaxed"].tolist() if "relaxed" in tensors else [0] * len(accepted)
    return tuple(
        RoundOutcome(
            verified=verified[line],
            accepted=count,
            emitted=tuple(emitted[line][: count + 1]),
            logprobs=_logprobs(tensors, "", line, count + 1),
            relaxed=relaxed[line],
        )
        for line, count in enumerate(accepted)
    )


def _logprobs(
    tensors: Mapping[str, Tensor], prefix: str, line: int, count: int
) -> tuple[TokenLogprobs, ...]:
    """The first `count` places of a line of the tables [lines, W] and [lines, W, top]."""
    if f"{prefix}logprob" not in tensors:
        return ()
    own, top_ids, top_values = (
        tensors[f"{prefix}{name}"][line, :count].tolist()
        for name in ("logprob", "top_ids", "top_logprobs")
    )
    return tuple(
        TokenLogprobs(logprob, tuple(ids), tuple(values))
        for logprob, ids, values in zip(own, top_ids, top_values, strict=True)
    )


def _first(tensors: Mapping[str, Tensor]) -> tuple[FirstToken, ...]:
    if "first" not in tensors:
        return ()
    return tuple(
        FirstToken(token_id, _logprobs(tensors, "first_", line, 1))
        for line, token_id in enumerate(tensors["first"].tolist())
    )


def _drafts(tensors: Mapping[str, Tensor]) -> tuple[Draft, ...]:
    if "draft_len" not in tensors:
        return ()
    columns = (tensors[f"draft_{name}"].tolist() for name in ("ids", "bins", "len", "asked"))
    return tuple(
        Draft(tuple(ids[:length]), tuple(bins[:length]), asked)
        for ids, bins, length, asked in zip(*columns, strict=True)
    )
