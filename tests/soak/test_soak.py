"""Thousands of rounds under random load: every text right, memory flat, nothing that grows.

Short in `make test`; `make soak` runs 20,000 rounds (B12, B24).
"""

import gc
import os
import random
import tracemalloc
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch

from outrider_worker.engine.guard import Guard
from outrider_worker.engine.plans import Plan, Probe
from outrider_worker.engine.scheduler import SchedulerLimits
from outrider_worker.engine.types import RequestKey, SpeculationLimits
from outrider_worker.speculate.device_ngram import DeviceNgramDrafter
from outrider_worker.speculate.ngram import NgramDrafter
from outrider_worker.speculate.scripted import ScriptedDrafter, listed
from outrider_worker.streams import EmulatedStream
from tests.soak.census import census
from tests.support.device_scripted import DeviceScripted
from tests.support.engines import static_plan
from tests.support.tiny_models import VOCAB_SIZE
from tests.support.traffic import (
    LONGEST_ANSWER_TOKENS,
    VOICES,
    continuations,
    sent,
)
from tests.support.watched import Watched

pytestmark = pytest.mark.soak

ROUNDS = int(os.environ.get("OUTRIDER_SOAK_ROUNDS", "600"))
K = 8
RUNNING = 5
POOL_PAGES = 10
RIGHT = (8, 0, 3, 1, 5)
BURSTS = 6
"""Times that all comes to rest; the first third of them warms up."""


@dataclass(frozen=True)
class AtRest:
    """What is there between two bursts, all requests gone."""

    containers: Counter[str]
    tensors: int
    python_bytes: int
    resident_bytes: int

    @classmethod
    def of(cls, engines: list[Watched]) -> "AtRest":
        gc.collect()
        sizes: Counter[str] = Counter()
        for number, each in enumerate(engines):
            sizes.update({f"{number}{path}": size for path, size in census(each.engine).items()})
        tensors = sum(issubclass(type(each), torch.Tensor) for each in gc.get_objects())
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        resident_bytes = pages * os.sysconf("SC_PAGE_SIZE")
        return cls(sizes, tensors, tracemalloc.get_traced_memory()[0], resident_bytes)


class Load:
    """Random requests, aborts, preemptions and plans for one engine."""

    def __init__(self, engine: Watched, drafter: str, chance: random.Random) -> None:
        self.engine = engine
        self.requests = 0
        self._drafter = drafter
        self._chance = chance

    def play(self, rounds: int) -> None:
        """At least so many rounds, then rest."""
        until = self.engine.booked["rounds"] + rounds
        while self.engine.booked["rounds"] < until:
            self._disturb()
            self.engine.step()
        self.engine.finish()

    def _disturb(self) -> None:
        chance, engine = self._chance, self.engine
        if len(engine.live) < 9 and chance.random() < 0.4:
            self._send()
        if engine.live and chance.random() < 0.03:
            engine.cancel(chance.choice(list(engine.live)))
        if engine.scheduler.running and chance.random() < 0.02:
            engine.scheduler.preempt(chance.choice(engine.scheduler.running))
        if chance.random() < 0.05:
            engine.offer(self._plan)
        if chance.random() < 0.003:
            engine.drop_owner(chance.choice("abc"))

    def _send(self) -> None:
        self.requests += 1
        chance = self._chance
        request = sent(
            chance.choice(VOICES),
            RequestKey(chance.choice("abc"), f"r{self.requests}"),
            chance.randint(1, LONGEST_ANSWER_TOKENS),
            resumed_tokens=chance.choice([0, 0, 0, 5]),
            tenant_salt=chance.choice([b"", b"", b"other"]),
            deadline_s=self.engine.clock() + 25 if chance.random() < 0.05 else None,
            speculation=SpeculationLimits(max_draft_tokens=chance.choice([None, None, 0, 2])),
        )
        self.engine.send(request)

    def _plan(self, version: int) -> Plan:
        tokens, verify = self._chance.choice([0, 1, 3, 5, K]), self._chance.choice([0, 4, 99])
        plan = static_plan(
            self._drafter, tokens, verify=lambda n, d: min(n * d, verify), version=version
        )
        return replace(plan, probe=Probe(cohort_share=0.2, plain_share=0.1, draft_tokens=2))


def _engine(**parts: object) -> Watched:
    limits = SchedulerLimits(RUNNING, 192, max_rows_per_forward=24, prefill_chunk_tokens=48)
    return Watched(limits, pool_pages=POOL_PAGES, max_draft_tokens=K, guard=Guard(), **parts)


@pytest.fixture
def loads() -> Iterator[list[Load]]:
    """In step on an immediate device, ahead on an asynchronous one, and n-gram in both places."""
    right = DeviceScripted(continuations(), RIGHT, VOCAB_SIZE, K, sparse=True)
    host = ScriptedDrafter(continuations(), listed(RIGHT), VOCAB_SIZE, K)
    streams = [EmulatedStream(), EmulatedStream()]
    yield [
        Load(_engine(drafter=host), "scripted", random.Random(1)),
        Load(_engine(device_drafter=right, stream=streams[0]), "scripted", random.Random(2)),
        Load(
            _engine(
                drafter=NgramDrafter(K), device_drafter=DeviceNgramDrafter(K), stream=streams[1]
            ),
            "ngram",
            random.Random(3),
        ),
    ]
    for stream in streams:
        stream.close()


@pytest.fixture
def traced() -> Iterator[None]:
    tracemalloc.start()
    yield
    tracemalloc.stop()


def test_many_rounds_leave_nothing_behind(loads: list[Load], traced: None) -> None:
    engines = [load.engine for load in loads]
    rests = []
    for _ in range(BURSTS):
        for load in loads:
            load.play(ROUNDS // (BURSTS * len(loads)))
        rests.append(AtRest.of(engines))
    for r in rests:
        print(r.tensors, r.python_bytes, r.resident_bytes)
    print(
        {
            k: (rests[1].containers[k], v)
            for k, v in rests[-1].containers.items()
            if rests[1].containers[k] != v
        }
    )
    print(
        [e.told for e in engines],
        [e.booked for e in engines],
        [e.scheduler.preemptions for e in engines],
    )
