"""Where prompts become tokens: long ones beside the event loop, short ones at once."""

import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest

from outrider_router.openai.chat import ChatReader
from outrider_router.openai.completions import CompletionReader
from outrider_router.openai.dialect import Encoded
from outrider_router.openai.prompts import encode_prompt
from outrider_router.state import RouterState
from outrider_router.text.template import Conversation


def said(text: str, count: int = 1, **options: Any) -> Conversation:
    return Conversation([{"role": "user", "content": text}] * count, **options)


@pytest.mark.parametrize(
    ("prompt", "short"),
    [
        (said("Hello."), True),
        (said("Hello.", 8), True),
        (said("Hello.", 9), False),
        (said("x" * 980), True),
        (said("x" * 1000), False),
        (
            Conversation([{"role": "user", "content": [{"type": "text", "text": "x" * 1000}]}]),
            False,
        ),
        (said("Hello.", tools=[{}]), False),
        (said("Hello.", variables={"documents": []}), False),
    ],
)
def test_a_few_messages_with_little_text_are_short(prompt: Conversation, short: bool) -> None:
    assert ChatReader().is_short(prompt) is short


@pytest.mark.parametrize("size", [1, 1000, 1001])
def test_little_text_is_short_and_tokens_are_however_many(size: int) -> None:
    """Of tokens nothing is left to work out."""
    assert CompletionReader().is_short("x" * size) is (size <= 1000)
    assert CompletionReader().is_short([5] * size)


@pytest.mark.parametrize("short", [True, False])
async def test_only_short_prompts_are_encoded_on_the_event_loop(short: bool) -> None:
    threads: list[str] = []

    def encode(*_: Any) -> Encoded:
        threads.append(threading.current_thread().name)
        return Encoded([1])

    reader: Any = SimpleNamespace(
        prompt_param="prompt", characters=len, is_short=lambda _: short, encode=encode
    )
    text = SimpleNamespace(least_tokens=lambda _: 1)
    model: Any = SimpleNamespace(text=text, context_tokens=8, vocab_size=8)
    with ThreadPoolExecutor(1, "text") as pool:
        state: Any = SimpleNamespace(text_threads=pool)
        state.in_text_thread = RouterState.in_text_thread.__get__(state)
        assert (await encode_prompt(state, model, reader, "Hello.")).ids == [1]
    assert [name.startswith("text") for name in threads] == [not short]
