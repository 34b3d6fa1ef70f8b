"""The oracle test of drafters with a state: fed bit by bit, they stand as if fed at one go.

A drafter is led through a real engine by a verifier that accepts at random, with K changing every
round. Again and again its keys, values and draft logits are compared with those of a fresh copy
that was prefilled with the same text. Off-by-one pairs, stale self-made state, wrong positions and
wrong roll-back all show here.

    SUBJECT = Subject(target=tiny_model(), make=lambda: EagleDrafter(…), pool=lambda d: d.pool)

    @pytest.mark.parametrize("course", COURSES.values(), ids=COURSES)
    def test_state_is_that_of_a_prefill(course: Course) -> None:
        check_oracle(SUBJECT, course)

`make` gives a new drafter of the same weights each time, with at most MAX_DRAFT_TOKENS drafts.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random
from typing import Any

import torch
from torch import Tensor

from outrider_worker.engine.scheduler import SchedulerLimits
from outrider_worker.engine.types import Request
from outrider_worker.feeding import FedChunks
from outrider_worker.kv import PAGE_TOKENS, KvPool
from outrider_worker.model.loader import LoadedModel
from outrider_worker.programs import Programs, SeatSize
from outrider_worker.rows import lay_out
from outrider_worker.speculate.device import Chosen, DraftBatch, StatefulDrafter
from outrider_worker.speculate.verify import Coupled, JudgedRows, SamplerMatch, Verdict
from outrider_worker.streams import EmulatedStream, ImmediateStream
from tests.support.engines import Bench, request, static_plan

MAX_DRAFT_TOKENS = 5
TOLERANCE = 1e-5
_CONTEXT_TOKENS = 256
_CHECK_EVERY_STEPS = 5
_PAUSE_AT_STEP = 10


@dataclass(frozen=True)
class Subject:
    """A drafter under test, and where its keys and values are.

    layers_behind: how many positions each layer of the pool has fewer than the one before (modules
        of multi-token prediction that see shifted pairs: 1).
    """

    target: LoadedModel
    make: Callable[[], StatefulDrafter]
    pool: Callable[[Any], KvPool]
    layers_behind: int = 0


@dataclass(frozen=True)
class Course:
    """Traffic to lead it through.

    waves: how often the same prompts come, one wave after the other; later ones hit the cache.
    cold: the first wave is served without speculation, so that the cache has pages that the drafter
        knows nothing of. pool_pages: few enough to preempt, where `preempts`. asynchronous: rounds
        ahead. pause_steps: without drafts once everybody has begun (*off, idle*); what is compared
        comes behind them.
    """

    requests: int = 1
    chunk_tokens: int = 128
    pool_pages: int = 100
    waves: int = 1
    cold: bool = False
    prompt_tokens: int = 40
    answer_tokens: int = 60
    asynchronous: bool = False
    preempts: bool = False
    pause_steps: int = 0
    seed: int = 1

    @property
    def pause(self) -> range:
        """The steps without drafts."""
        return range(_PAUSE_AT_STEP, _PAUSE_AT_STEP + self.pause_steps)


COURSES: Mapping[str, Course] = {
    "alone": Course(),
    "chunked": Course(chunk_tokens=23, prompt_tokens=150, answer_tokens=40),
    "batch": Course(requests=8, seed=2, answer_tokens=40),
    "ahead": Course(requests=3, chunk_tokens=30, prompt_tokens=70, asynchronous=True, seed=3),
    "preempted": Course(requests=5, pool_pages=9, preempts=True, answer_tokens=50, seed=4),
    # The first token that differs is the one behind a page.
    "prefix-hit": Course(requests=2, waves=2, prompt_tokens=193, answer_tokens=40, seed=5),
    "cold-hit": Course(waves=2, cold=True, prompt_tokens=150, answer_tokens=40, seed=6),
    # Fed once meanwhile, from features that have turned the ring over.
    "idle": Course(requests=2, pause_steps=50, answer_tokens=130, seed=7),
    "idle-ahead": Course(requests=2, pause_steps=50, answer_tokens=130, asynchronous=True, seed=8),
}


class AcceptsAtRandom(Coupled):
    """Accepts some of the drafts whatever they are, and commits them: texts that exist nowhere."""

    name = "at random"

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def verify(self, rows: JudgedRows) -> Verdict:
        """As many as a hash of where the text has got to says."""
        samples = rows.samples()
        mixed = (rows.known * 7919 + rows.seats * 104729 + self._seed * 1299709) % 10007
        accepted = mixed % (rows.lengths + 1)
        kept = torch.where(rows.places < accepted[:, None], rows.drafts, samples[:, :-1])
        return Verdict(accepted, torch.cat([kept, samples[:, -1:]], dim=1))


class _Listening:
    """A Chooser that takes the best and keeps the logits."""

    def __init__(self) -> None:
        self.logits: list[Tensor] = []

    def choose(self, logits: Tensor, step: int) -> Chosen:
        self.logits.append(logits.clone())
        best = logits.softmax(-1).max(-1)
        return Chosen(best.indices, best.values)


def check_oracle(subject: Subject, course: Course) -> int:
    """Lead the drafter through the course; returns how often its state was compared."""
    drafter, dice = subject.make(), Random(course.seed)
    name, stream = drafter.traits.name, EmulatedStream() if course.asynchronous else None
    bench = Bench(
        device_drafter=drafter,
        stream=stream or ImmediateStream(),
        model=subject.target,
        verifier=AcceptsAtRandom(course.seed),
        limits=SchedulerLimits(8, _CONTEXT_TOKENS, prefill_chunk_tokens=course.chunk_tokens),
        pool_pages=course.pool_pages,
        max_draft_tokens=MAX_DRAFT_TOKENS,
    )
    planner, version, compared = bench.plans.open_stream(), 0, 0
    try:
        for wave in range(course.waves):
            for number in range(course.requests):
                bench.submit(_request(course, wave, number))
            while not bench.engine.idle:
                version += 1
                # Who comes while it is off would have no state, and nothing to compare.
                tokens = dice.randint(int(_somebody_comes(bench)), MAX_DRAFT_TOKENS)
                if version in course.pause or (course.cold and wave == 0):
                    tokens, compared = 0, 0
                bench.plans.offer(planner, static_plan(name, tokens, version=version), 0.0)
                bench.step()
                if version % _CHECK_EVERY_STEPS == 0:
                    compared += _compare(subject, bench, drafter)
    finally:
        bench.stream.close()
    warm = course.waves - course.cold
    assert compared >= course.requests * warm, "the drafter was hardly ever up to date"
    assert sum(record.accepted_tokens for record in bench.records) > 0
    assert bool(bench.scheduler.preemptions) == course.preempts
    counts = bench.pages.cache.counts
    assert bool(counts.hit_tokens) == (warm > 1)
    assert bool(counts.cut_tokens) >= course.cold
    return compared


def _request(course: Course, wave: int, number: int) -> Any:
    """Prompts of later waves differ from those of earlier ones at their very end only."""
    dice = Random(1000 * course.seed + number)
    prompt = [dice.randrange(3, 250) for _ in range(course.prompt_tokens + number)]
    return request([*prompt[:-1], 3 + wave], course.answer_tokens)


def _somebody_comes(bench: Bench) -> bool:
    scheduler = bench.scheduler
    running = scheduler.running
    return not running or scheduler.waiting_requests > 0 or not all(r.prefilled for r in running)


def _compare(subject: Subject, bench: Bench, drafter: StatefulDrafter) -> int:
    """Compare every request that is up to date; how many there were."""
    bench.stream.submit(lambda _watch: {}).result()
    running = [each for each in bench.scheduler.running if each.prefilled]
    return sum(_compare_one(subject, bench, drafter, each) for each in running)


@torch.inference_mode()
def _compare_one(
    subject: Subject, bench: Bench, drafter: StatefulDrafter, request: Request
) -> bool:
    programs, seat = bench.programs, request.seat
    known = int(programs.seats.known[seat])
    assert programs.feeding is not None
    if int(programs.feeding.fed[seat]) != known - 1:
        return False
    fresh = subject.make()
    anew = _prefilled(subject, fresh, programs.seats.history[seat, :known].clone())
    for layer in range(len(subject.pool(drafter).keys)):
        end = known - 1 - layer * subject.layers_behind
        kept = _entries(subject.pool(drafter), layer, programs.seats.page_table[seat], end)
        right = _entries(subject.pool(fresh), layer, anew.seats.page_table[0], end)
        torch.testing.assert_close(kept, right, atol=TOLERANCE, rtol=0)
    kept_logits = _draft_logits(programs, drafter, seat)
    for step, right in enumerate(_draft_logits(anew, fresh, 0)):
        torch.testing.assert_close(kept_logits[step], right, atol=TOLERANCE, rtol=0)
    return True


def _prefilled(subject: Subject, drafter: StatefulDrafter, text: Tensor) -> Programs:
    """A copy that has been fed all of the text but its anchor in a single forward."""
    pages, rows = _CONTEXT_TOKENS // PAGE_TOKENS, text.shape[0] - 1
    pool = KvPool.of_pages(subject.target.config, pages + 1, torch.float32)
    size = SeatSize(1, _CONTEXT_TOKENS, MAX_DRAFT_TOKENS, _CONTEXT_TOKENS)
    programs = Programs.over(subject.target.model, pool, size, SamplerMatch(), [drafter])
    state, feeding, seats = programs.seats, programs.feeding, torch.tensor([0])
    assert feeding is not None
    state.page_table[0, :pages] = torch.arange(1, pages + 1)
    state.put(0, text, rows, MAX_DRAFT_TOKENS + 1)
    start, count = torch.tensor([0]), torch.tensor([rows])
    layout = lay_out(state, seats, start, count, rows)
    _, features = programs.prefill_forward(layout.rows)
    feeding.feed_chunks(state, layout, features, FedChunks(seats, start, count, rows))
    return programs


def _entries(pool: KvPool, layer: int, pages: Tensor, end: int) -> Tensor:
    """[end, heads × (key_dim + value_dim)] of positions 0…end−1."""
    position = torch.arange(end)
    page, offset = pages[position // PAGE_TOKENS], position % PAGE_TOKENS
    keys, values = pool.keys[layer][page, :, :, offset], pool.values[layer][page, :, offset]
    return torch.cat([keys.flatten(1), values.flatten(1)], dim=1)


def _draft_logits(programs: Programs, drafter: StatefulDrafter, seat: int) -> list[Tensor]:
    """What the drafter would draw its next drafts from."""
    listening, seats = _Listening(), torch.tensor([seat])
    batch = DraftBatch(
        seats=seats,
        history=programs.seats.history.clone(),
        known=programs.seats.known[seats],
        limit=torch.tensor([MAX_DRAFT_TOKENS]),
        page_table=programs.seats.page_table,
        chooser=listening,
    )
    drafter.propose(batch, MAX_DRAFT_TOKENS)
    return listening.logits
