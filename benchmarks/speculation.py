"""n-gram speculation under `two_stage` against off, by kind of text, through the whole stack.

    python -m benchmarks.speculation [--tokens 128] [--runs 3] [--humaneval [FILE]]

Router, planner and worker are real processes; every prompt is asked twice in a row, once as the
deployment plans it and once with `speculation: {"enabled": false}`, in changing order. Prompts are
distinct: repeating one would let the drafter look up the answer of the time before.
"""

import argparse
import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from openai import AsyncOpenAI

from benchmarks.asker import OFF, PLANNED, Asker, tokens_per_s
from benchmarks.measure import Series, write_result
from benchmarks.prompts import PROMPTS, add_humaneval_option, with_humaneval
from benchmarks.stack import running_stack

CONCURRENCY = (1, 8)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--policy", default="two_stage")
    add_humaneval_option(parser)
    options = parser.parse_args()
    kinds = with_humaneval(PROMPTS, options.humaneval)
    with running_stack(["--policy", options.policy]) as url:
        rows = asyncio.run(_measure(url, kinds, options.tokens, options.runs))
    write_result("speculation", vars(options), rows)


async def _measure(
    url: str, kinds: Mapping[str, Sequence[str]], tokens: int, runs: int
) -> list[dict[str, Any]]:
    rows = []
    async with AsyncOpenAI(base_url=url, api_key="unused", timeout=600) as client:
        asker = await Asker.of(client, tokens)
        for kind, all_prompts in kinds.items():
            prompts = all_prompts[: max(CONCURRENCY)]
            for concurrency in CONCURRENCY:
                planned, off = Series(), Series()
                await asker.ask_all(prompts[:concurrency], PLANNED)
                for run in range(runs):
                    batches = _batches(prompts, concurrency, run)
                    for batch in batches:
                        await _pair(asker, batch, planned, off, planned_first=run % 2 == 0)
                ratios = [a / b for a, b in zip(planned.values, off.values, strict=True)]
                ratio = Series(ratios)
                print(f"{kind} n={concurrency}: planned {planned}  off {off}  ratio {ratio}")
                rows.append(
                    {
                        "kind": kind,
                        "concurrency": concurrency,
                        "planned_tokens_per_s": planned.summary(),
                        "off_tokens_per_s": off.summary(),
                        "ratio": ratio.summary(),
                    }
                )
    return rows


def _batches(prompts: Sequence[str], concurrency: int, run: int) -> list[Sequence[str]]:
    """At concurrency 1 a few prompts of their own for each run, else all at once."""
    if concurrency > 1:
        return [prompts[:concurrency]]
    return [[prompt] for prompt in prompts[run::3]]


async def _pair(
    asker: Asker, batch: Sequence[str], planned: Series, off: Series, planned_first: bool
) -> None:
    for speculate in (planned_first, not planned_first):
        series = planned if speculate else off
        answers = await asker.ask_all(batch, PLANNED if speculate else OFF)
        series.add(tokens_per_s(answers))


if __name__ == "__main__":
    main()
