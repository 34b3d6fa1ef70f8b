"""Predicted output on edits: a text comes back with a change or two, through the whole stack.

    python -m benchmarks.predicted [--tokens 160] [--runs 3] [--policy two_stage] [--max-draft 8]

A small model edits badly; what is measured is the speed of an answer that mostly is its prediction.
So the prediction of each prompt is the model's own greedy answer with some words changed at fixed
places, as if the answer had edited it. Asked at n = 1: with the prediction, with other drafts
alone, and with speculation off, in changing order.
"""

import argparse
import asyncio
from typing import Any

from openai import AsyncOpenAI

from benchmarks.asker import OFF, PLANNED, Answer, Asker, tokens_per_s
from benchmarks.measure import Series, write_result
from benchmarks.prompts import PROMPTS
from benchmarks.stack import running_stack

WAYS = ("predicted", "drafted", "off")
EDIT_EVERY_WORDS = (1000, 40, 15)
"""Never, about twice and about six times in an answer."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokens", type=int, default=160)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--policy", default="two_stage")
    parser.add_argument("--drafter", default="ngram,predicted")
    parser.add_argument("--max-draft", type=int, default=8)
    options = parser.parse_args()
    flags = ["--policy", options.policy, "--drafter", options.drafter]
    flags += ["--max-draft", str(options.max_draft)]
    with running_stack(flags) as url:
        rows = asyncio.run(_measure(url, options.tokens, options.runs))
    write_result("predicted", vars(options), rows)


def edited(text: str, every_words: int) -> str:
    """The text with one word in so many replaced by another, its blanks and line ends kept."""
    words = text.split(" ")
    for at in range(every_words // 2, len(words), every_words):
        words[at] = "otherwise" + "\n" * words[at].count("\n")
    return " ".join(words)


async def _measure(url: str, tokens: int, runs: int) -> list[dict[str, Any]]:
    rows = []
    async with AsyncOpenAI(base_url=url, api_key="unused", timeout=600) as client:
        asker = await Asker.of(client, tokens)
        answers = {prompt: await asker.ask(prompt, OFF) for prompt in PROMPTS["code"]}
        for every in EDIT_EVERY_WORDS:
            rows.append(await _edits(asker, answers, every, runs))
            print(rows[-1])
    return rows


async def _edits(
    asker: Asker, answers: dict[str, Answer], every_words: int, runs: int
) -> dict[str, Any]:
    """All prompts in all ways, `runs` times; ratios are of the same prompt in the same run."""
    speeds = {way: Series() for way in WAYS}
    accepted = rejected = 0
    for run in range(runs):
        for prompt, plain in answers.items():
            prediction = edited(plain.text, every_words)
            for way in WAYS[run % 3 :] + WAYS[: run % 3]:
                answer = await _ask(asker, prompt, way, prediction)
                assert answer.text == plain.text, "speculation changed the text"
                speeds[way].add(tokens_per_s([answer]))
                accepted += answer.accepted_prediction
                rejected += answer.rejected_prediction
    off = speeds["off"].values
    ratios = {
        way: Series([a / b for a, b in zip(speeds[way].values, off, strict=True)]) for way in WAYS
    }
    return {
        "edit_every_words": every_words,
        "tokens_per_s": {way: series.summary() for way, series in speeds.items()},
        "ratio_to_off": {way: series.summary() for way, series in ratios.items() if way != "off"},
        "accepted_prediction_tokens": accepted,
        "rejected_prediction_tokens": rejected,
    }


async def _ask(asker: Asker, prompt: str, way: str, prediction: str) -> Answer:
    """In one of WAYS; only the first of them uses the prediction."""
    limits = OFF if way == "off" else PLANNED
    return await asker.ask(prompt, limits, prediction if way == "predicted" else "")


if __name__ == "__main__":
    main()
