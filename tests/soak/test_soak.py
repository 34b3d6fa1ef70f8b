"""Thousands of rounds under random load: every text right, memory flat, nothing that grows.

Short in `make test`; `make soak` runs 20,000 rounds (B12, B24).
"""

import gc
import os
import random
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch

from outrider_worker.engine.guard import Guard
from outrider_worker.engine.plans import Plan, Probe
from outrider_worker.engine.records import LaunchMode
from outrider_worker.engine.scheduler import SchedulerLimits
from outrider_worker.engine.types import RequestKey, SpeculationLimits
from outrider_worker.kv import PAGE_TOKENS
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

ROUNDS = int(os.environ.get("OUTRIDER_SOAK_ROUNDS", "400"))
"""Under load, by all engines together; about as many again while they come to rest."""
BURSTS = 3 + ROUNDS // 2000
"""Times that all comes to rest."""
WARM_BURSTS = BURSTS // 3
K = 8
RUNNING = 5
POOL_PAGES = 10
RIGHT = (8, 0, 3, 1, 5)

# What may be larger at one rest than at another, and what bounds it whatever has run.
BOUNDED = {
    ".pages._free": POOL_PAGES,
    ".pages.cache.": POOL_PAGES * PAGE_TOKENS,  # the tokens of the pages kept
    "._shown_pages": 3 * RUNNING,  # pages of a context, by seat
    "._used": RUNNING,  # seats that used a list of the sampling table
    ".runner._wanted": RUNNING,
    "._drafting._place.": RUNNING.bit_length(),  # costs, by powers of two of n
    "._off.": 2 * RUNNING.bit_length(),  # the same
    "._carried_on_host": 2,  # names of drafters
    "._survival": 3,  # the last plan's scores: version, width, a map for each class
}
# A device's thread holds its last piece of work, with what was uploaded for it, until the next one
# comes; more or less, by what that was. One tensor leaked each round is 200 in the short form.
MOST_TENSORS = 40
# Memory blocks of the interpreter. Without a leak some 150 are added in all, fewer each time: free
# lists and interned values. One object leaked every tenth round is 1,300 in the long form.
# (tracemalloc is no help: it triples the time, and goes on counting blocks that are gone.)
MOST_BLOCKS = 1000
# The allocator's arenas differ that much from one rest to the next; 13,000 leaked tensors are more.
MOST_RESIDENT_BYTES = 8 * 2**20


@dataclass(frozen=True)
class AtRest:
    """What is there between two bursts, all requests gone."""

    containers: Counter[str]
    tensors: int
    resident_bytes: int

    @classmethod
    def of(cls, loads: "list[Load]") -> "AtRest":
        sizes: Counter[str] = Counter()
        for number, load in enumerate(loads):
            found = census(load.engine.engine)
            sizes.update({f"{number}{path}": size for path, size in found.items()})
        tensors = sum(issubclass(type(each), torch.Tensor) for each in gc.get_objects())
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return cls(sizes, tensors, pages * os.sysconf("SC_PAGE_SIZE"))


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


def _blocks() -> int:
    gc.collect()
    return sys.getallocatedblocks()


def _fixed_plan(version: int) -> Plan:
    """In force at every rest, so that plans of different sizes are not taken for growth."""
    return static_plan("", 0, version=version)


def _bound(path: str) -> int:
    return max((most for part, most in BOUNDED.items() if part in path), default=0)


def _check_flat(warm: AtRest, end: AtRest) -> None:
    grown = {
        path: (warm.containers[path], size)
        for path, size in end.containers.items()
        if size > max(warm.containers[path], _bound(path))
    }
    assert grown == {}
    assert end.tensors - warm.tensors < MOST_TENSORS, "tensors are kept"
    assert end.resident_bytes - warm.resident_bytes < MOST_RESIDENT_BYTES


def _burst(loads: list[Load]) -> None:
    """Each engine in turn under load, until nothing is left of it."""
    for load in loads:
        load.play(ROUNDS // (BURSTS * len(loads)))
        load.engine.offer(_fixed_plan)


def test_many_rounds_leave_nothing_behind(loads: list[Load]) -> None:
    """The engines take turns; after each burst, with all requests gone, what is left is looked at.

    Texts, invariants and sums are checked by `Watched` at every step.
    """
    for _ in range(WARM_BURSTS):
        _burst(loads)
    warm = AtRest.of(loads)
    warm_blocks = _blocks()  # with `warm` in it, which is kept
    for _ in range(BURSTS - WARM_BURSTS):
        _burst(loads)
        assert _blocks() - warm_blocks < MOST_BLOCKS
        _check_flat(warm, AtRest.of(loads))
    _check_that_much_happened(loads)


def _check_that_much_happened(loads: list[Load]) -> None:
    """The load was one: all ways to end, in all modes, with drafts and preemptions."""
    told, booked = Counter[str](), Counter[str]()
    for load in loads:
        told.update(load.engine.told)
        booked.update(load.engine.booked)
    assert booked["rounds"] >= ROUNDS
    assert sum(load.requests for load in loads) > ROUNDS / 10
    assert told["finished"] > 0.6 * sum(load.requests for load in loads)
    assert told["Finish"] > told["finished"], "none was cancelled"
    assert told["dropped"] + told["Failure"] > 0
    assert sum(load.engine.scheduler.preemptions for load in loads) > 0
    assert booked["accepted"] > 0
    assert min(booked[mode.value] for mode in LaunchMode) > 0
