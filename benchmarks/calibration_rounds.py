"""Rounds whose drafts are all verified, of drafters in the engine and of drafters on paper.

Knows: prompts, texts, what became of each draft. Does not know: what scores are worth.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile, zip_longest
from operator import eq

from benchmarks.drafter_cells import MAX_DRAFT_TOKENS, MAX_REQUESTS, OFF, Setting
from benchmarks.gpu.engines import static_plan
from benchmarks.in_process import SteppedEngine
from benchmarks.prompts import PROMPTS, with_humaneval
from outrider_worker.assembly import Assembly, assemble
from outrider_worker.engine.records import DraftOutcome
from outrider_worker.engine.types import RequestKey, RequestSpec, SamplingParams, SpeculationLimits
from outrider_worker.settings import WorkerSettings
from outrider_worker.speculate.drafter import (
    PREDICTED,
    Ask,
    Drafter,
    ReadsRequests,
    load_drafter,
)
from tests.support.memorised_heads import ANSWER_TOKENS, memorised_head
from tests.support.tiny_models import shared_tiny_llama

Prompt = tuple[int, ...]
Round = Sequence[DraftOutcome]


@dataclass(frozen=True)
class Questions:
    """What one worker is asked, at most MAX_REQUESTS prompts at a time."""

    assembly: Assembly
    batches: Sequence[Sequence[Prompt]]

    def specs(self, temperature: float, tokens: int, drafter: str = "") -> list[list[RequestSpec]]:
        """Requests for answers of so many tokens, batch by batch; empty: nobody drafts."""
        limits = SpeculationLimits(enabled=bool(drafter), drafter=drafter)
        found: list[list[RequestSpec]] = []
        for number, batch in enumerate(self.batches):
            seeds = range(number * MAX_REQUESTS, number * MAX_REQUESTS + len(batch))
            found.append(
                [
                    RequestSpec(
                        RequestKey("bench", f"{seed}"),
                        prompt,
                        SamplingParams(
                            temperature=temperature, seed=seed, max_tokens=tokens, ignore_eos=True
                        ),
                        speculation=limits,
                    )
                    for seed, prompt in zip(seeds, batch, strict=True)
                ]
            )
        return found


def smollm_questions(setting: Setting, humaneval: str | None) -> Questions:
    """All kinds of text mixed in every batch."""
    kinds = with_humaneval(PROMPTS, humaneval).values()
    mixed = [prompt for prompts in zip(*kinds, strict=False) for prompt in prompts]
    asked = mixed[: len(kinds) * MAX_REQUESTS]
    return Questions(setting.assembly, _batches([setting.prompt_ids(each) for each in asked]))


def tiny_questions(threads: int) -> Questions:
    """A DSpark's: prompts that it knows by heart and others, side by side."""
    head = memorised_head("dspark")
    settings = WorkerSettings(
        model=str(shared_tiny_llama()),
        planner="",
        threads=threads,
        drafter=str(head.folder),
        max_running=MAX_REQUESTS,
        max_rows=MAX_REQUESTS * MAX_DRAFT_TOKENS,
        context=128,
        kv_gib=0.05,
        prefix_cache=False,
    )
    prompts = [prompt for pair in zip(head.prompts, head.others, strict=True) for prompt in pair]
    return Questions(assemble(settings), _batches(prompts))


def _batches(prompts: Sequence[Prompt]) -> list[Sequence[Prompt]]:
    return [prompts[at : at + MAX_REQUESTS] for at in range(0, len(prompts), MAX_REQUESTS)]


def engine_rounds(
    questions: Questions, drafter: str, temperature: float, tokens: int = ANSWER_TOKENS
) -> Iterator[Round]:
    """Of a drafter of the worker, in the engine as served."""
    traits = next(each for each in questions.assembly.drafter_traits if each.name == drafter)
    plan = static_plan(drafter, traits.max_draft_tokens, MAX_REQUESTS)
    engine = SteppedEngine.fixed(questions.assembly, plan)
    for specs in questions.specs(temperature, tokens, drafter):
        for record in engine.decode(specs).records:
            yield [outcome for outcome in record.outcomes if outcome.asked_tokens]


@dataclass(frozen=True)
class Texts:
    """Requests with their answers, batch by batch."""

    batches: Sequence[Sequence[tuple[RequestSpec, Sequence[int]]]]

    @classmethod
    def of(cls, questions: Questions, temperature: float, tokens: int) -> Texts:
        """Decoded without drafts."""
        off = SteppedEngine.fixed(questions.assembly, static_plan(OFF, 0, MAX_REQUESTS))
        batches = []
        for specs in questions.specs(temperature, tokens):
            answers = off.decode(specs).token_ids
            batches.append([(spec, answers[spec.key.request_id]) for spec in specs])
        return cls(batches)

    def predicted(self, setting: Setting) -> Texts:
        """Each with a prediction: its answer, but for a few words."""
        return Texts(
            [
                [(replace(s, prediction_ids=setting.edited_ids(text)), text) for s, text in batch]
                for batch in self.batches
            ]
        )


def host_rounds(name: str, texts: Texts, setting: Setting) -> Iterator[Round]:
    """Of a drafter on the host, walked through over texts: no draft would change them."""
    drafter = load_drafter(name, MAX_DRAFT_TOKENS)
    assert drafter is not None
    for batch in (texts.predicted(setting) if name == PREDICTED else texts).batches:
        walks = [walked(drafter, spec, text) for spec, text in batch]
        for found in zip_longest(*walks):
            yield [outcome for outcome in found if outcome is not None]


def walked(drafter: Drafter, spec: RequestSpec, text: Sequence[int]) -> Iterator[DraftOutcome]:
    """One request's rounds: drafts hold as long as they are what its answer says."""
    key, asked = spec.key, drafter.traits.max_draft_tokens
    if isinstance(drafter, ReadsRequests):
        drafter.begin(spec)
    said = 1
    drafter.prefill(key, [*spec.prompt_ids, *text[:said]])
    while (room := min(asked, len(text) - said - 1)) > 0:  # the last token is the target's own
        (draft,) = drafter.propose([Ask(key, room)])
        held = sum(takewhile(bool, map(eq, draft.token_ids, text[said:])))
        yield DraftOutcome(
            drafter=drafter.traits.name,
            request_class=spec.request_class,
            context_tokens=len(spec.prompt_ids) + said,
            asked_tokens=room,
            bins=draft.bins,
            verified=len(draft),
            accepted=held,
        )
        drafter.observe(key, text[said : said + held + 1])
        said += held + 1
    drafter.release(key)
