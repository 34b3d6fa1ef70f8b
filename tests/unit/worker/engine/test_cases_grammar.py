"""Grammars and drafts through the real engine: illegal drafts, failures, answers that are whole."""

import json
from collections.abc import Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from outrider_worker.engine.constraint import Constraint, ConstraintFailed, ConstraintViolated
from outrider_worker.engine.types import (
    Failure,
    FailureCode,
    Finish,
    FinishReason,
    Grammar,
    GrammarKind,
    RequestSpec,
)
from outrider_worker.speculate.device_ngram import DeviceNgramDrafter
from outrider_worker.speculate.scripted import ScriptedDrafter, always
from outrider_worker.streams import EmulatedStream
from tests.support.device_scripted import DeviceScripted
from tests.support.engines import Bench, static_plan
from tests.support.laws import (
    END_IDS,
    K_MAX,
    NO_BLANKS,
    Way,
    alone,
    ask,
    assert_undisturbed,
    opened,
    run,
    serve,
    submit,
    whole_text,
)
from tests.support.tiny_models import VOCAB_SIZE
from tests.unit.worker.grammars import NESTED, begin, ids, schema, text_of


def _nested(number: int = 0, seed: int = 3) -> RequestSpec:
    """A nested object with an enum, null among its values, numbers and a list."""
    return ask(
        "json",
        number,
        grammar=schema(NESTED),
        max_tokens=150,
        seed=seed,
        logit_bias=(*NO_BLANKS, *((token, 8.0) for token in ids('",}]'))),
    )


@pytest.mark.parametrize("offset", range(K_MAX))
@pytest.mark.parametrize("wrong", [*ids("{\x01"), END_IDS[0]])
def test_illegal_drafts_at_every_offset(offset: int, wrong: int) -> None:
    """C01: behind any number of right drafts comes a forbidden one, or an early end."""
    spec = _nested()
    texts = {spec.prompt_ids: whole_text(spec)}
    drafter = ScriptedDrafter(texts, always(offset), VOCAB_SIZE, K_MAX, wrong)
    bench = Bench(drafter, static_plan("scripted", K_MAX), eos_token_ids=END_IDS)
    answers = run(bench, [spec])
    assert_undisturbed(Way(), [spec], answers)
    assert isinstance(answers[0].end, Finish)
    json.loads(text_of(answers[0].token_ids))
    accepted = [o.accepted for record in bench.records for o in record.outcomes if o.verified]
    assert max(accepted) >= offset


@pytest.mark.parametrize("offset", range(K_MAX))
def test_illegal_drafts_on_the_device(offset: int) -> None:
    """C01: there the masks are made while the forward over these drafts runs."""
    specs = [_nested(), _nested(1, seed=4), ask("greedy", 2, max_tokens=50)]
    texts = {spec.prompt_ids: whole_text(spec) for spec in specs}
    stream = EmulatedStream()
    bench = Bench(
        device_drafter=DeviceScripted(texts, [offset], VOCAB_SIZE, K_MAX),
        plan=static_plan("scripted", K_MAX),
        stream=stream,
        eos_token_ids=END_IDS,
    )
    answers = run(bench, specs)
    stream.close()
    assert_undisturbed(Way(), specs, answers)
    for answer in answers[:2]:
        json.loads(text_of(answer.token_ids))


class FailsAfter:
    """A constraint that cannot be followed once `tokens` tokens are committed (a Constraint).

    `on_advance`: what advancing raises then; None: masks fail.
    """

    def __init__(self, inner: Constraint, tokens: int, on_advance: type[Exception] | None) -> None:
        self._inner = inner
        self._left = tokens
        self._on_advance = on_advance

    @property
    def finished(self) -> bool:
        return self._inner.finished

    def masks(self, drafts: Sequence[int]) -> NDArray[np.int32]:
        if self._left <= 0 and self._on_advance is None:
            raise ConstraintFailed("too complex here")
        return self._inner.masks(drafts)

    def advance(self, token_ids: Sequence[int]) -> None:
        self._left -= len(token_ids)
        if self._left <= 0 and self._on_advance is not None:
            raise self._on_advance("too complex here")
        self._inner.advance(token_ids)


@pytest.mark.parametrize("on_advance", [None, ConstraintFailed, ConstraintViolated])
@pytest.mark.parametrize("tokens", [0, 1, 6, 20])
@pytest.mark.parametrize("way", [Way("list", 3), Way("device-scripted", 3, "ahead")])
def test_a_grammar_that_fails_ends_its_own_request_alone(
    way: Way, tokens: int, on_advance: type[Exception] | None
) -> None:
    """At the first token too, and whether or not another one of the batch follows a grammar."""
    failing = _nested()
    assert failing.grammar is not None
    for others in ([], [ask("greedy", 1)], [ask("json", 2), ask("temperature", 3)]):
        with opened(way, [failing, *others]) as bench:
            broken = FailsAfter(begin(failing.grammar), tokens, on_advance)
            answer = bench.submit(failing, broken)
            kept = [submit(bench, spec) for spec in others]
            bench.run()
        assert answer.end == Failure(FailureCode.INVALID, "too complex here", "grammar")
        assert answer.token_ids == alone(failing).token_ids[: len(answer.token_ids)]
        assert len(answer.token_ids) >= tokens
        assert_undisturbed(way, others, kept)


@pytest.mark.parametrize("mode", ["in-step", "ahead"])
def test_lookup_in_an_answer_that_repeats_its_own_form(mode: str) -> None:
    """Drafts found in the text so far are legal often enough to be accepted, and never doubled."""
    specs = [_nested(number, seed=number) for number in range(3)]
    with opened(Way("device-ngram", 5, mode), specs) as bench:
        answers = run(bench, specs)
        drafted = sum(record.pool_tokens for record in bench.records)
    assert_undisturbed(Way(), specs, answers)
    assert drafted > 0


def test_a_choice_follows_the_grammar_for_itself() -> None:
    """C03: choices of one request stand at different places in the same grammar."""
    specs = [ask("json", choice_index=choice) for choice in range(3)]
    answers = serve(Way("device-ngram", 3, "ahead"), specs)
    assert_undisturbed(Way(), specs, answers)
    texts = [text_of(answer.token_ids) for answer in answers]
    assert len(set(texts)) > 1
    assert all(isinstance(json.loads(text), dict) for text in texts)


@pytest.mark.parametrize("way", [Way(), Way("always", 4), Way("device-ngram", 4, "ahead")])
def test_a_complete_answer_ends_before_its_least_length(way: Way) -> None:
    """docs/adr/0011: where a grammar allows nothing but the end, `min_tokens` gives way."""
    spec = ask("regex", grammar=Grammar(GrammarKind.REGEX, "yes|no"), min_tokens=10)
    (answer,) = serve(way, [spec])
    assert text_of(answer.token_ids) in ("yes", "no")
    assert isinstance(answer.end, Finish)
    assert answer.end.reason is FinishReason.STOP_TOKEN


def test_no_drafter_proposes_for_a_grammar_it_does_not_know() -> None:
    """Speculation may be off for a request: its grammar holds all the same."""
    spec = ask("regex")
    bench = Bench(device_drafter=DeviceNgramDrafter(K_MAX), eos_token_ids=END_IDS)
    assert_undisturbed(Way(), [spec], run(bench, [spec]))
