"""Wire to engine: every option arrives, every bound is kept, every refusal has a name."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from outrider.worker.v1 import worker_pb2 as wire
from outrider_worker.engine.types import (
    FailureCode,
    Finish,
    FinishReason,
    Grammar,
    GrammarKind,
    RequestKey,
    RequestRefused,
    RequestSpec,
    SamplingParams,
    SpeculationLimits,
    SpeculationTotals,
    TokenLogprobs,
    TokenNews,
)
from outrider_worker.rpc.convert import news_to_wire, spec_from_wire

V = 100
LOW = float.fromhex("0x1.0p-149")
NAN, INFINITY = float("nan"), float("inf")


def submit(sampling: Mapping[str, Any] | None = None, **fields: Any) -> wire.Submit:
    options = {"max_tokens": 8} | dict(sampling or {})
    return wire.Submit(**{"request_id": "r", "prompt_ids": [1], "sampling": options} | fields)


def converted(message: wire.Submit) -> RequestSpec:
    return spec_from_wire("router", message, V, ["ngram"], now_s=10.0)


def refusal(message: wire.Submit) -> tuple[FailureCode, str]:
    with pytest.raises(RequestRefused) as refused:
        converted(message)
    failure = refused.value.failure
    assert failure.message
    return failure.code, failure.param


def test_every_option_arrives() -> None:
    sampling = {
        "temperature": 0.5,
        "top_p": 0.25,
        "top_k": 40,
        "min_p": 0.125,
        "repetition_penalty": 1.5,
        "presence_penalty": -2.0,
        "frequency_penalty": 2.0,
        "logit_bias": [{"token_id": 99, "bias": -100.0}, {"token_id": 0, "bias": 1.0}],
        "min_tokens": 8,
        "max_tokens": 8,
        "stop_token_ids": [5, 5, 6],
        "ignore_eos": True,
        "bad_words": [{"token_ids": [1, 2]}, {"token_ids": [3]}],
    }
    spec = converted(
        submit(
            sampling,
            seed=(1 << 64) - 1,
            resumed_ids=[4],
            tenant_salt=b"s" * 64,
            class_label="ü" * 64,
            grammar={"kind": wire.GRAMMAR_KIND_REGEX, "text": "a+"},
            logprobs={"top_logprobs": 20},
            deadline_ms=500,
            prediction_ids=[9, 8],
            speculation={"max_draft_tokens": 0, "drafter": "ngram", "relaxed": True},
        )
    )
    assert spec.sampling == SamplingParams(
        temperature=0.5,
        top_p=0.25,
        top_k=40,
        min_p=0.125,
        repetition_penalty=1.5,
        presence_penalty=-2.0,
        frequency_penalty=2.0,
        logit_bias=((99, -100.0), (0, 1.0)),
        bad_words=((1, 2), (3,)),
        seed=(1 << 64) - 1,
        min_tokens=8,
        max_tokens=8,
        stop_token_ids=frozenset({5, 6}),
        ignore_eos=True,
        top_logprobs=20,
        relaxed=True,
    )
    assert spec.resumed_ids == (4,)
    assert spec.tenant_salt == b"s" * 64
    assert spec.class_label == "ü" * 64
    assert spec.grammar == Grammar(GrammarKind.REGEX, "a+")
    assert spec.deadline_s == 10.5
    assert spec.prediction_ids == (9, 8)
    assert spec.speculation == SpeculationLimits(None, 0, "ngram")


def test_what_is_not_set_is_off() -> None:
    spec = converted(submit())
    assert spec.sampling == SamplingParams(max_tokens=8)
    assert spec.grammar is None
    assert spec.tenant_salt == b""
    assert spec.prediction_ids == ()


def test_logprobs_of_the_token_alone_are_not_the_same_as_none() -> None:
    assert converted(submit(logprobs={})).sampling.top_logprobs == 0


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("temperature", [-0.1, 101.0, NAN, INFINITY]),
        ("top_p", [-0.1, 1.1, NAN]),
        ("min_p", [-0.1, 1.1, NAN]),
        ("repetition_penalty", [-1.0, LOW, 101.0, NAN, INFINITY]),
        ("presence_penalty", [-2.1, 2.1, NAN, INFINITY]),
        ("frequency_penalty", [-2.1, 2.1, NAN, -INFINITY]),
        ("min_tokens", [9]),
        ("max_tokens", [0]),
        ("stop_token_ids", [[V], [1] * 1025]),
        ("logit_bias", [[{"token_id": V}], [{"token_id": 1}] * 1025]),
        ("logit_bias", [[{"bias": bias}] for bias in (100.1, -100.1, NAN, INFINITY)]),
        ("bad_words", [[{}], [{"token_ids": [1, V]}], [{"token_ids": [1] * 33}]]),
        ("bad_words", [[{"token_ids": [1]}] * 129]),
    ],
)
def test_options_out_of_bounds_are_refused_by_name(name: str, values: list[Any]) -> None:
    for value in values:
        assert refusal(submit({name: value})) == (FailureCode.INVALID, name), value


@pytest.mark.parametrize(
    "sampling",
    [
        {"temperature": 100.0, "min_p": 1.0, "top_p": 1.0, "repetition_penalty": 100.0},
        {"temperature": LOW, "top_p": LOW, "min_p": LOW, "repetition_penalty": 0.0101},
        {"logit_bias": [{"token_id": token % V} for token in range(1024)]},
        {"bad_words": [{"token_ids": [V - 1] * 32}] * 128, "stop_token_ids": [V - 1] * 1024},
    ],
)
def test_values_at_their_bounds_are_taken(sampling: Mapping[str, Any]) -> None:
    assert converted(submit(sampling)).sampling.max_tokens == 8


FIELDS: list[tuple[Mapping[str, Any], FailureCode, str]] = [
    ({"request_id": ""}, FailureCode.INVALID, "request_id"),
    ({"request_id": "r" * 257}, FailureCode.INVALID, "request_id"),
    ({"class_label": "ü" * 65}, FailureCode.INVALID, "class_label"),
    ({"prompt_ids": []}, FailureCode.INVALID, "prompt_ids"),
    ({"prompt_ids": [V]}, FailureCode.INVALID, "prompt_ids"),
    ({"resumed_ids": [V]}, FailureCode.INVALID, "resumed_ids"),
    ({"resumed_ids": [1] * 8}, FailureCode.INVALID, "max_tokens"),
    ({"tenant_salt": b"s" * 65}, FailureCode.INVALID, "tenant_salt"),
    ({"logprobs": {"top_logprobs": 21}}, FailureCode.INVALID, "top_logprobs"),
    ({"grammar": {"text": "a"}}, FailureCode.INVALID, "grammar"),
    ({"grammar": {"kind": wire.GRAMMAR_KIND_LARK}}, FailureCode.INVALID, "grammar"),
    ({"speculation": {"drafter": "eagle"}}, FailureCode.INVALID, "speculation.drafter"),
    ({"adapter": "lora"}, FailureCode.UNSUPPORTED, "adapter"),
    ({"prediction_ids": [V]}, FailureCode.INVALID, "prediction_ids"),
    ({"prediction_ids": [1] * (2**17 + 1)}, FailureCode.INVALID, "prediction_ids"),
]


@pytest.mark.parametrize(("fields", "code", "param"), FIELDS)
def test_fields_that_cannot_be_honoured_are_refused_by_name(
    fields: Mapping[str, Any], code: FailureCode, param: str
) -> None:
    assert refusal(submit(**fields)) == (code, param)


@pytest.mark.parametrize(
    ("loaded", "asked", "words"),
    [
        (
            ["ngram", "predicted"],
            "eagle",
            "not loaded: those loaded are ngram, predicted",
        ),
        ([], "ngram", "'ngram' is not loaded: none is loaded"),
        (["predicted"], "predicted", "drafts the prediction of a request, and this one has none"),
    ],
)
def test_a_drafter_that_cannot_draft_is_refused_with_what_can(
    loaded: list[str], asked: str, words: str
) -> None:
    with pytest.raises(RequestRefused) as refused:
        spec_from_wire("router", submit(speculation={"drafter": asked}), V, loaded, now_s=10.0)
    assert words in refused.value.failure.message


def test_the_predicted_drafter_is_taken_with_a_prediction() -> None:
    message = submit(speculation={"drafter": "predicted"}, prediction_ids=[9])
    spec = spec_from_wire("router", message, V, ["predicted"], now_s=10.0)
    assert spec.speculation.drafter == "predicted"


def test_news_carry_logprobs_and_cached_tokens() -> None:
    news = TokenNews(
        RequestKey("router", "r", 2),
        (7, 8),
        accepted_tokens=1,
        end=Finish(FinishReason.LENGTH),
        logprobs=(TokenLogprobs(-0.5, (7, 9), (-0.5, -1.5)), TokenLogprobs(-2.0)),
        cached_prompt_tokens=32,
        verified_tokens=4,
    )
    message = news_to_wire(replace(news, accepted_tokens=1, relaxed_tokens=1), drafter_index=1)
    assert (message.accepted_tokens, message.relaxed_tokens) == (1, 1)
    first, second = message.logprobs
    assert (first.logprob, list(first.top_ids), list(first.top_logprobs)) == (
        -0.5,
        [7, 9],
        [-0.5, -1.5],
    )
    assert (second.logprob, list(second.top_ids)) == (-2.0, [])
    assert (message.cached_prompt_tokens, message.verified_tokens) == (32, 4)
    assert message.finish.reason == wire.FINISH_REASON_LENGTH
    plain = news_to_wire(TokenNews(news.key, (7,)), drafter_index=0)
    assert (len(plain.logprobs), plain.cached_prompt_tokens) == (0, 0)


def test_totals_tell_prediction_tokens_apart() -> None:
    totals = SpeculationTotals()
    totals.add(drafted=6, verified=5, accepted=3, predicted=True)
    totals.add(drafted=4, verified=4, accepted=1)
    news = TokenNews(RequestKey("router", "r"), (7,), totals=totals)
    sent = news_to_wire(news, drafter_index=0).totals
    assert (sent.drafted_tokens, sent.verified_tokens, sent.accepted_tokens) == (10, 9, 4)
    assert (sent.accepted_prediction_tokens, sent.rejected_prediction_tokens) == (3, 2)
    assert totals.copy() == totals
    assert totals.copy().acceptance_histogram is not totals.acceptance_histogram
