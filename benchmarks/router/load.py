"""The load, as a process of its own: streams that ask again as soon as they are answered.

    python -m benchmarks.router.load --target http://HOST:PORT --streams 64 --tokens 64 --gap-ms 40

Prints one JSON line. Asks over HTTP, or a worker over gRPC (`grpc://HOST:PORT`), and reads the
processor time of the processes it is told to watch at both ends of the measured time.
"""

import argparse
import asyncio
import itertools
import json
import os
import random
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import uvloop

from benchmarks.router.asking import Answer, Ask, Wait, grpc_asker, http_askers

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Load:
    """What is asked: so many streams, answers of so many tokens, one each `gap_ms`."""

    streams: int
    tokens: int
    gap_ms: int
    seconds: float

    @property
    def answer_s(self) -> float:
        """How long an answer takes by its script."""
        return self.tokens * self.gap_ms / 1000


@dataclass
class Tally:
    """What happened between the two ends of the measured time."""

    began_s: float = float("inf")
    ended_s: float = float("inf")
    first_ms: list[float] = field(default_factory=list)
    requests: int = 0
    tokens: int = 0
    events: int = 0
    seen_events: int = 0

    @property
    def runs(self) -> bool:
        return self.began_s <= time.perf_counter() < self.ended_s

    def first_token(self, asked_s: float) -> None:
        """The first token of an answer, or the end of the wait for it."""
        if self.runs:
            self.first_ms.append((time.perf_counter() - asked_s) * 1000)

    def saw(self, events: int) -> None:
        """Events of any answer, whether or not it ends in time."""
        if self.runs:
            self.seen_events += events

    def answer(self, answer: Answer) -> None:
        if self.runs:
            self.requests += 1
            self.tokens += answer.tokens
            self.events += answer.events

    def summary(self) -> dict[str, float]:
        seconds = self.ended_s - self.began_s
        ordered = sorted(self.first_ms)
        return {
            "first_token_ms_median": statistics.median(ordered),
            "first_token_ms_p99": ordered[min(int(len(ordered) * 0.99), len(ordered) - 1)],
            "samples": len(ordered),
            "requests_per_s": self.requests / seconds,
            "tokens_per_s": self.tokens / seconds,
            "events_per_s": self.seen_events / seconds,
            "tokens_per_event": self.tokens / max(self.events, 1),
        }


async def measured(asks: Sequence[Ask], load: Load, watched: Sequence[int]) -> dict[str, Any]:
    """Ask with every stream until the time is up; the first answers do not count."""
    tally, numbers = Tally(), itertools.count()
    streams = [
        asyncio.create_task(_stream(ask, load, place, tally, numbers))
        for place, ask in enumerate(asks)
    ]
    # Until every stream has begun, and one answer or a second more.
    await asyncio.sleep(1.0 + 1.2 * load.answer_s)
    cpu_s, own_s = [processor_s(pid) for pid in watched], time.process_time()
    tally.began_s = time.perf_counter()
    await asyncio.sleep(load.seconds)
    used_s = [processor_s(pid) - before for pid, before in zip(watched, cpu_s, strict=True)]
    own_s = time.process_time() - own_s
    for stream in streams:
        stream.cancel()
    ended = await asyncio.gather(*streams, return_exceptions=True)
    tally.ended_s = time.perf_counter()
    for failure in ended:
        if not isinstance(failure, asyncio.CancelledError | None):
            raise failure
    seconds = tally.ended_s - tally.began_s
    cores = {"cores": sum(used_s) / seconds, "client_cores": own_s / seconds}
    return tally.summary() | cores


async def _stream(
    ask: Ask, load: Load, place: int, tally: Tally, numbers: "itertools.count[int]"
) -> None:
    """Ask again and again. Streams begin spread over one answer's time, and ask at a time that has
    nothing to do with the rounds: not all of them are in the way of who asks.
    """
    chance = random.Random(place)
    await asyncio.sleep(load.answer_s * place / load.streams)
    while True:
        await asyncio.sleep(chance.uniform(0, load.gap_ms / 1000))
        wait = Wait(tally.saw, tally.first_token)
        try:
            tally.answer(await ask(next(numbers), wait))
        finally:
            # A wait that had not ended counts as long as it was.
            wait.first_came()


def processor_s(pid: int) -> float:
    """Processor time of a process so far, all its threads together."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S


async def _main(options: argparse.Namespace) -> None:
    load = Load(options.streams, options.tokens, options.gap_ms, options.seconds)
    kind, _, address = options.target.partition("://")
    opening = grpc_asker if kind == "grpc" else http_askers
    async with opening(address, load.streams, load.tokens, load.gap_ms) as asks:
        print(json.dumps(await measured(asks, load, options.watch)))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--target", required=True)
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--gap-ms", type=int, default=40)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--watch", type=int, nargs="*", default=[])
    uvloop.run(_main(parser.parse_args()))
