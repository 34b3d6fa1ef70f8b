"""What the five laws are tested on: all options, and all ways to serve them.

The yardstick is always the same request alone, in step, without any speculation. Knows how to ask
for an option, how to build an engine that drafts in a given way, how to compare; the tests choose.
"""

import itertools
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

from outrider_worker.engine.drafters import Drafters
from outrider_worker.engine.scheduler import SchedulerLimits
from outrider_worker.engine.types import Grammar, RequestKey, RequestSpec, SpeculationLimits
from outrider_worker.model.loader import LoadedModel, load_model
from outrider_worker.speculate.device_ngram import DeviceNgramDrafter
from outrider_worker.speculate.draft_model import DraftModel
from outrider_worker.speculate.ngram import NgramDrafter
from outrider_worker.speculate.scripted import Script, ScriptedDrafter, always, listed
from outrider_worker.streams import DeviceStream, EmulatedStream, ImmediateStream
from tests.support.device_scripted import DeviceScripted
from tests.support.engines import Answer, Bench, request, static_plan, tiny_model
from tests.support.neural_drafters import KINDS
from tests.support.tiny_models import VOCAB_SIZE, make_tiny_model
from tests.support.tiny_sparse_models import shared_tiny_sparse
from tests.unit.worker.grammars import COLOURS, begin, ids, regex, schema

END_IDS = (2, 0)
K_MAX = 8
LIMITS = SchedulerLimits(16, max_context_tokens=256, prefill_chunk_tokens=24)
"""Prompts are computed in several chunks."""

_COLOUR = {
    "type": "object",
    "properties": {"colour": COLOURS, "on": {"type": "boolean"}},
    "required": ["colour", "on"],
    "additionalProperties": False,
}
_NO_TWINS = tuple((token, token) for token in range(3, VOCAB_SIZE))
"""Bad words that forbid to say a token twice in a row."""
NO_BLANKS = tuple((token, -50.0) for token in ids(" \n\r\t"))
"""A random model cannot decide to end them; where the grammar wants one, it still comes."""

OPTIONS: Mapping[str, Mapping[str, Any]] = {
    "greedy": {},
    "temperature": {"temperature": 0.7, "seed": 5},
    "hot": {"temperature": 1.5, "seed": (1 << 64) - 1},
    "top-k": {"temperature": 1.0, "top_k": 20, "seed": 6},
    "top-p": {"temperature": 1.0, "top_p": 0.8, "seed": 7},
    "min-p": {"temperature": 1.2, "min_p": 0.05, "seed": 8},
    "repetition": {"repetition_penalty": 1.4},
    "presence": {"temperature": 0.5, "presence_penalty": 1.5, "seed": 9},
    "frequency": {"frequency_penalty": 0.7},
    "bias": {"logit_bias": ((40, 4.0), (41, 3.5), (178, -100.0))},
    "min-tokens": {
        "temperature": 1.0,
        "seed": 10,
        "min_tokens": 9,
        "stop_token_ids": frozenset(range(3, 90)),
    },
    "stop-ids": {"temperature": 1.0, "seed": 11, "stop_token_ids": frozenset(range(3, 15))},
    "bad-words": {"temperature": 0.4, "seed": 12, "bad_words": (*_NO_TWINS, (40,), (5, 6, 7))},
    "choice": {"temperature": 1.0, "seed": 5, "choice_index": 3},
    "logprobs": {"temperature": 1.0, "seed": 13, "top_logprobs": 7},
    "ignore-eos": {"ignore_eos": True, "logit_bias": ((2, 6.0),)},
    "json": {
        "temperature": 1.0,
        "seed": 14,
        "grammar": schema(_COLOUR),
        "logit_bias": NO_BLANKS,
        "max_tokens": 48,
    },
    "regex": {"grammar": regex(r"(ab|c){2,4}-[0-9]{1,9}"), "max_tokens": 30},
    "everything": {
        "temperature": 0.9,
        "top_k": 90,
        "top_p": 0.97,
        "min_p": 0.001,
        "repetition_penalty": 1.1,
        "presence_penalty": 0.2,
        "frequency_penalty": 0.1,
        "logit_bias": ((40, 1.0), (100, -3.0)),
        "min_tokens": 6,
        "stop_token_ids": frozenset(range(3, 9)),
        "bad_words": ((40, 41), (99,)),
        "seed": 15,
        "top_logprobs": 2,
        "grammar": regex(r"[a-z ]{4,40}"),
    },
}
DRAFTERS = (
    *("never", "always", "list", "random", "ngram"),
    *("device-ngram", "device-scripted", "device-model"),
)
DRAFT_TOKENS = (0, 1, 3, 7)
MODES = ("in-step", "ahead")
COMPANY = ("alone", "batched")
DENSE = ("llama", "mistral", "mistral-sliding", "qwen2", "qwen3")
SPARSE = ("qwen3_moe", "deepseek_v2", "deepseek_v3")

_SCRIPTS: Mapping[str, Script] = {
    "never": always(0),
    "always": always(K_MAX),
    "list": listed([0, 2, 7, 1, 3]),
    "random": lambda round_, asked: Random(round_).randint(0, asked),
}


@dataclass(frozen=True)
class Way:
    """How requests are served: who drafts how much, on which kind of device, by which model.

    drafter: one of DRAFTERS, or of neural_drafters.KINDS, which are the tiny Llama's.
    """

    drafter: str = "always"
    draft_tokens: int = 3
    mode: str = "in-step"
    family: str = "llama"

    @property
    def plan_name(self) -> str:
        """The drafter's name in plans."""
        if self.drafter in ("device-model", "draft-model"):
            return "draft"
        if self.drafter in KINDS:
            return self.drafter.removesuffix("-vanilla")
        return "ngram" if "ngram" in self.drafter else "scripted"

    @property
    def on_device(self) -> bool:
        """Whether rounds can be launched ahead of one another."""
        return self.drafter.startswith("device") or self.drafter in KINDS


def prompt(number: int, tokens: int = 50) -> tuple[int, ...]:
    """Records that nearly repeat, so that lookup finds something; a page's border is near."""
    period = 5 + number
    return tuple(
        3 + (11 * number + 7 * (place % period) + (place % 13 == 0)) % 250
        for place in range(tokens + number)
    )


def ask(option: str, number: int = 0, **changes: Any) -> RequestSpec:
    """A request for one of OPTIONS on prompt `number`; with logprobs unless told otherwise."""
    wanted: dict[str, Any] = {"max_tokens": 24, "top_logprobs": 3, **OPTIONS[option], **changes}
    grammar: Grammar | None = wanted.pop("grammar", None)
    return replace(request(wanted.pop("prompt_ids", prompt(number)), **wanted), grammar=grammar)


def submit(bench: Bench, spec: RequestSpec) -> Answer:
    """With the constraint that its grammar asks for, behind the tokens already delivered."""
    if spec.grammar is None:
        return bench.submit(spec)
    constraint = begin(spec.grammar)
    constraint.advance(spec.resumed_ids)
    return bench.submit(spec, constraint)


def run(bench: Bench, specs: Sequence[RequestSpec]) -> list[Answer]:
    """Serve them together; laws four and five hold."""
    answers = [submit(bench, spec) for spec in specs]
    bench.run()
    for spec, answer in zip(specs, answers, strict=True):
        wanted = spec.sampling.top_logprobs is not None
        assert len(answer.logprobs) == wanted * len(answer.token_ids)
    return answers


def alone(spec: RequestSpec, family: str = "llama") -> Answer:
    """What a request gets in step, without company or speculation. Do not change it."""
    key = RequestKey("test", "alone", spec.key.choice_index)
    return _alone(replace(spec, key=key, speculation=SpeculationLimits()), family)


@cache
def _alone(spec: RequestSpec, family: str) -> Answer:
    bench = Bench(model=model_of(family), eos_token_ids=END_IDS, limits=LIMITS)
    return run(bench, [spec])[0]


@contextmanager
def opened(way: Way, specs: Sequence[RequestSpec], **settings: Any) -> Iterator[Bench]:
    """An engine that serves in this way.

    Scripted drafters know the texts of `specs`: of those with equal prompts, of the first.
    """
    stream: DeviceStream = EmulatedStream() if way.mode == "ahead" else ImmediateStream()
    drafters = _drafters(way, specs)
    merged: dict[str, Any] = {
        "plan": static_plan(way.plan_name, way.draft_tokens),
        "limits": LIMITS,
        "eos_token_ids": END_IDS,
        **settings,
    }
    try:
        yield Bench(
            drafters=drafters,
            stream=stream,
            model=model_of(way.family),
            max_draft_tokens=K_MAX,
            **merged,
        )
    finally:
        stream.close()


def serve(way: Way, specs: Sequence[RequestSpec], **settings: Any) -> list[Answer]:
    """Serve requests together in this way."""
    with opened(way, specs, **settings) as bench:
        return run(bench, specs)


def assert_undisturbed(way: Way, specs: Sequence[RequestSpec], answers: Sequence[Answer]) -> None:
    """Law three: tokens, ends and, to the last bit, logprobs are those of each request alone.

    The bits are equal since a row's logits do not depend on other rows, and the logarithm of each
    row is taken by itself.
    """
    for spec, answer in zip(specs, answers, strict=True):
        expected = alone(spec, way.family)
        assert answer.token_ids == expected.token_ids
        assert answer.end == expected.end
        assert answer.logprobs == expected.logprobs


def model_of(family: str) -> LoadedModel:
    """A tiny model of a family; "mistral-sliding" looks back 16 tokens only."""
    return tiny_model() if family == "llama" else _loaded(family)


@cache
def _loaded(family: str) -> LoadedModel:
    if family in SPARSE:
        return load_model(shared_tiny_sparse(family))
    folder = Path(tempfile.mkdtemp(prefix="outrider-tiny-"))
    name, _, sliding = family.partition("-")
    settings = {"sliding_window": 16} if sliding else {}
    return load_model(make_tiny_model(folder, name, **settings))


def _drafters(way: Way, specs: Sequence[RequestSpec]) -> Drafters:
    if way.drafter == "ngram":
        return Drafters([NgramDrafter(K_MAX)])
    if way.drafter == "device-ngram":
        return Drafters(devices=[DeviceNgramDrafter(K_MAX)])
    if way.drafter == "device-model":
        return Drafters(devices=[itself(way.family)])
    if way.drafter in KINDS:
        return Drafters(devices=[KINDS[way.drafter](K_MAX)])
    firsts = {spec.prompt_ids: spec for spec in reversed(specs)}
    texts = {prompt_ids: whole_text(spec, way.family) for prompt_ids, spec in firsts.items()}
    if way.drafter == "device-scripted":
        return Drafters(devices=[DeviceScripted(texts, [K_MAX, 0, 2, 5], VOCAB_SIZE, K_MAX)])
    return Drafters([ScriptedDrafter(texts, _SCRIPTS[way.drafter], VOCAB_SIZE, K_MAX)])


def itself(family: str = "llama") -> DraftModel:
    """The target as its own draft model: always right, but where a grammar says otherwise."""
    return DraftModel(model_of(family).model, VOCAB_SIZE, VOCAB_SIZE, K_MAX)


def whole_text(spec: RequestSpec, family: str = "llama") -> list[int]:
    """All that follows its prompt: what was delivered before, what it gets, the hidden end id."""
    answer = alone(spec, family)
    stop = getattr(answer.end, "stop_token_id", None)
    return [*spec.resumed_ids, *answer.token_ids, *([] if stop is None else [stop])]


def pairwise(*axes: Sequence[Any]) -> list[tuple[Any, ...]]:
    """Few rows in which every two values of two different axes meet; the longest axes first."""
    pairs = itertools.combinations(range(len(axes)), 2)
    open_ = {(i, a, j, b) for i, j in pairs for a in axes[i] for b in axes[j]}
    rows: list[tuple[Any, ...]] = []
    for start in itertools.product(*axes[:2]):
        ways = ((*start, *rest) for rest in itertools.product(*axes[2:]))
        rows.append(max(ways, key=lambda row: len(_met(row) & open_)))
        open_ -= _met(rows[-1])
    assert not open_, "the first two axes are too short for the others"
    return rows


def _met(row: tuple[Any, ...]) -> set[tuple[Any, ...]]:
    return {(i, row[i], j, row[j]) for i, j in itertools.combinations(range(len(row)), 2)}
