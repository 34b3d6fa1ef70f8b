"""The client of benchmarks: what it asks, and what it makes of a stream."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any
from unittest.mock import AsyncMock, MagicMock

import pytest
from openai.types import CompletionUsage
from openai.types.chat import ChatCompletionChunk

from benchmarks.asker import OFF, PLANNED, Answer, Asker, tokens_per_s

USAGE = CompletionUsage.model_validate(
    {
        "prompt_tokens": 3,
        "completion_tokens": 5,
        "total_tokens": 8,
        "completion_tokens_details": {
            "accepted_prediction_tokens": 2,
            "rejected_prediction_tokens": 1,
        },
    }
)


def _chunk(text: str = "", usage: CompletionUsage | None = None) -> ChatCompletionChunk:
    choices = [] if usage else [{"index": 0, "delta": {"content": text}, "finish_reason": None}]
    head = {"id": "x", "object": "chat.completion.chunk", "created": 1, "model": "tiny"}
    return ChatCompletionChunk.model_validate({**head, "choices": choices, "usage": usage})


async def _stream() -> AsyncIterator[ChatCompletionChunk]:
    for chunk in (_chunk("Hel"), _chunk(), _chunk("lo"), _chunk(usage=USAGE)):
        yield chunk


async def test_an_answer_is_its_texts_its_usage_and_its_times() -> None:
    client = MagicMock()
    client.models.list = AsyncMock(return_value=MagicMock(data=[MagicMock(id="tiny")]))
    client.chat.completions.create = AsyncMock(side_effect=lambda **_: _stream())
    asker = await Asker.of(client, tokens=5)
    answer = await asker.ask("Hi", PLANNED, prediction="Hello")
    await asker.ask_all(["one", "two"], OFF)
    assert (answer.text, answer.tokens) == ("Hello", 5)
    assert (answer.accepted_prediction, answer.rejected_prediction) == (2, 1)
    assert answer.first_s <= answer.last_s
    first, *others = (call.kwargs for call in client.chat.completions.create.call_args_list)
    body: dict[str, Any] = first["extra_body"]
    assert body["prediction"] == {"type": "content", "content": "Hello"}
    assert body["speculation"] == {"enabled": None}
    assert (first["model"], first["max_tokens"], body["ignore_eos"]) == ("tiny", 5, True)
    bodies = [each["extra_body"] for each in others]
    assert bodies == [{"ignore_eos": True, "speculation": {"enabled": False}}] * 2


def test_speed_is_of_all_answers_together_behind_their_first_tokens() -> None:
    answers = [Answer("", 11, first_s=1.0, last_s=4.0), Answer("", 21, first_s=2.0, last_s=6.0)]
    assert tokens_per_s(answers) == pytest.approx((10 + 20) / 5)
