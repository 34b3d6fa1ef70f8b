"""Asking a running stack through the official client, as a user's program would."""

import asyncio
from collections.abc import Sequence
from typing import Any

from openai import AsyncOpenAI

from tests.support.processes import Stack

MODEL = "smollm2-135m-instruct"
QUESTION = "What is the capital of France?"
# Different in length and kind; none is a prefix of another.
QUESTIONS = (
    QUESTION,
    "Write a haiku about rain.",
    "List three prime numbers.",
    "Explain photosynthesis in one sentence.",
    "Translate 'good morning' into Spanish.",
    "Write a Python function that adds two numbers.",
    "Who wrote Hamlet?",
    "Name the planets of the solar system.",
    "What is 12 times 12?",
    "Give me a recipe for pancakes.",
    "Repeat this word for word: the quick brown fox jumps over the lazy dog, the quick brown fox.",
    "Why is the sky blue?",
    "Describe a cat to someone who has never seen one.",
    "What does HTTP stand for?",
    "Count from one to ten.",
    "Summarise: Alice went to the market. She bought apples. Then Alice went home.",
)


def client(stack: Stack, **options: Any) -> AsyncOpenAI:
    """The official client pointed at the stack; it does not retry by itself."""
    return AsyncOpenAI(
        base_url=stack.base_url, api_key="unused", max_retries=0, timeout=90, **options
    )


async def ask(openai: AsyncOpenAI, question: str, max_tokens: int = 16, **options: Any) -> str:
    """The answer's text, in one piece; greedy unless `options` say otherwise."""
    answer = await openai.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": question}],
        max_tokens=max_tokens,
        **{"temperature": 0, **options},
    )
    return answer.choices[0].message.content or ""


async def stream(openai: AsyncOpenAI, question: str, max_tokens: int = 16, **options: Any) -> str:
    """The same, streamed and joined."""
    chunks = await openai.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": question}],
        max_tokens=max_tokens,
        stream=True,
        **{"temperature": 0, **options},
    )
    return "".join([c.choices[0].delta.content or "" async for c in chunks if c.choices])


async def stream_all(
    openai: AsyncOpenAI, questions: Sequence[str], max_tokens: int, **options: Any
) -> list[str]:
    """All questions at once."""
    return await asyncio.gather(*(stream(openai, q, max_tokens, **options) for q in questions))
