"""Predicted output on edits: a text comes back with a change or two, through the whole stack.

    python -m benchmarks.predicted [--tokens 160] [--runs 3] [--policy two_stage] [--max-draft 8]

A small model edits badly; what is measured is the speed of an answer that mostly is its prediction.
So the prediction of each prompt is the model's own greedy answer with some words changed at fixed
places, as if the answer had edited it. Asked at n = 1: with the prediction, with other drafts
alone, and with speculation off, in changing order.
"""

import argparse
import asyncio
import time
from dataclasses import dataclass
from typing import Any

from openai import AsyncOpenAI

from benchmarks.measure import Series, write_result
from benchmarks.prompts import PROMPTS
from benchmarks.stack import running_stack

WAYS = ("predicted", "drafted", "off")
EDIT_EVERY_WORDS = (1000, 40, 15)
"""Never, about twice and about six times in an answer."""


@dataclass(frozen=True)
class Answer:
    """One answer: its text, tokens per second behind the first, prediction tokens."""

    text: str
    tokens_per_s: float
    accepted: int
    rejected: int


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
        asker = Asker(client, (await client.models.list()).data[0].id, tokens)
        answers = {prompt: await asker.ask(prompt, "off") for prompt in PROMPTS["code"]}
        for every in EDIT_EVERY_WORDS:
            rows.append(await _edits(asker, answers, every, runs))
            print(rows[-1])
    return rows


async def _edits(
    asker: "Asker", answers: dict[str, Answer], every_words: int, runs: int
) -> dict[str, Any]:
    """All prompts in all ways, `runs` times; ratios are of the same prompt in the same run."""
    speeds = {way: Series() for way in WAYS}
    accepted = rejected = 0
    for run in range(runs):
        for prompt, plain in answers.items():
            prediction = edited(plain.text, every_words)
            for way in WAYS[run % 3 :] + WAYS[: run % 3]:
                answer = await asker.ask(prompt, way, prediction)
                assert answer.text == plain.text, "speculation changed the text"
                speeds[way].add(answer.tokens_per_s)
                accepted, rejected = accepted + answer.accepted, rejected + answer.rejected
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


class Asker:
    """Streams greedy answers and times what comes after the first token."""

    def __init__(self, client: AsyncOpenAI, model: str, tokens: int) -> None:
        self._client = client
        self._model = model
        self._tokens = tokens

    async def ask(self, prompt: str, way: str, prediction: str = "") -> Answer:
        """One of WAYS; only the first of them uses the prediction."""
        body: dict[str, Any] = {"ignore_eos": True, "speculation": {"enabled": way != "off"}}
        if way == "predicted":
            body["prediction"] = {"type": "content", "content": prediction}
        chunks = await self._client.chat.completions.create(
            model=self._model,
            messages=[{"role": "user", "content": prompt}],
            temperature=0,
            max_tokens=self._tokens,
            stream=True,
            stream_options={"include_usage": True},
            extra_body=body,
        )
        times, text, usage = [], "", None
        async for chunk in chunks:
            usage = chunk.usage or usage
            if chunk.choices and chunk.choices[0].delta.content:
                times.append(time.perf_counter())
                text += chunk.choices[0].delta.content
        assert usage is not None
        details = usage.completion_tokens_details
        assert details is not None
        return Answer(
            text,
            (usage.completion_tokens - 1) / (times[-1] - times[0]),
            details.accepted_prediction_tokens or 0,
            details.rejected_prediction_tokens or 0,
        )


if __name__ == "__main__":
    main()
