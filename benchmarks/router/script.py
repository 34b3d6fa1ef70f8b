"""What the scripted servers say and when: the same for the worker and for the peers' upstream.

A request's seed is the time between two of its tokens in milliseconds, so that one server plays
every case; the first token comes at once. Seed 0 stands for as fast as the reader reads.
"""

import argparse
import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Generic, TypeVar

from tokenizers import Tokenizer

MODEL = "scripted"
TEXT = (
    "The tide had been out for an hour when the keeper of the light walked down to the shore, "
    "counting the boats as he always did. Two were missing. He waited — it was still early — and "
    "wrote the names into his book: “Mérope”, 14 tons; “Albatros”, 9 tons. By noon the wind had "
    "turned to the north-west, and nobody in the village spoke of anything else.\n"
)


@dataclass(frozen=True)
class ServerOptions:
    """What a scripted server is told on its command line."""

    folder: Path
    port: int

    @classmethod
    def parsed(cls, about: str) -> "ServerOptions":
        """From `--folder FOLDER --port PORT`; `about`: the module's docstring."""
        parser = argparse.ArgumentParser(description=about.splitlines()[0])
        parser.add_argument("--folder", type=Path, required=True, help="of the model's files")
        parser.add_argument("--port", type=int, required=True)
        return cls(**vars(parser.parse_args()))


def tokens_of(folder: Path) -> tuple[list[int], list[str]]:
    """The text as a model's tokens: their ids, and what each adds to the text."""
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    ids = tokenizer.encode(TEXT, add_special_tokens=False).ids
    shown = [tokenizer.decode(ids[:end]).rstrip("\ufffd") for end in range(len(ids) + 1)]
    return ids, [after[len(before) :] for before, after in pairwise(shown)]


@dataclass
class Part:
    """One answer in the making: `at` tokens were said, `total` will be."""

    total: int
    at: int = 0

    @property
    def ended(self) -> bool:
        return self.at >= self.total


P = TypeVar("P", bound=Part)


class Rounds(Generic[P]):
    """Answers that keep the same time.

    Args:
        gap_s: from one round to the next.
        play: says one more token of every answer it is given.
    """

    def __init__(self, gap_s: float, play: Callable[[list[P]], Awaitable[None]]) -> None:
        self._gap_s = gap_s
        self._play = play
        self._parts: list[P] = []
        self._some = asyncio.Event()
        self._task = asyncio.create_task(self._run())

    def add(self, part: P) -> None:
        """Go on with this answer in the rounds to come."""
        self._parts.append(part)
        self._some.set()

    def drop(self, unwanted: Callable[[P], bool]) -> None:
        """Say no more of some answers."""
        self._parts = [part for part in self._parts if not unwanted(part)]

    def close(self) -> None:
        """Say no more of any."""
        self._task.cancel()

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        due_s = loop.time()
        while True:
            if not self._parts:
                self._some.clear()
                await self._some.wait()
            due_s = max(due_s + self._gap_s, loop.time())
            await asyncio.sleep(due_s - loop.time() if self._gap_s else 0)
            await self._play(self._parts)
            self._parts = [part for part in self._parts if not part.ended]
