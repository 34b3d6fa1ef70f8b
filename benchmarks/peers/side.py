"""The parent's side of a comparison: one child process for each peer, asked in turns."""

import json
import os
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

from benchmarks.peers.child import Answer, Prompts

_ROOT = Path(__file__).parents[2]


class PeerFailed(RuntimeError):
    """A peer did not start, or ended before it answered."""


@dataclass(frozen=True)
class Recipe:
    """How a peer is started: interpreter, module, arguments, environment beside the parent's."""

    name: str
    python: str
    module: str
    arguments: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)


class Side:
    """One peer, loaded and waiting."""

    def __init__(self, recipe: Recipe, log: TextIO) -> None:
        self.name = recipe.name
        self._log = log
        self._process = subprocess.Popen(
            [recipe.python, "-m", recipe.module, *recipe.arguments],
            cwd=_ROOT,
            env={**os.environ, **recipe.environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
        self.version: str = self._reply()["version"]

    @classmethod
    def start(cls, recipe: Recipe) -> "Side":
        """Load the peer. Raises PeerFailed with the end of what it printed."""
        return cls(recipe, tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace"))

    def decode(self, prompts: Prompts, tokens: int) -> list[Answer]:
        """Raises PeerFailed."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps({"prompts": prompts, "tokens": tokens}) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError as error:
            raise self._failure() from error
        return [Answer(**answer) for answer in self._reply()["answers"]]

    def stop(self) -> None:
        """Let the child end by itself; stop it where it does not."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()
        self._log.close()

    def _reply(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise self._failure()
        reply: dict[str, Any] = json.loads(line)
        return reply

    def _failure(self) -> PeerFailed:
        status = self._process.wait(20)
        self._log.seek(0)
        last = [line for line in self._log.read().splitlines() if line.strip()][-1:]
        return PeerFailed(f"{self.name} ended with {status}: {last[0].strip() if last else ''}")


def tokens_per_s(answers: Sequence[Answer]) -> float:
    """Decode speed while all requests run: from when the last has its first token until one ends.

    Prefill is in it for nobody, and neither is the thinning out at the end.
    """
    start_s = max(answer.times_s[0] for answer in answers)
    end_s = min(answer.times_s[-1] for answer in answers)
    if end_s <= start_s:
        raise ValueError("the answers are too short: never did all requests decode at once")
    inside = sum(start_s < time_s <= end_s for answer in answers for time_s in answer.times_s)
    return inside / (end_s - start_s)


def agreement(answers: Sequence[Answer], others: Sequence[Answer]) -> float:
    """Share of tokens that agree up to the first difference of each answer: 1 = same texts."""
    same = total = 0
    for mine, theirs in zip(answers, others, strict=True):
        pairs = list(zip(mine.token_ids, theirs.token_ids, strict=True))
        first = next((place for place, (a, b) in enumerate(pairs) if a != b), len(pairs))
        same, total = same + first, total + len(pairs)
    return same / total
