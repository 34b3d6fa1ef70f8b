"""Requests whose whole text is known beforehand: what random traffic is made of.

A *voice* is a prompt with a way to sample. Its text is made once, alone and undisturbed; by the law
of prefixes every request of that voice, however short, resumed or disturbed, gives a part of it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cache

from outrider_worker.constrain.matching import CompiledGrammar
from outrider_worker.constrain.source import compile_grammar, parser_limits
from outrider_worker.engine.constraint import Constraint
from outrider_worker.engine.inbox import Submit
from outrider_worker.engine.types import (
    Finish,
    FinishReason,
    Grammar,
    RequestKey,
    RequestSpec,
    SamplingParams,
    SpeculationLimits,
)
from outrider_worker.kv import PAGE_TOKENS
from tests.support.engines import Answer, Bench
from tests.unit.worker.grammars import END_IDS, regex, tiny

LONGEST_ANSWER_TOKENS = 40
LONGEST_PROMPT_TOKENS = 2 * PAGE_TOKENS + 12
GREEDY = SamplingParams()


@dataclass(frozen=True)
class Voice:
    """What decides a text: the prompt, how is sampled, which choice, which grammar."""

    prompt_ids: tuple[int, ...]
    sampling: SamplingParams = GREEDY
    choice_index: int = 0
    grammar: Grammar | None = None

    def spec(self, key: RequestKey, max_tokens: int) -> RequestSpec:
        return RequestSpec(
            key=replace(key, choice_index=self.choice_index),
            prompt_ids=self.prompt_ids,
            sampling=replace(self.sampling, max_tokens=max_tokens),
            grammar=self.grammar,
        )


@dataclass(frozen=True)
class Text:
    """A voice's text as far as it goes within LONGEST_ANSWER_TOKENS, and how it ends."""

    token_ids: tuple[int, ...]
    end: Finish

    def upto(self, max_tokens: int) -> "Text":
        """What a request of at most `max_tokens` gets."""
        if len(self.token_ids) < max_tokens:
            return self
        return Text(self.token_ids[:max_tokens], Finish(FinishReason.LENGTH))


@dataclass
class Sent:
    """A request under way, what it must give, and what it has given."""

    spec: RequestSpec
    expected: Text
    answer: Answer = field(default_factory=Answer)

    @property
    def finished(self) -> bool:
        """It ended by itself: neither cancelled nor failed."""
        ends = self.answer.ends
        return bool(ends) and isinstance(ends[0], Finish) and ends[0] != _CANCELLED

    def check(self) -> None:
        """So far it is a beginning of the undisturbed text; where it ended by itself, all of it."""
        got, want = tuple(self.answer.token_ids), self.expected.token_ids
        assert got == want[: len(got)], f"{self.spec.key}: another text than alone"
        if self.finished:
            assert (got, self.answer.end) == (want, self.expected.end)
        if self.spec.sampling.top_logprobs is not None:
            assert len(self.answer.logprobs) == len(got)


_CANCELLED = Finish(FinishReason.CANCELLED)


@cache
def compiled(grammar: Grammar) -> CompiledGrammar:
    return compile_grammar(grammar, tiny(), parser_limits())


def constraint_of(spec: RequestSpec) -> Constraint | None:
    """A constraint of the request's own, behind what another worker has delivered."""
    if spec.grammar is None:
        return None
    constraint = compiled(spec.grammar).begin()
    constraint.advance(spec.resumed_ids)
    return constraint


@cache
def text_of(voice: Voice) -> Text:
    """The voice alone: no other requests, no speculation, read in step."""
    bench = Bench(eos_token_ids=END_IDS)
    spec = voice.spec(RequestKey("alone", "0"), LONGEST_ANSWER_TOKENS)
    answer = bench.submit(spec, constraint_of(spec))
    bench.run()
    assert isinstance(answer.end, Finish)
    return Text(tuple(answer.token_ids), answer.end)


def sent(
    voice: Voice,
    key: RequestKey,
    max_tokens: int,
    *,
    resumed_tokens: int = 0,
    tenant_salt: bytes = b"",
    deadline_s: float | None = None,
    speculation: SpeculationLimits | None = None,
) -> Sent:
    """A request of that voice; what another worker has delivered is a beginning of its text."""
    whole = text_of(voice).upto(max_tokens)
    resumed = whole.token_ids[: max(0, min(resumed_tokens, len(whole.token_ids) - 1))]
    spec = replace(
        voice.spec(key, max_tokens),
        resumed_ids=resumed,
        tenant_salt=tenant_salt,
        deadline_s=deadline_s,
        speculation=speculation or SpeculationLimits(),
    )
    return Sent(spec, replace(whole, token_ids=whole.token_ids[len(resumed) :]))


def submission(request: Sent) -> Submit:
    return Submit(request.spec, constraint_of(request.spec))


def _prompt(seed: int, tokens: int, begin: Sequence[int] = ()) -> tuple[int, ...]:
    """Never two adjacent places alike, so that n-grams recur only where the model repeats."""
    return (*begin, *(3 + (seed * 29 + place * (2 * seed + 5)) % 250 for place in range(tokens)))


_ONE_PAGE = _prompt(3, PAGE_TOKENS)
_TWO_PAGES = _prompt(3, 2 * PAGE_TOKENS)
_REPEATS = (40, 41, 42, 43) * 5

_SAMPLED = SamplingParams(temperature=1.0, ignore_eos=True)

VOICES: tuple[Voice, ...] = (
    Voice(_prompt(0, 1)),
    Voice(_prompt(1, 9)),
    Voice(_REPEATS),
    Voice(_prompt(5, 5, _ONE_PAGE)),
    Voice(_prompt(6, 12, _TWO_PAGES)),
    Voice(_TWO_PAGES, replace(_SAMPLED, temperature=0.7, seed=5)),
    *(Voice(_prompt(7, 8, _TWO_PAGES), replace(_SAMPLED, seed=1), choice) for choice in range(3)),
    Voice(_prompt(8, 20), replace(_SAMPLED, temperature=1.2, top_p=0.9, top_k=40, seed=2)),
    Voice(_prompt(9, 3), replace(_SAMPLED, min_p=0.05, seed=3, top_logprobs=2)),
    Voice(_REPEATS, SamplingParams(repetition_penalty=1.3, presence_penalty=0.4)),
    Voice(_prompt(11, 30), replace(_SAMPLED, frequency_penalty=0.5, seed=4, top_logprobs=0)),
    Voice(_prompt(12, 7), SamplingParams(logit_bias=((60, 4.0), (61, -100.0)), min_tokens=12)),
    Voice(_prompt(13, 40), replace(_SAMPLED, seed=6, bad_words=((60,), (70, 71)))),
    Voice(_prompt(14, 6), replace(_SAMPLED, seed=8, stop_token_ids=frozenset(range(3, 13)))),
    Voice(_prompt(14, 52), SamplingParams(temperature=1.3, seed=9)),
    Voice(_prompt(15, 10), grammar=regex("[a-f]{12,30}")),
    Voice(_prompt(15, 10), replace(_SAMPLED, seed=8), grammar=regex("(ab|cd|[0-9]){9,}")),
)


def continuations() -> dict[tuple[int, ...], tuple[int, ...]]:
    """What a scripted drafter has to know; of voices with one prompt the first one's text."""
    return {voice.prompt_ids: text_of(voice).token_ids for voice in reversed(VOICES)}
