"""Answers that are on their way while a stack is hurt, and callers that never stop asking."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

from openai import AsyncOpenAI, OpenAIError

from tests.support.chat import MODEL, QUESTIONS, stream

# Some on each worker, long enough to be cut in the middle.
ASKED = QUESTIONS[3:9]
TOKENS = 200
ENDLESS = {"extra_body": {"ignore_eos": True}}
_BEGUN_CHARACTERS = 20


async def _answer(openai: AsyncOpenAI, question: str, begun: asyncio.Event) -> str:
    chunks = await openai.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": question}],
        max_tokens=TOKENS,
        temperature=0,
        stream=True,
        extra_body=ENDLESS["extra_body"],
    )
    text = ""
    async for chunk in chunks:
        if chunk.choices:
            text += chunk.choices[0].delta.content or ""
        if len(text) > _BEGUN_CHARACTERS:
            begun.set()
    return text


@asynccontextmanager
async def on_their_way(openai: AsyncOpenAI) -> AsyncIterator["asyncio.Future[list[str]]"]:
    """The answers to ASKED, each begun and none ended; what is left of them ends with the block."""
    begun = [asyncio.Event() for _ in ASKED]
    answers = asyncio.gather(
        *(_answer(openai, *pair) for pair in zip(ASKED, begun, strict=True)),
    )
    try:
        async with asyncio.timeout(120):
            await asyncio.gather(*(each.wait() for each in begun))
        assert not answers.done(), "all are to be in the middle of their text"
        yield answers
    finally:
        answers.cancel()


class Callers:
    """Several at once, each with one request after the other and all texts compared.

    They choose among `doors`, the clients of the routers that are to be used now, as they would
    among the ready endpoints of a service.
    """

    def __init__(self, undisturbed: list[str], tokens: int, doors: list[AsyncOpenAI]) -> None:
        self.doors = list(doors)
        self.answers = 0
        self.failures: list[str] = []
        self._undisturbed, self._tokens = undisturbed, tokens
        self._turns = itertools.count()

    async def _call(self) -> None:
        while True:
            turn = next(self._turns)
            door, which = self.doors[turn % len(self.doors)], turn % len(ASKED)
            try:
                text = await stream(door, ASKED[which], self._tokens, **ENDLESS)
            except OpenAIError as error:
                self.failures.append(repr(error))
                await asyncio.sleep(1.0)
                continue
            self.answers += 1
            if not self._undisturbed[which].startswith(text) or not text:
                self.failures.append(f"another text: {text!r}")

    @contextmanager
    def calling(self, count: int = 4) -> Iterator[None]:
        tasks = [asyncio.create_task(self._call()) for _ in range(count)]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()

    async def until_more(self, answers: int, limit_s: float = 90) -> None:
        """Until that many more have come, so that what was changed has been used."""
        wanted = self.answers + answers
        async with asyncio.timeout(limit_s):
            while self.answers < wanted:
                await asyncio.sleep(0.1)
