"""Aborts and preemptions at every point of a round, on a device of any speed: nobody else notices.

What the engine itself does only when memory runs out or a grammar fails is done here between any
two of its calls: around a round's forward, before its judgement, before a result is read.
"""

import random
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import pytest
from torch import Tensor

from outrider_worker.engine.orders import RoundOrder, StepOrder
from outrider_worker.engine.records import LaunchMode
from outrider_worker.engine.scheduler import Scheduler, SchedulerLimits
from outrider_worker.engine.types import RequestKey
from outrider_worker.runner import Mask, Runner, Step
from outrider_worker.speculate.device import DeviceDrafter
from outrider_worker.speculate.device_ngram import DeviceNgramDrafter
from outrider_worker.speculate.ngram import NgramDrafter
from outrider_worker.streams import Done, EmulatedStream, Pending, Stopwatch, Work
from tests.support.device_scripted import DeviceScripted
from tests.support.engines import Bench, static_plan
from tests.support.laws import itself
from tests.support.tiny_models import VOCAB_SIZE
from tests.support.traffic import VOICES, Sent, continuations, sent, submission
from tests.unit.worker.grammars import END_IDS

POINTS = ("before begin", "behind begin", "before finish", "before read")
MOST_LATENCY_S = 0.004
Hook = Callable[[str], None]


class Intruder:
    """Preempts and aborts at random, at one point of the round or at all of them."""

    def __init__(self, seed: int, points: Sequence[str], aborts: bool) -> None:
        self._chance = random.Random(seed)
        self._points = points
        self._aborts = aborts
        self._left = 12
        self.scheduler: Scheduler | None = None
        self.aborted: set[RequestKey] = set()
        self.done: Counter[str] = Counter()

    def __call__(self, point: str) -> None:
        scheduler = self.scheduler
        if scheduler is None or point not in self._points or not scheduler.running:
            return
        if self._left == 0 or self._chance.random() > 0.3:
            return
        self._left -= 1
        self.done[point] += 1
        victim = self._chance.choice(scheduler.running)
        if self._aborts and self._chance.random() < 0.3:
            self.aborted.add(victim.spec.key)
            scheduler.remove(victim)
        else:
            scheduler.preempt(victim)


@dataclass(frozen=True)
class _Awaited:
    """A result, with word to the intruder that the host is about to wait for it."""

    pending: Pending
    hook: Hook

    def result(self) -> Done:
        self.hook("before read")
        return self.pending.result()


class UnevenStream(EmulatedStream):
    """A device whose work takes now nothing, now up to MOST_LATENCY_S longer."""

    def __init__(self, seed: int, hook: Hook) -> None:
        super().__init__()
        self._chance = random.Random(seed)
        self._hook = hook

    def submit(self, work: Work) -> Pending:
        latency_s = MOST_LATENCY_S * self._chance.choice([0.0, 0.0, self._chance.random()])

        def slowly(watch: Stopwatch) -> Mapping[str, Tensor]:
            time.sleep(latency_s)
            return work(watch)

        return _Awaited(super().submit(slowly), self._hook)


class OpenRunner(Runner):
    """A runner that lets the intruder in around its calls."""

    def __init__(self, inner: Runner, hook: Hook) -> None:
        super().__init__(inner._programs, inner._stream)
        self._hook = hook

    def begin(self, order: RoundOrder | None) -> Step:
        self._hook("before begin")
        step = super().begin(order)
        self._hook("behind begin")
        return step

    def finish(
        self,
        step: Step,
        order: StepOrder,
        masks: Sequence[Mask | None] = (),
        first_masks: Sequence[Mask | None] = (),
    ) -> None:
        self._hook("before finish")
        super().finish(step, order, masks, first_masks)


def _bench(drafter: str, intruder: Intruder, stream: UnevenStream) -> Bench:
    right = DeviceScripted(continuations(), (5, 0, 3, 1), VOCAB_SIZE)
    device: Mapping[str, DeviceDrafter] = {
        "scripted": right,
        "ngram": DeviceNgramDrafter(8),
        "draft": itself(),
    }
    bench = Bench(
        NgramDrafter(8) if "ngram" in drafter else None,
        static_plan(drafter.rpartition(" ")[2], 4, verify=lambda n, d: min(n * d, 7)),
        device_drafter=device.get(drafter),
        stream=stream,
        eos_token_ids=END_IDS,
        limits=SchedulerLimits(5, 192, 24, prefill_chunk_tokens=40),
        pool_pages=11,
        wrap_runner=lambda runner: OpenRunner(runner, intruder),
    )
    intruder.scheduler = bench.scheduler
    return bench


def _requests(seed: int, count: int = 7) -> list[Sent]:
    """One of them with a grammar, so that some rounds wait for masks."""
    chance = random.Random(seed)
    free = [voice for voice in VOICES if voice.grammar is None]
    voices = [*chance.sample(free, count - 1), VOICES[-1]]
    return [
        sent(voice, RequestKey("test", f"r{n}"), chance.randint(10, 32))
        for n, voice in enumerate(voices)
    ]


def _play(drafter: str, intruder: Intruder, seed: int) -> tuple[Bench, list[Sent]]:
    stream = UnevenStream(seed, intruder)
    bench, requests = _bench(drafter, intruder, stream), _requests(seed)
    for request in requests:
        bench.answers[request.spec.key] = request.answer
        bench.engine.inbox.put(submission(request))
    for _ in range(1000):
        bench.step()
        if bench.engine.idle:
            break
    stream.close()
    assert bench.engine.idle
    assert bench.pages.used_pages == 0
    return bench, requests


def _check(requests: Sequence[Sent], intruder: Intruder) -> None:
    for request in requests:
        request.check()
        assert request.finished != (request.spec.key in intruder.aborted)


@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("drafter", ["scripted", "draft", "ngram", "host ngram"])
def test_one_point_of_every_round(drafter: str, point: str) -> None:
    intruder = Intruder(POINTS.index(point), [point], aborts=True)
    _, requests = _play(drafter, intruder, seed=POINTS.index(point))
    _check(requests, intruder)
    assert intruder.done[point] > 3


@pytest.mark.parametrize("seed", range(10, 14))
@pytest.mark.parametrize("drafter", ["scripted", "draft"])
def test_any_points_in_any_order(drafter: str, seed: int) -> None:
    """B08: twice in a row, in one round, by several: each time all in flight for it is void."""
    intruder = Intruder(seed, POINTS, aborts=False)
    bench, requests = _play(drafter, intruder, seed)
    _check(requests, intruder)
    assert not intruder.aborted
    assert sum(intruder.done.values()) == 12
    assert {record.launch_mode for record in bench.records} == {
        LaunchMode.AHEAD,
        LaunchMode.LATE_MASK,
    }
