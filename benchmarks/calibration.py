"""How far off drafters' scores are: as they come, and once it is learnt what they mean.

    python -m benchmarks calibration [--tokens 96] [--humaneval FILE]

In process, the engine as served: n-gram, suffix, predicted output and the shipped head on SmolLM2,
and a DSpark on the tiny model of the tests, of which it knows half of the prompts by heart. Eight
requests at a time, greedy and at temperature 0.8; every round drafts as much as it may and verifies
all of it, so that nothing is left out by its score. Outcomes go into the planner's statistics in
reports of some rounds, each foretold from those before it alone. There is no clock in any figure.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from benchmarks.drafter_cells import MAX_REQUESTS, OFF, Scope, Setting
from benchmarks.forecasts import Learner
from benchmarks.gpu.engines import static_plan
from benchmarks.in_process import Decoded, SteppedEngine
from benchmarks.measure import write_result
from benchmarks.prompts import PROMPTS, add_humaneval_option, with_humaneval
from outrider_planner.core.types import MAX_BINS, DrafterCost, DrafterTraits
from outrider_runtime.logs import configure_logs
from outrider_worker.assembly import Assembly, assemble
from outrider_worker.engine.records import RoundRecord
from outrider_worker.engine.types import RequestKey, RequestSpec, SamplingParams, SpeculationLimits
from outrider_worker.settings import WorkerSettings
from outrider_worker.speculate.drafter import PREDICTED
from tests.support.memorised_heads import ANSWER_TOKENS, memorised_head
from tests.support.tiny_models import shared_tiny_llama

TEMPERATURES = (0.0, 0.8)
REPORT_ROUNDS = 8

Prompt = tuple[int, ...]


@dataclass(frozen=True)
class Questions:
    """What one drafter is asked about, a few prompts at a time."""

    assembly: Assembly
    batches: Sequence[Sequence[Prompt]]
    tokens: int
    """Of each answer"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    add_humaneval_option(parser)
    options = parser.parse_args()
    configure_logs("benchmark", "warning")
    setting = Setting.open(options.threads, "off", Scope())
    smollm = _smollm(setting, options.tokens, options.humaneval)
    rows = [
        measure(questions, drafter, temperature, setting)
        for questions in (smollm, _tiny(options.threads))
        for drafter in (traits.name for traits in questions.assembly.drafter_traits)
        for temperature in TEMPERATURES
    ]
    write_result("calibration", {**vars(options), "humaneval": options.humaneval is not None}, rows)


def measure(
    questions: Questions, drafter: str, temperature: float, setting: Setting
) -> dict[str, Any]:
    """One drafter's errors over all its questions."""
    traits = next(each for each in questions.assembly.drafter_traits if each.name == drafter)
    tokens = traits.max_draft_tokens
    learner = Learner(
        DrafterTraits(
            name=drafter,
            max_draft_tokens=tokens,
            cost=DrafterCost[traits.cost.name],
            sparse=traits.sparse,
            score_bins=traits.score_bins,
        )
    )
    plan = static_plan(drafter, tokens, MAX_REQUESTS)
    engine = SteppedEngine.fixed(questions.assembly, plan)
    for number, prompts in enumerate(questions.batches):
        specs = _specs(questions, prompts, drafter, temperature, number)
        if drafter == PREDICTED:
            specs = _edits(questions.assembly, specs, setting)
        for records in _reports(engine.decode(specs)):
            learner.take(records)
    row = {"drafter": drafter, "temperature": temperature, **figures(learner)}
    print(_line(row), flush=True)
    return row


def figures(learner: Learner) -> dict[str, Any]:
    """What is written down of one drafter."""
    verified, accepted = learner.total.verified, learner.total.accepted
    last_bin = verified[:, MAX_BINS - 1].sum()
    return {
        "drafts": int(verified.sum()),
        "accepted_share": round(float(accepted.sum() / verified.sum()), 4),
        "calibration_error": {
            way: round(each.calibration_error(), 4) for way, each in learner.forecasts.items()
        },
        "brier": {way: round(each.brier(), 4) for way, each in learner.forecasts.items()},
        "last_bin_share": round(float(last_bin / verified.sum()), 4),
        "last_bin_accepted": round(float(accepted[:, MAX_BINS - 1].sum() / max(last_bin, 1)), 4),
    }


def _smollm(setting: Setting, tokens: int, humaneval: str | None) -> Questions:
    """All kinds of text, kind after kind."""
    batches = [
        [setting.prompt_ids(prompt) for prompt in prompts[:MAX_REQUESTS]]
        for prompts in with_humaneval(PROMPTS, humaneval).values()
    ]
    return Questions(setting.assembly, batches, tokens)


def _tiny(threads: int) -> Questions:
    """Known prompts and others side by side."""
    head = memorised_head("dspark")
    settings = WorkerSettings(
        model=str(shared_tiny_llama()),
        planner="",
        threads=threads,
        drafter=str(head.folder),
        max_running=MAX_REQUESTS,
        context=128,
        kv_gib=0.05,
        prefix_cache=False,
    )
    prompts = [prompt for pair in zip(head.prompts, head.others, strict=True) for prompt in pair]
    batches = [prompts[at : at + MAX_REQUESTS] for at in range(0, len(prompts), MAX_REQUESTS)]
    return Questions(assemble(settings), batches, ANSWER_TOKENS)


def _specs(
    questions: Questions, prompts: Sequence[Prompt], drafter: str, temperature: float, turn: int
) -> list[RequestSpec]:
    return [
        RequestSpec(
            RequestKey("bench", f"{number}"),
            prompt,
            SamplingParams(
                temperature=temperature,
                seed=turn * MAX_REQUESTS + number,
                max_tokens=questions.tokens,
                ignore_eos=True,
            ),
            speculation=SpeculationLimits(drafter=drafter),
        )
        for number, prompt in enumerate(prompts)
    ]


def _edits(assembly: Assembly, specs: Sequence[RequestSpec], setting: Setting) -> list[RequestSpec]:
    """The same requests, each with a prediction: what it would answer, but for a few words."""
    off = SteppedEngine.fixed(assembly, static_plan(OFF, 0, MAX_REQUESTS))
    answers = off.decode(specs).token_ids
    return [
        replace(spec, prediction_ids=setting.edited_ids(answers[spec.key.request_id]))
        for spec in specs
    ]


def _reports(decoded: Decoded) -> Iterator[Sequence[RoundRecord]]:
    """A few rounds at a time, in order."""
    for start in range(0, len(decoded.records), REPORT_ROUNDS):
        yield decoded.records[start : start + REPORT_ROUNDS]


def _line(row: Mapping[str, Any]) -> str:
    off, brier = row["calibration_error"], row["brier"]
    by_way = ", ".join(f"{way} {off[way]:.3f} ({brier[way]:.3f})" for way in off)
    return (
        f"{row['drafter']}, temperature {row['temperature']}: {row['drafts']} drafts, "
        f"{row['accepted_share']:.2f} hold; calibration error (Brier score): {by_way}; "
        f"in the last bin {row['last_bin_share']:.2f}, of which {row['last_bin_accepted']:.2f} hold"
    )


if __name__ == "__main__":
    main()
