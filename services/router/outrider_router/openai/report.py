"""What speculation did for one request, and its times: `metrics`, in the shape of vLLM's clients.

Only requests that ask for it, or all if the router's setting says so, carry it.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from outrider_router.metrics import RequestRecord
from outrider_router.openai.errors import invalid
from outrider_router.types import ReportLevel, Round

HEADER = "x-speculation-report"


def report_level(headers: Mapping[str, str], default: ReportLevel) -> ReportLevel:
    """The level that a request asks for by its header.

    Raises:
        ApiError: 400 for an unknown one.
    """
    asked = headers.get(HEADER)
    if asked is None:
        return default
    try:
        return ReportLevel(asked.strip().lower())
    except ValueError:
        levels = ", ".join(level.value for level in ReportLevel)
        raise invalid(f"the header {HEADER} must be one of {levels}", HEADER) from None


def metrics_of(
    record: RequestRecord, choices: int, max_draft_tokens: int, level: ReportLevel
) -> dict[str, Any]:
    """The `metrics` object; speculation is told of single choices only."""
    single = choices == 1
    speculation = speculation_of(record.steps, max_draft_tokens, level) if single else None
    return _times(record) | {"speculative_decoding": speculation}


def speculation_of(
    steps: Sequence[Round], max_draft_tokens: int, level: ReportLevel
) -> dict[str, Any]:
    """One choice's verify steps, summed up. The bonus token is accepted in none of them.

    `num_spec_tokens` is the most that may be drafted at once, not what was planned: clients check
    the length of `acceptance_histogram` against it.
    """
    accepted = [step.accepted_tokens for step in steps]
    drafted = [step.verified_tokens for step in steps]
    longest = max([max_draft_tokens, *drafted])
    summary: dict[str, Any] = {
        "mean_acceptance_length": 1 + sum(accepted) / len(steps) if steps else None,
        "draft_acceptance_rate": sum(accepted) / sum(drafted) if steps else None,
        "acceptance_histogram": _histogram(accepted, longest),
        "acceptance_histogram_by_draft_length": _by_length(steps),
        "num_spec_steps": len(steps),
        "num_accepted_draft_tokens": sum(accepted),
        "num_draft_tokens": sum(drafted),
        "num_relaxed_draft_tokens": sum(step.relaxed_tokens for step in steps),
        "num_spec_tokens": longest,
    }
    if level.tells_steps:
        summary |= {"per_step_accepted": accepted, "per_step_drafted": drafted}
    return summary


def _by_length(steps: Sequence[Round]) -> dict[str, list[int]]:
    """For each draft length the histogram of the steps that had it."""
    accepted: dict[int, list[int]] = {}
    for step in steps:
        accepted.setdefault(step.verified_tokens, []).append(step.accepted_tokens)
    return {str(length): _histogram(accepted[length], length) for length in sorted(accepted)}


def _histogram(accepted: Sequence[int], longest: int) -> list[int]:
    """Steps by the number of drafts they accepted, from none to `longest`."""
    counts = [0] * (longest + 1)
    for tokens in accepted:
        counts[tokens] += 1
    return counts


def _times(record: RequestRecord) -> dict[str, Any]:
    """Milliseconds, and tokens per second from the first token on; null where there is no such."""
    first_s, total_s = record.time_to_first_token_s, record.seconds
    generation_s = None if first_s is None else total_s - first_s
    tokens = record.completion_tokens
    gaps = tokens - 1
    return {
        "time_to_first_token_ms": _ms(first_s),
        "generation_time_ms": _ms(generation_s),
        "queue_time_ms": _ms(record.queued_s),
        "mean_itl_ms": _ms(generation_s / gaps) if generation_s is not None and gaps > 0 else None,
        "tokens_per_second": tokens / total_s if tokens and total_s > 0 else None,
    }


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1000, 3)
