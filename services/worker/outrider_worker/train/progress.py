"""What training says while it runs, in lines for a person.

Knows: wording. Does not know: where lines go.
"""

from __future__ import annotations

from collections.abc import Mapping

from outrider_worker.train.evaluate import Acceptance
from outrider_worker.train.generate import GenerationProgress
from outrider_worker.train.trainer import StepReport


def duration(seconds: float) -> str:
    """1 h 05 min, 3 min 20 s, 12 s"""
    whole = round(seconds)
    if whole >= 3600:
        return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
    if whole >= 60:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole} s"


def generation_line(progress: GenerationProgress) -> str:
    """After a shard."""
    return (
        f"answers: shard {progress.shards_done} of {progress.shards}, "
        f"{progress.answer_tokens} tokens, {progress.tokens_per_s:.0f} tokens/s, "
        f"{duration(progress.eta_s)} left"
    )


def texts_line(shard: int, texts: int, of: int) -> str:
    """Within a shard."""
    return f"answers: shard {shard + 1}, {texts} of its {of} texts"


def step_line(report: StepReport, steps: int, mean_step_s: float) -> str:
    """After a step."""
    left = duration((steps - report.step) * mean_step_s)
    return (
        f"step {report.step} of {steps}: loss {report.loss:.3f}, "
        f"{report.rows / report.elapsed_s:.0f} rows/s, {left} left"
    )


def acceptance_lines(found: Mapping[str, Acceptance]) -> list[str]:
    """One line for each set of texts."""
    return [f"  {name}: {acceptance_line(each)}" for name, each in found.items()]


def acceptance_line(found: Acceptance) -> str:
    """By position, and what a round gives."""
    positions = " / ".join(f"{share:.2f}" for share in found.by_position)
    return f"acceptance {positions}, {found.tokens_per_round:.2f} tokens a round"
