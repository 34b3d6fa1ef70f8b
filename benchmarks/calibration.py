"""How far off drafters' scores are: as they come, and once it is learnt what they mean.

    python -m benchmarks calibration [--tokens 96] [--humaneval [FILE]]

n-gram, suffix, predicted output and the shipped head on SmolLM2, and a DSpark on the tiny model of
the tests, of which it knows half of the prompts by heart; greedy and at temperature 0.8. Every
round drafts as much as it may and verifies all of it, so that nothing is left out by its score.
Trained drafters run in the engine as served. Those on the host see nothing but text, and the text
is the same whatever is drafted, so their rounds are walked through over the texts of off. Outcomes
go into the planner's statistics in reports of some rounds, each foretold from those before it
alone. There is no clock in any figure.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterable, Mapping
from typing import Any

from benchmarks.calibration_rounds import (
    Questions,
    Round,
    Texts,
    engine_rounds,
    host_rounds,
    smollm_questions,
    tiny_questions,
)
from benchmarks.drafter_cells import HOSTS, Scope, Setting
from benchmarks.forecasts import Learner
from benchmarks.measure import write_result
from benchmarks.prompts import add_humaneval_option
from outrider_planner.core.types import MAX_BINS, DrafterCost, DrafterTraits
from outrider_runtime.logs import configure_logs
from outrider_worker.assembly import Assembly

TEMPERATURES = (0.0, 0.8)
REPORT_ROUNDS = 8
HEAD_TOKENS = 16
"""Of an answer that the head drafts for: each of its rounds teaches several times more."""

Row = Mapping[str, Any]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    add_humaneval_option(parser)
    options = parser.parse_args()
    configure_logs("benchmark", "warning")
    setting = Setting.open(options.threads, "off", Scope())
    smollm, tiny = smollm_questions(setting, options.humaneval), tiny_questions(options.threads)
    rows: list[Row] = []
    for temperature in TEMPERATURES:
        rows += _on_host(setting, Texts.of(smollm, temperature, options.tokens), temperature)
        rows += _in_engine(smollm, temperature, HEAD_TOKENS)
        rows += _in_engine(tiny, temperature)
        write_result("calibration", vars(options), rows)


def _on_host(setting: Setting, texts: Texts, temperature: float) -> list[Row]:
    return [
        measured(setting.assembly, name, temperature, host_rounds(name, texts, setting))
        for name in HOSTS
    ]


def _in_engine(questions: Questions, temperature: float, *tokens: int) -> list[Row]:
    names = [each.name for each in questions.assembly.drafter_traits if each.name not in HOSTS]
    return [
        measured(
            questions.assembly,
            name,
            temperature,
            engine_rounds(questions, name, temperature, *tokens),
        )
        for name in names
    ]


def measured(
    assembly: Assembly, drafter: str, temperature: float, rounds: Iterable[Round]
) -> dict[str, Any]:
    """One drafter's errors over all its rounds."""
    learner, report = Learner(planner_traits(assembly, drafter)), list[Round]()
    for round_ in rounds:
        report.append(round_)
        if len(report) == REPORT_ROUNDS:
            learner.take([outcome for each in report for outcome in each], len(report))
            report.clear()
    row = {"drafter": drafter, "temperature": temperature, **figures(learner)}
    print(_line(row), flush=True)
    return row


def planner_traits(assembly: Assembly, drafter: str) -> DrafterTraits:
    """What the planner is told of a worker's drafter."""
    traits = next(each for each in assembly.drafter_traits if each.name == drafter)
    return DrafterTraits(
        name=drafter,
        max_draft_tokens=traits.max_draft_tokens,
        cost=DrafterCost[traits.cost.name],
        sparse=traits.sparse,
        score_bins=traits.score_bins,
    )


def figures(learner: Learner) -> dict[str, Any]:
    """What is written down of one drafter."""
    verified, accepted = learner.total.verified, learner.total.accepted
    last_bin = float(verified[:, MAX_BINS - 1].sum())
    late = {way: each.second_half() for way, each in learner.forecasts.items()}
    return {
        "drafts": int(verified.sum()),
        "accepted_share": round(float(accepted.sum() / verified.sum()), 4),
        "calibration_error": {
            way: round(each.calibration_error(), 4) for way, each in late.items()
        },
        "brier": {way: round(each.brier(), 4) for way, each in late.items()},
        "calibration_error_from_the_first": {
            way: round(each.calibration_error(), 4) for way, each in learner.forecasts.items()
        },
        "used_by_planner": round(learner.reports_by_score / learner.reports, 3),
        "last_bin_share": round(last_bin / float(verified.sum()), 4),
        "last_bin_accepted": round(float(accepted[:, MAX_BINS - 1].sum()) / max(last_bin, 1.0), 4),
    }


def _line(row: Row) -> str:
    off, brier = row["calibration_error"], row["brier"]
    by_way = ", ".join(f"{way} {off[way]:.3f} ({brier[way]:.3f})" for way in off)
    return (
        f"{row['drafter']}, temperature {row['temperature']}: {row['drafts']} drafts, "
        f"{row['accepted_share']:.2f} hold; calibration error (Brier score): {by_way}; "
        f"scores used in {row['used_by_planner']:.0%} of reports; "
        f"in the last bin {row['last_bin_share']:.2f}, of which {row['last_bin_accepted']:.2f} hold"
    )


if __name__ == "__main__":
    main()
