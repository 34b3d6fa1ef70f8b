"""Every option of a request on its way to the worker, and what comes back of it."""

import json
from typing import Any

import openai
import pytest

from tests.support import tiny_tokenizers as tiny
from tests.support.fake_worker import MAX_DRAFT_TOKENS, FakeWorker, Script, saying
from tests.support.router_stack import RunningRouter, Stack, running_router

pytestmark = pytest.mark.asyncio(loop_scope="module")
TEXT = "The capital of France is Paris 🎉, 東京."
IDS = tiny.encode(TEXT)
MESSAGES: Any = [{"role": "user", "content": "What is the capital of France?"}]


@pytest.fixture(autouse=True)
def _spoken(offering: Stack) -> None:
    offering.worker.script = saying(TEXT, 1, 3)


async def ask(router: RunningRouter, **options: Any) -> Any:
    return await router.client.chat.completions.create(model="tiny", messages=MESSAGES, **options)


async def complete(router: RunningRouter, **options: Any) -> Any:
    options = {"prompt": "The capital"} | options
    return await router.client.completions.create(model="tiny", **options)


async def test_all_sampling_options_reach_the_worker(offering: Stack) -> None:
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
    await ask(offering.router, logprobs=True, top_logprobs=5, **biases, extra_body=extra)
    (submit,) = offering.worker.submitted
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


async def test_logprobs_of_chats_follow_the_tokens(offering: Stack) -> None:
    """L4: one entry for each token counted, and the joined bytes are the text."""
    whole = await ask(offering.router, logprobs=True, top_logprobs=2)
    content = whole.choices[0].logprobs.content
    assert len(content) == whole.usage.completion_tokens == len(IDS)
    assert bytes(b for entry in content for b in entry.bytes).decode() == TEXT
    assert {len(entry.top_logprobs) for entry in content} == {2}
    assert content[0].top_logprobs[0].token == content[0].token
    assert any(entry.token.startswith("bytes:\\x") for entry in content), "parts of characters"
    stream = await ask(offering.router, logprobs=True, top_logprobs=2, stream=True)
    chunks = [choice async for chunk in stream for choice in chunk.choices]
    streamed = [entry for c in chunks if c.logprobs for entry in c.logprobs.content]
    assert streamed == content
    assert "".join(c.delta.content or "" for c in chunks) == TEXT


@pytest.mark.parametrize("options", [{"stop": "France"}, {"max_tokens": 4}, {}])
async def test_logprobs_are_cut_where_the_answer_is(offering: Stack, options: Any) -> None:
    answer = await ask(offering.router, logprobs=True, **options)
    content = answer.choices[0].logprobs.content
    assert len(content) == answer.usage.completion_tokens
    assert all(entry.top_logprobs == [] for entry in content)
    joined = bytes(b for entry in content for b in entry.bytes)
    assert joined.startswith(answer.choices[0].message.content.encode())


async def test_logprobs_of_completions(offering: Stack) -> None:
    answer = await complete(offering.router, logprobs=1)
    logprobs = answer.choices[0].logprobs
    assert len(logprobs.tokens) == len(IDS) == len(logprobs.text_offset)
    assert logprobs.token_logprobs == [-0.25] * len(IDS)
    assert logprobs.top_logprobs[0] == {logprobs.tokens[0]: -0.25}
    for token, offset in zip(logprobs.tokens, logprobs.text_offset, strict=True):
        assert token.startswith("bytes:") or TEXT[offset:].startswith(token)
    as_ids = await complete(
        offering.router, logprobs=0, extra_body={"return_tokens_as_token_ids": True}
    )
    assert as_ids.choices[0].logprobs.tokens == [f"token_id:{token_id}" for token_id in IDS]


async def test_echo_puts_the_prompt_before_the_answer(offering: Stack) -> None:
    prompts = ["ab", "c"]
    whole = await complete(offering.router, prompt=prompts, echo=True, n=2)
    texts = [choice.text for choice in whole.choices]
    assert texts == ["ab" + TEXT, "ab" + TEXT, "c" + TEXT, "c" + TEXT]
    stream = await complete(offering.router, prompt=prompts, echo=True, stream=True)
    parts = [choice async for chunk in stream for choice in chunk.choices]
    streamed = ["".join(p.text for p in parts if p.index == at) for at in range(2)]
    assert streamed == ["ab" + TEXT, "c" + TEXT]
    by_ids = await complete(offering.router, prompt=tiny.encode("ab"), echo=True)
    assert by_ids.choices[0].text == "ab" + TEXT
    with pytest.raises(openai.BadRequestError, match="echo together with logprobs"):
        await complete(offering.router, echo=True, logprobs=1)


async def test_token_ids_of_prompt_and_answer(offering: Stack) -> None:
    extra = {"return_token_ids": True}
    chat = await ask(offering.router, extra_body=extra)
    assert chat.prompt_token_ids == list(offering.worker.submitted[0].prompt_ids)
    assert chat.choices[0].token_ids == IDS
    stream = await ask(offering.router, extra_body=extra, stream=True)
    chunks = [chunk async for chunk in stream]
    assert chunks[0].prompt_token_ids == chat.prompt_token_ids
    assert [i for c in chunks for x in c.choices for i in getattr(x, "token_ids", [])] == IDS
    text = await complete(offering.router, prompt=["ab", "c"], extra_body=extra)
    assert [c.prompt_token_ids for c in text.choices] == [tiny.encode("ab"), tiny.encode("c")]


async def test_stop_strings_and_special_tokens_may_be_shown(offering: Stack) -> None:
    for name in ("include_stop_str_in_output", "no_stop_trim"):
        answer = await ask(offering.router, stop="France", extra_body={name: True})
        assert answer.choices[0].message.content == "The capital of France"
    offering.worker.script = Script([[*tiny.encode("a"), 1, *tiny.encode("b")]])
    assert (await ask(offering.router)).choices[0].message.content == "ab"
    shown = await ask(offering.router, extra_body={"skip_special_tokens": False}, logprobs=True)
    assert shown.choices[0].message.content == "a<|im_start|>b"
    assert bytes(shown.choices[0].logprobs.content[1].bytes) == b"<|im_start|>"
    hidden = (await ask(offering.router, logprobs=True)).choices[0].logprobs.content[1]
    assert (hidden.token, hidden.bytes) == ("<|im_start|>", [])


async def test_templates_get_what_the_request_gives_them(offering: Stack) -> None:
    await ask(offering.router, extra_body={"add_generation_prompt": False})
    final = [*MESSAGES, {"role": "assistant", "content": "The capital is "}]
    going_on = {"continue_final_message": True, "add_generation_prompt": False}
    await offering.router.client.chat.completions.create(
        model="tiny", messages=final, extra_body=going_on
    )
    closed, continued = offering.worker.texts()
    assert closed.endswith("France?<|im_end|>\n")
    assert continued.endswith("<|im_start|>assistant\nThe capital is")
    with pytest.raises(openai.BadRequestError, match="exclude each other"):
        await ask(offering.router, extra_body=going_on | {"add_generation_prompt": True})
    with pytest.raises(openai.BadRequestError, match="may not set 'messages'"):
        await ask(offering.router, extra_body={"chat_template_kwargs": {"messages": []}})


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


async def test_prompts_are_cut_from_the_left(offering: Stack) -> None:
    long = "ab " * 4000
    with pytest.raises(openai.BadRequestError, match="context"):
        await complete(offering.router, prompt=long)
    await complete(offering.router, prompt=long, extra_body={"truncate_prompt_tokens": 5})
    await complete(
        offering.router, prompt=long, max_tokens=12, extra_body={"truncate_prompt_tokens": -1}
    )
    five, fitting = offering.worker.submitted
    assert list(five.prompt_ids) == tiny.encode(long)[-5:]
    assert len(fitting.prompt_ids) == offering.worker.context_tokens - 12


async def test_chunks_hold_as_many_tokens_as_asked(offering: Stack) -> None:
    offering.worker.script = saying(TEXT, 1, gap_s=0.006)
    extra = {"stream_interval": 5, "return_token_ids": True}
    stream = await ask(offering.router, stream=True, extra_body=extra)
    choices = [choice async for chunk in stream for choice in chunk.choices]
    sizes = [len(c.token_ids) for c in choices if hasattr(c, "token_ids")]
    assert sizes[0] == 1, "the first at once"
    assert min(sizes[1:-1], default=5) >= 5
    assert sum(sizes) == len(IDS)
    assert "".join(c.delta.content or "" for c in choices) == TEXT


REPORT = {"x-speculation-report": "detailed"}


async def test_speculation_report(offering: Stack) -> None:
    """vLLM's shape; a round without drafts is no step."""
    rounds = [IDS[:1], IDS[1:4], IDS[4:5], IDS[5:7], IDS[7:]]
    offering.worker.script = Script(rounds, verified=[0, 4, 0, 4, max(len(IDS) - 8, 1)])
    answer = await ask(offering.router, extra_headers=REPORT)
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
    stream = await ask(offering.router, stream=True, stream_options=usage, extra_headers=REPORT)
    *chunks, closing = [chunk async for chunk in stream]
    assert closing.metrics["speculative_decoding"] == told
    assert all(not hasattr(chunk, "metrics") for chunk in chunks)


async def test_report_is_opt_in_and_of_single_choices(offering: Stack) -> None:
    assert not hasattr(await ask(offering.router), "metrics")
    two = await ask(offering.router, n=2, extra_headers={"x-speculation-report": "summary"})
    assert two.metrics["speculative_decoding"] is None
    one = await ask(offering.router, extra_headers={"x-speculation-report": "summary"})
    told = one.metrics["speculative_decoding"]
    assert (told["num_spec_steps"], told["mean_acceptance_length"]) == (0, None)
    assert "per_step_accepted" not in told
    with pytest.raises(openai.BadRequestError, match="must be one of none, summary, detailed"):
        await ask(offering.router, extra_headers={"x-speculation-report": "all"})


async def test_the_synchronous_client_sees_the_same(offering: Stack) -> None:
    """Strict parsing: every answer must be what the client library's models say."""
    import asyncio

    def talk() -> tuple[str, str, str, str]:
        url = f"{offering.router.url}/v1"
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
