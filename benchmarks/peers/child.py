"""The child's side of a comparison: jobs come in, answers go out, one JSON object a line.

Standard library alone: this runs in the interpreter of whoever is measured.
"""

import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol, TextIO

Prompts = Sequence[Sequence[int]]


@dataclass
class Answer:
    """One prompt's tokens, and the second at which each was there, by a clock of the child's."""

    token_ids: list[int] = field(default_factory=list)
    times_s: list[float] = field(default_factory=list)

    def add(self, token_ids: Sequence[int]) -> None:
        """Tokens that are there now."""
        self.token_ids.extend(token_ids)
        self.times_s.extend([time.perf_counter()] * len(token_ids))


class Peer(Protocol):
    """A generator of text that can be compared."""

    @property
    def version(self) -> str: ...

    def decode(self, prompts: Prompts, tokens: int) -> list[Answer]:
        """Greedy answers of exactly `tokens` tokens each, all prompts at once."""
        ...


def serve(make_peer: Callable[[list[str]], Peer]) -> None:
    """Load the peer that the command line asks for, then work off jobs until stdin ends."""
    replies = _replies()
    peer = make_peer(sys.argv[1:])
    _send(replies, {"version": peer.version})
    for line in sys.stdin:
        job = json.loads(line)
        answers = peer.decode(job["prompts"], job["tokens"])
        _send(replies, {"answers": [asdict(answer) for answer in answers]})


def _replies() -> TextIO:
    """The pipe to the parent. Whatever libraries print goes to stderr instead."""
    pipe = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    return pipe


def _send(replies: TextIO, value: dict[str, Any]) -> None:
    replies.write(json.dumps(value) + "\n")
    replies.flush()
