"""Three real processes, the real demo model, the official client."""

import asyncio
import json
import urllib.request
from typing import Any

import pytest

from tests.support.chat import MODEL, QUESTION, QUESTIONS, ask, client, stream, stream_all
from tests.support.processes import Stack

pytestmark = pytest.mark.e2e
SPECULATION_OFF = {"extra_body": {"speculation": {"enabled": False}}}


async def test_the_capital_of_france(demo_stack: Stack) -> None:
    async with client(demo_stack) as openai:
        assert [model.id for model in (await openai.models.list()).data] == [MODEL]
        whole = await ask(openai, QUESTION)
        assert "Paris" in whole
        assert await stream(openai, QUESTION) == whole


async def test_sixteen_at_once_equal_each_alone(demo_stack: Stack) -> None:
    """Greedy texts do not depend on company, and not on speculation either."""
    async with client(demo_stack) as openai:
        together = await stream_all(openai, QUESTIONS, max_tokens=12)
        for question, text in zip(QUESTIONS, together, strict=True):
            assert await ask(openai, question, 12) == text
    assert len(set(together)) == len(QUESTIONS)


async def test_seeded_sampling_alone_under_load_and_without_speculation(demo_stack: Stack) -> None:
    seeded = {"temperature": 0.9, "top_p": 0.95, "seed": 1234}
    async with client(demo_stack) as openai:
        alone = await stream(openai, QUESTIONS[9], 20, **seeded)
        loaded, *_ = await asyncio.gather(
            stream(openai, QUESTIONS[9], 20, **seeded),
            *(stream(openai, question, 20, temperature=1.1) for question in QUESTIONS[:5]),
        )
        off = await ask(openai, QUESTIONS[9], 20, **seeded, **SPECULATION_OFF)
        other = await ask(openai, QUESTIONS[9], 20, **{**seeded, "seed": 99})
    assert loaded == alone
    assert off == alone
    assert other != alone


async def test_a_prescribed_form_with_logprobs_and_a_report(demo_stack: Stack) -> None:
    """C01 on a real model: JSON of the schema, the same with and without speculation."""
    schema = {
        "type": "object",
        "properties": {"city": {"enum": ["Paris", "Rome"]}, "known": {"type": ["null", "boolean"]}},
        "required": ["city", "known"],
        "additionalProperties": False,
    }
    asked: dict[str, Any] = {
        "model": MODEL,
        "messages": [{"role": "user", "content": QUESTION}],
        "max_tokens": 40,
        "temperature": 0,
        "logprobs": True,
        "top_logprobs": 3,
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "answer", "strict": True, "schema": schema},
        },
        "extra_headers": {"x-speculation-report": "detailed"},
    }
    async with client(demo_stack) as openai:
        create: Any = openai.chat.completions.create
        answer, off = await create(**asked), await create(**asked, **SPECULATION_OFF)
    (choice,) = answer.choices
    assert json.loads(choice.message.content or "")["city"] in ("Paris", "Rome")
    assert choice.message.content == off.choices[0].message.content
    entries = choice.logprobs.content
    assert bytes(b for entry in entries for b in entry.bytes).decode() == choice.message.content
    assert all(len(entry.top_logprobs) == 3 for entry in entries)
    told = answer.metrics["speculative_decoding"]
    assert sum(told["acceptance_histogram"]) == told["num_spec_steps"]
    assert off.metrics["speculative_decoding"]["num_spec_steps"] == 0


async def test_a_live_planner_is_in_the_loop(demo_stack: Stack) -> None:
    """Statistics of what was served, and a plan with a version and a reason, are on show."""
    async with client(demo_stack) as openai:
        await ask(openai, QUESTIONS[10], 24)
    url = f"http://127.0.0.1:{demo_stack.planner_http_port}/v1/deployments"

    def shown() -> str:
        with urllib.request.urlopen(url, timeout=5) as response:
            return str(response.read().decode())

    async with asyncio.timeout(10):
        while '"asked"' not in (text := await asyncio.to_thread(shown)):
            await asyncio.sleep(0.2)
    told = json.loads(text)
    assert "two_stage" in text
    assert '"reason"' in text
    assert told


async def test_a_prediction_changes_the_counts_and_not_the_text(demo_stack: Stack) -> None:
    """The answer as it will be but for its fifth word, through the official client."""
    request: dict[str, Any] = {
        "model": MODEL,
        "messages": [{"role": "user", "content": QUESTIONS[3]}],
        "max_tokens": 32,
        "temperature": 0,
    }
    async with client(demo_stack) as openai:
        create: Any = openai.chat.completions.create
        plain = await create(**request, **SPECULATION_OFF)
        words = plain.choices[0].message.content.split(" ")
        content = " ".join([*words[:4], "otherwise", *words[5:]])
        for _ in range(3):  # plans draft a new kind of drafts now and then at first
            predicted = await create(**request, prediction={"type": "content", "content": content})
            assert predicted.choices[0].message.content == plain.choices[0].message.content
            details = predicted.usage.completion_tokens_details
            if details.accepted_prediction_tokens:
                break
    assert 0 < details.accepted_prediction_tokens < predicted.usage.completion_tokens
    assert plain.usage.completion_tokens_details.accepted_prediction_tokens == 0
