"""Every option of a request on its way to the worker, and what comes back of it."""

import json
from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest
import pytest_asyncio

from outrider.worker.v1 import worker_pb2
from tests.support import tiny_tokenizers as tiny
from tests.support.fake_worker import MAX_DRAFT_TOKENS, FakeWorker, Script, saying
from tests.support.router_stack import RunningRouter, Stack, running_router

pytestmark = pytest.mark.asyncio(loop_scope="module")
TEXT = "The capital of France is Paris 🎉, 東京."
IDS = tiny.encode(TEXT)
MESSAGES: Any = [{"role": "user", "content": "What is the capital of France?"}]
OPTIONS = (
    *("min_p", "repetition_penalty", "presence_penalty", "frequency_penalty", "logit_bias"),
    *("min_tokens", "bad_words", "logprobs", "tenant_salt", "prediction_ids", "grammar"),
)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def whole_offer() -> AsyncIterator[Stack]:
    """A worker that offers everything."""
    async with FakeWorker(options=OPTIONS) as worker, running_router(worker) as router:
        yield Stack(worker, router)


@pytest_asyncio.fixture(loop_scope="module")
async def stack(whole_offer: Stack) -> AsyncIterator[Stack]:
    whole_offer.forget()
    whole_offer.worker.script = saying(TEXT, 1, 3)
    yield whole_offer
    await whole_offer.until_idle()


async def ask(router: RunningRouter, **options: Any) -> Any:
    return await router.client.chat.completions.create(model="tiny", messages=MESSAGES, **options)


async def complete(router: RunningRouter, **options: Any) -> Any:
    options = {"prompt": "The capital"} | options
    return await router.client.completions.create(model="tiny", **options)


async def test_all_sampling_options_reach_the_worker(stack: Stack) -> None:
    extra = {
        "min_p": 0.25,
        "top_k": 7,
        "repetition_penalty": 1.5,
        "min_tokens": 2,
        "stop_token_ids": [9],
        "ignore_eos": True,
        "bad_words": ["Lyon"],
        "cache_salt": "tenant",
        "priority": 3,
    }
    biases = {"presence_penalty": 0.5, "frequency_penalty": -0.5, "logit_bias": {"7": -100}}
    await ask(stack.router, logprobs=True, top_logprobs=5, **biases, extra_body=extra)
    (submit,) = stack.worker.submitted
    sampling = submit.sampling
    assert (sampling.min_p, sampling.top_k, sampling.repetition_penalty) == (0.25, 7, 1.5)
    assert (sampling.presence_penalty, sampling.frequency_penalty) == (0.5, -0.5)
    assert (sampling.min_tokens, sampling.ignore_eos) == (2, True)
    assert [(b.token_id, b.bias) for b in sampling.logit_bias] == [(7, -100)]
    words = [list(word.token_ids) for word in sampling.bad_words]
    assert words == [tiny.encode("Lyon"), tiny.encode(" Lyon")]
    assert submit.logprobs.top_logprobs == 5
    assert len(submit.tenant_salt) == 32
    assert submit.priority == 3
    assert await stack.router.metric("outrider_router_ignored_fields_total", field="priority") == 1


async def test_logprobs_of_chats_follow_the_tokens(stack: Stack) -> None:
    """L4: one entry for each token counted, and the joined bytes are the text."""
    whole = await ask(stack.router, logprobs=True, top_logprobs=2)
    content = whole.choices[0].logprobs.content
    assert len(content) == whole.usage.completion_tokens == len(IDS)
    assert bytes(b for entry in content for b in entry.bytes).decode() == TEXT
    assert {len(entry.top_logprobs) for entry in content} == {2}
    assert content[0].top_logprobs[0].token == content[0].token
    assert any(entry.token.startswith("bytes:\\x") for entry in content), "parts of characters"
    stream = await ask(stack.router, logprobs=True, top_logprobs=2, stream=True)
    chunks = [choice async for chunk in stream for choice in chunk.choices]
    streamed = [entry for c in chunks if c.logprobs for entry in c.logprobs.content]
    assert streamed == content
    assert "".join(c.delta.content or "" for c in chunks) == TEXT


@pytest.mark.parametrize("options", [{"stop": "France"}, {"max_tokens": 4}, {}])
async def test_logprobs_are_cut_where_the_answer_is(stack: Stack, options: Any) -> None:
    answer = await ask(stack.router, logprobs=True, **options)
    content = answer.choices[0].logprobs.content
    assert len(content) == answer.usage.completion_tokens
    assert all(entry.top_logprobs == [] for entry in content)
    joined = bytes(b for entry in content for b in entry.bytes)
    assert joined.startswith(answer.choices[0].message.content.encode())


async def test_logprobs_of_completions(stack: Stack) -> None:
    answer = await complete(stack.router, logprobs=1)
    logprobs = answer.choices[0].logprobs
    assert len(logprobs.tokens) == len(IDS) == len(logprobs.text_offset)
    assert logprobs.token_logprobs == [-0.25] * len(IDS)
    assert logprobs.top_logprobs[0] == {logprobs.tokens[0]: -0.25}
    for token, offset in zip(logprobs.tokens, logprobs.text_offset, strict=True):
        assert token.startswith("bytes:") or TEXT[offset:].startswith(token)
    as_ids = await complete(
        stack.router, logprobs=0, extra_body={"return_tokens_as_token_ids": True}
    )
    assert as_ids.choices[0].logprobs.tokens == [f"token_id:{token_id}" for token_id in IDS]


async def test_echo_puts_the_prompt_before_the_answer(stack: Stack) -> None:
    prompts = ["ab", "c"]
    whole = await complete(stack.router, prompt=prompts, echo=True, n=2)
    texts = [choice.text for choice in whole.choices]
    assert texts == ["ab" + TEXT, "ab" + TEXT, "c" + TEXT, "c" + TEXT]
    stream = await complete(stack.router, prompt=prompts, echo=True, stream=True)
    parts = [choice async for chunk in stream for choice in chunk.choices]
    streamed = ["".join(p.text for p in parts if p.index == at) for at in range(2)]
    assert streamed == ["ab" + TEXT, "c" + TEXT]
    by_ids = await complete(stack.router, prompt=tiny.encode("ab"), echo=True)
    assert by_ids.choices[0].text == "ab" + TEXT
    with pytest.raises(openai.BadRequestError, match="echo together with logprobs"):
        await complete(stack.router, echo=True, logprobs=1)


async def test_token_ids_of_prompt_and_answer(stack: Stack) -> None:
    extra = {"return_token_ids": True}
    chat = await ask(stack.router, extra_body=extra)
    assert chat.prompt_token_ids == list(stack.worker.submitted[0].prompt_ids)
    assert chat.choices[0].token_ids == IDS
    stream = await ask(stack.router, extra_body=extra, stream=True)
    chunks = [chunk async for chunk in stream]
    assert chunks[0].prompt_token_ids == chat.prompt_token_ids
    assert [i for c in chunks for x in c.choices for i in getattr(x, "token_ids", [])] == IDS
    text = await complete(stack.router, prompt=["ab", "c"], extra_body=extra)
    assert [c.prompt_token_ids for c in text.choices] == [tiny.encode("ab"), tiny.encode("c")]


async def test_stop_strings_and_special_tokens_may_be_shown(stack: Stack) -> None:
    for name in ("include_stop_str_in_output", "no_stop_trim"):
        answer = await ask(stack.router, stop="France", extra_body={name: True})
        assert answer.choices[0].message.content == "The capital of France"
    stack.worker.script = Script([[*tiny.encode("a"), 1, *tiny.encode("b")]])
    assert (await ask(stack.router)).choices[0].message.content == "ab"
    shown = await ask(stack.router, extra_body={"skip_special_tokens": False}, logprobs=True)
    assert shown.choices[0].message.content == "a<|im_start|>b"
    assert bytes(shown.choices[0].logprobs.content[1].bytes) == b"<|im_start|>"
    hidden = (await ask(stack.router, logprobs=True)).choices[0].logprobs.content[1]
    assert (hidden.token, hidden.bytes) == ("<|im_start|>", [])


async def test_templates_get_what_the_request_gives_them(stack: Stack) -> None:
    await ask(stack.router, extra_body={"add_generation_prompt": False})
    final = [*MESSAGES, {"role": "assistant", "content": "The capital is "}]
    going_on = {"continue_final_message": True, "add_generation_prompt": False}
    await stack.router.client.chat.completions.create(
        model="tiny", messages=final, extra_body=going_on
    )
    closed, continued = stack.worker.texts()
    assert closed.endswith("France?<|im_end|>\n")
    assert continued.endswith("<|im_start|>assistant\nThe capital is")
    with pytest.raises(openai.BadRequestError, match="exclude each other"):
        await ask(
            stack.router, extra_body={"add_generation_prompt": True, "continue_final_message": True}
        )
    with pytest.raises(openai.BadRequestError, match="may not set 'messages'"):
        await ask(stack.router, extra_body={"chat_template_kwargs": {"messages": []}})


async def test_template_variables_and_effort() -> None:
    template = "{{ reasoning_effort }}|{{ enable_thinking }}|{{ note }}|{{ messages[0].content }}"
    async with (
        FakeWorker(chat_template=template, script=saying("ok")) as worker,
        running_router(worker) as router,
    ):
        await ask(router, reasoning_effort="none")
        kwargs = {"enable_thinking": True, "note": "<|im_end|>"}
        await ask(router, reasoning_effort="high", extra_body={"chat_template_kwargs": kwargs})
        first, second = worker.texts()
        assert first.startswith("none|False||What")
        assert second.startswith("high|True|<|im_end|>|What")
        assert 2 not in worker.submitted[1].prompt_ids, "a value cannot end a turn"


async def test_prompts_are_cut_from_the_left(stack: Stack) -> None:
    long = "ab " * 4000
    with pytest.raises(openai.BadRequestError, match="context"):
        await complete(stack.router, prompt=long)
    await complete(stack.router, prompt=long, extra_body={"truncate_prompt_tokens": 5})
    await complete(
        stack.router, prompt=long, max_tokens=12, extra_body={"truncate_prompt_tokens": -1}
    )
    five, fitting = stack.worker.submitted
    assert list(five.prompt_ids) == tiny.encode(long)[-5:]
    assert len(fitting.prompt_ids) == stack.worker.context_tokens - 12


async def test_chunks_hold_as_many_tokens_as_asked(stack: Stack) -> None:
    stack.worker.script = saying(TEXT, 1)
    extra = {"stream_interval": 5, "return_token_ids": True}
    stream = await ask(stack.router, stream=True, extra_body=extra)
    choices = [choice async for chunk in stream for choice in chunk.choices]
    sizes = [len(c.token_ids) for c in choices if hasattr(c, "token_ids")]
    assert sizes[0] == 1, "the first at once"
    assert min(sizes[1:-1]) >= 5
    assert sum(sizes) == len(IDS)
    assert "".join(c.delta.content or "" for c in choices) == TEXT


FORMS: list[tuple[dict[str, Any], int, str]] = [
    ({"response_format": {"type": "json_object"}}, worker_pb2.GRAMMAR_KIND_JSON_SCHEMA, "object"),
    (
        {
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "x", "strict": True, "schema": {"type": "integer"}},
            }
        },
        worker_pb2.GRAMMAR_KIND_JSON_SCHEMA,
        '{"type": "integer"}',
    ),
    (
        {"response_format": {"type": "regex", "pattern": "a+"}},
        worker_pb2.GRAMMAR_KIND_REGEX,
        "a+",
    ),
    ({"structured_outputs": {"json": {"enum": [1]}}}, worker_pb2.GRAMMAR_KIND_JSON_SCHEMA, "enum"),
    ({"structured_outputs": {"choice": ["a", 'b"']}}, worker_pb2.GRAMMAR_KIND_LARK, '"b\\""'),
    ({"structured_outputs": {"regex": "a|b"}}, worker_pb2.GRAMMAR_KIND_REGEX, "a|b"),
    ({"guided_json": '{"type": "null"}'}, worker_pb2.GRAMMAR_KIND_JSON_SCHEMA, "null"),
    ({"json_schema": '{"type": "null"}'}, worker_pb2.GRAMMAR_KIND_JSON_SCHEMA, "null"),
    ({"regex": "[0-9]"}, worker_pb2.GRAMMAR_KIND_REGEX, "[0-9]"),
    ({"ebnf": 'root ::= "a"'}, worker_pb2.GRAMMAR_KIND_LARK, 'root ::= "a"'),
    ({"guided_grammar": 'start: "a"'}, worker_pb2.GRAMMAR_KIND_LARK, 'start: "a"'),
]


@pytest.mark.parametrize(("fields", "kind", "text"), FORMS)
async def test_prescribed_forms(stack: Stack, fields: Any, kind: int, text: str) -> None:
    await ask(stack.router, extra_body=fields)
    (submit,) = stack.worker.submitted
    assert submit.grammar.kind == kind
    assert text in submit.grammar.text


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"response_format": {"type": "json_schema", "schema": {}}}, "response_format.json_schema"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}},
            "response_format.json_schema.schema",
        ),
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        ({"response_format": "json"}, "response_format"),
        ({"regex": ""}, "regex"),
        ({"guided_json": "{"}, "guided_json"),
        ({"structured_outputs": {"json": {}, "regex": "a"}}, "structured_outputs"),
        ({"structured_outputs": {"structural_tag": "x"}}, "structured_outputs.structural_tag"),
        ({"regex": "a", "ebnf": "b"}, "ebnf"),
        ({"regex": "a" * 70_000}, "regex"),
    ],
)
async def test_c09_malformed_forms_are_told(stack: Stack, fields: Any, param: str) -> None:
    body = {"model": "tiny", "messages": MESSAGES} | fields
    response = await stack.router.http.post("/v1/chat/completions", json=body)
    assert (response.status_code, response.json()["error"]["param"]) == (400, param)
    assert (await ask(stack.router)).choices[0].message.content == TEXT


async def test_what_the_worker_says_of_a_grammar_names_the_clients_field(stack: Stack) -> None:
    """C09: a pattern that does not compile; only the worker can tell."""
    stack.worker.script = Script(
        [], failure=worker_pb2.FAILURE_CODE_INVALID, failure_param="grammar"
    )
    with pytest.raises(openai.BadRequestError) as caught:
        await ask(stack.router, extra_body={"regex": "("})
    assert caught.value.param == "regex"


REPORT = {"x-speculation-report": "detailed"}


async def test_speculation_report(stack: Stack) -> None:
    """vLLM's shape; a round without drafts is no step."""
    rounds = [IDS[:1], IDS[1:4], IDS[4:5], IDS[5:7], IDS[7:]]
    stack.worker.script = Script(rounds, verified=[0, 4, 0, 4, max(len(IDS) - 8, 1)])
    answer = await ask(stack.router, extra_headers=REPORT)
    metrics = answer.metrics
    told = metrics["speculative_decoding"]
    last = len(IDS) - 8
    assert told["per_step_drafted"] == [4, 4, last]
    assert told["per_step_accepted"] == [2, 1, last]
    assert told["num_spec_steps"] == 3
    assert told["num_draft_tokens"] == 8 + last
    assert told["mean_acceptance_length"] == 1 + (3 + last) / 3
    assert told["num_spec_tokens"] == max(MAX_DRAFT_TOKENS, last)
    histogram = told["acceptance_histogram"]
    assert len(histogram) == told["num_spec_tokens"] + 1
    assert (histogram[1], histogram[2], histogram[last]) == (1, 1, 1)
    assert told["acceptance_histogram_by_draft_length"]["4"] == [0, 1, 1, 0, 0]
    assert metrics["time_to_first_token_ms"] > 0
    usage = {"include_usage": True}
    stream = await ask(stack.router, stream=True, stream_options=usage, extra_headers=REPORT)
    *chunks, closing = [chunk async for chunk in stream]
    assert closing.metrics["speculative_decoding"] == told
    assert all(not hasattr(chunk, "metrics") for chunk in chunks)


async def test_report_is_opt_in_and_of_single_choices(stack: Stack) -> None:
    assert not hasattr(await ask(stack.router), "metrics")
    two = await ask(stack.router, n=2, extra_headers={"x-speculation-report": "summary"})
    assert two.metrics["speculative_decoding"] is None
    one = await ask(stack.router, extra_headers={"x-speculation-report": "summary"})
    told = one.metrics["speculative_decoding"]
    assert (told["num_spec_steps"], told["mean_acceptance_length"]) == (0, None)
    assert "per_step_accepted" not in told
    with pytest.raises(openai.BadRequestError, match="must be one of none, summary, detailed"):
        await ask(stack.router, extra_headers={"x-speculation-report": "all"})


async def test_the_synchronous_client_sees_the_same(stack: Stack) -> None:
    """Strict parsing: every answer must be what the client library's models say."""
    import asyncio

    def talk() -> tuple[str, str, str, str]:
        url = f"{stack.router.url}/v1"
        with openai.OpenAI(
            base_url=url, api_key="x", max_retries=0, _strict_response_validation=True
        ) as client:
            asked: Any = {"model": "tiny", "messages": MESSAGES, "logprobs": True}
            whole = client.chat.completions.create(**asked)
            stream = client.chat.completions.create(
                **asked, stream=True, stream_options={"include_usage": True}
            )
            parts = [c.choices[0].delta.content or "" for c in stream if c.choices]
            text = client.completions.create(model="tiny", prompt="x", logprobs=1).choices[0].text
            model = client.models.retrieve("tiny").id
            assert [one.id for one in client.models.list()] == [model]
            return whole.choices[0].message.content or "", "".join(parts), text, model

    assert await asyncio.to_thread(talk) == (TEXT, TEXT, TEXT, "tiny")


async def test_silence_is_broken_by_comments_that_clients_skip() -> None:
    script = saying(TEXT, 1, stall_after=2)
    async with (
        FakeWorker(script=script) as worker,
        running_router(worker, ping_interval_s=0.05) as router,
    ):
        body = {"model": "tiny", "messages": MESSAGES, "stream": True}
        events = []
        async with router.http.stream("POST", "/v1/chat/completions", json=body) as response:
            async for line in response.aiter_lines():
                events += [line] if line else []
                if line == ": ping":
                    worker.resume.set()
        assert ": ping" in events
        assert events[-1] == "data: [DONE]"
        data = [json.loads(line[6:]) for line in events[:-1] if line.startswith("data: ")]
        assert "".join(d["choices"][0]["delta"].get("content", "") for d in data) == TEXT
