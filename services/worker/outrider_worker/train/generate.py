"""Makes a training set: prompts in, shards of answered texts out.

Shard after shard, each a function of the prompts and the seed alone; those that are there are left
as they are, so a run that was stopped goes on where it was. Half of the answers are greedy, half
are drawn at `temperature`, as they will be when the drafter serves.

Knows: the order of work and its progress. Does not know: how answers come about, file layouts.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from hashlib import sha256

import numpy as np

from outrider_worker.engine.types import SamplingParams
from outrider_worker.train.answers import Answer, Question, Respondent
from outrider_worker.train.dataset import Dataset, Text, TextInfo
from outrider_worker.train.prompts import Prompt

Encode = Callable[[str], Sequence[int]]
"""A user's message → ids of the prompt, through the target's chat template, as it is served."""


@dataclass(frozen=True)
class AnswerPlan:
    """How prompts are answered."""

    answer_tokens: int = 160
    """At most, of one answer."""
    temperature: float = 0.8
    """Of every other answer; the others are greedy."""
    prompts_per_shard: int = 64
    context_tokens: int = 512
    seed: int = 0

    def digest(self, prompts: Sequence[Prompt]) -> str:
        """Changes with anything that the texts depend on."""
        plain = json.dumps([asdict(self), [asdict(prompt) for prompt in prompts]])
        return sha256(plain.encode()).hexdigest()[:16]

    def sampling(self, number: int) -> SamplingParams:
        """Of the prompt with this number."""
        return SamplingParams(
            temperature=self.temperature if number % 2 else 0.0,
            seed=self.seed * 1_000_003 + number,
            max_tokens=self.answer_tokens,
        )


@dataclass(frozen=True)
class GenerationProgress:
    """After each shard."""

    shards_done: int
    shards: int
    shards_by_this_run: int
    answer_tokens: int
    """Written by this run"""
    elapsed_s: float

    @property
    def tokens_per_s(self) -> float:
        return self.answer_tokens / max(self.elapsed_s, 1e-9)

    @property
    def eta_s(self) -> float:
        """Until all shards are there, at this run's pace."""
        left = self.shards - self.shards_done
        return left * self.elapsed_s / max(1, self.shards_by_this_run)


def generate(
    dataset: Dataset,
    respondent: Respondent,
    prompts: Sequence[Prompt],
    encode: Encode,
    plan: AnswerPlan,
    report: Callable[[GenerationProgress], None] = lambda progress: None,
    on_text: Callable[[int, int, int], None] = lambda shard, texts, of: None,
) -> None:
    """Write all shards that are missing. A prompt too long for the context is left out.

    on_text: called with the shard, how many of its texts there are, and how many there will be.
    """
    size, began_s = plan.prompts_per_shard, time.monotonic()
    shards = -(-len(prompts) // size)
    written = made = 0
    for shard in range(shards):
        if dataset.has(shard):
            continue
        numbers = range(shard * size, min(len(prompts), (shard + 1) * size))
        texts = _answered(respondent, prompts, numbers, encode, plan, partial(on_text, shard))
        dataset.write(shard, texts)
        made += 1
        written += sum(text.info.answer_tokens for text in texts)
        done = len(dataset.shards())
        elapsed_s = time.monotonic() - began_s
        report(GenerationProgress(done, shards, made, written, elapsed_s))


def _answered(
    respondent: Respondent,
    prompts: Sequence[Prompt],
    numbers: Sequence[int],
    encode: Encode,
    plan: AnswerPlan,
    on_text: Callable[[int, int], None],
) -> list[Text]:
    """The texts of one shard, in the order of their prompts."""
    asked = {number: tuple(encode(prompts[number].text)) for number in numbers}
    longest = plan.context_tokens - plan.answer_tokens
    kept = [number for number, ids in asked.items() if len(ids) <= longest]
    questions = [Question(asked[number], plan.sampling(number)) for number in kept]
    answers = list[Answer]()
    for answer in respondent.answer(questions):
        answers.append(answer)
        on_text(len(answers), len(questions))
    answers.sort(key=lambda answer: answer.number)
    return [
        text_of(answer, prompts[number], len(asked[number]), plan.sampling(number))
        for answer, number in zip(answers, kept, strict=True)
    ]


def text_of(answer: Answer, prompt: Prompt, prompt_tokens: int, sampling: SamplingParams) -> Text:
    """An answer as a training set holds it."""
    tokens = len(answer.token_ids)
    features = np.zeros((tokens, answer.features.shape[1]), np.float16)
    features[:-1] = answer.features.numpy()
    info = TextInfo(
        start=0,
        tokens=tokens,
        prompt_tokens=prompt_tokens,
        family=prompt.family,
        held_out=prompt.held_out,
        temperature=sampling.temperature,
        seed=sampling.seed,
    )
    return Text(info, np.array(answer.token_ids, np.int32), features)
