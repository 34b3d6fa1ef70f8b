"""Pages, padding and what lies in memory that nobody owns; prefixes that are shared or not."""

from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

import pytest
import torch

from outrider_worker.engine.scheduler import SchedulerLimits
from outrider_worker.engine.types import NULL_PAGE, RequestSpec
from outrider_worker.graphs import CapturedForwards
from outrider_worker.kv import PAGE_TOKENS
from outrider_worker.programs import Programs
from outrider_worker.runner import Runner
from outrider_worker.speculate.device import DeviceDrafts, DraftBatch
from outrider_worker.speculate.scripted import ScriptedDrafter, always
from outrider_worker.streams import EmulatedStream, ImmediateStream
from tests.support.device_scripted import DeviceScripted
from tests.support.engines import Bench, request, static_plan
from tests.support.laws import (
    K_MAX,
    LIMITS,
    Way,
    alone,
    ask,
    assert_undisturbed,
    opened,
    prompt,
    run,
    serve,
    submit,
    whole_text,
)
from tests.support.tiny_models import VOCAB_SIZE

AHEAD = Way("device-scripted", 5, "ahead")
IN_STEP = Way("list", 5)
HUGE = 10**9
LOUD = 1e6
"""Would drown every score and value it was added to; not NaN, for masked slots count as zero
times what they hold."""


class Poisoned(Bench):
    """In step; before each step all that nobody owns is filled with what must never be read."""

    @property
    def runner(self) -> Runner:
        return self.engine._parts.runner

    def step(self) -> None:
        programs = self.runner._programs
        with torch.inference_mode():
            self._poison_pool(programs)
            self._poison_seats(programs)
        super().step()

    def _poison_pool(self, programs: Programs) -> None:
        """Slots that hold nothing committed: free pages, rejected drafts, ends of pages."""
        good = torch.zeros(programs.pool.pages, PAGE_TOKENS, dtype=torch.bool)
        for page in range(programs.pool.pages):
            good[page] = self.pages.cache.is_idle(page)
        for owner in self.scheduler.running:
            for slot in (self.pages.slot(owner, place) for place in range(owner.committed)):
                good[slot // PAGE_TOKENS, slot % PAGE_TOKENS] = True
        for keys, values in zip(programs.pool.keys, programs.pool.values, strict=True):
            keys.masked_fill_(~good[:, None, None, :], LOUD)
            values.masked_fill_(~good[:, None, :, None], LOUD)
            keys[NULL_PAGE], values[NULL_PAGE] = float("nan"), float("nan")

    def _poison_seats(self, programs: Programs) -> None:
        """Text behind what is known, pages behind the last one, lines of empty seats."""
        seats = programs.seats
        taken = {owner.seat for owner in self.scheduler.running}
        for seat in range(seats.seats):
            seats.history[seat, int(seats.known[seat]) * (seat in taken) :] = HUGE
            shown = self.runner._shown_pages.get(seat, ())
            seats.page_table[seat, len(shown) :] = HUGE
            seats.draft_bins[seat] = HUGE


def _mixed() -> list[RequestSpec]:
    names = ("greedy", "temperature", "repetition", "bad-words", "everything", "hot")
    return [ask(name, n, max_tokens=10 + 7 * n) for n, name in enumerate(names)]


def _drafter(specs: list[RequestSpec], right: int) -> ScriptedDrafter:
    texts = {spec.prompt_ids: whole_text(spec) for spec in specs}
    return ScriptedDrafter(texts, always(right), VOCAB_SIZE, K_MAX)


@pytest.mark.parametrize("right", [0, 3, 8])
def test_what_nobody_owns_is_never_read(right: int) -> None:
    """B02, B04: rejected drafts, ends of pages, free pages, the null page, empty seats."""
    specs = _mixed()
    bench = Poisoned(
        _drafter(specs, right),
        static_plan("scripted", 8),
        limits=SchedulerLimits(4, max_context_tokens=256, prefill_chunk_tokens=24),
        eos_token_ids=(2, 0),
    )
    assert_undisturbed(Way(), specs, run(bench, specs))


@pytest.mark.parametrize("tokens", [1, 14, 40, 55, 56, 57, 63, 64, 65])
def test_drafts_at_the_edge_of_a_page_between_guards(tokens: int) -> None:
    """B04: K = 8 behind prompts of any length; all other pages hold what must not be read."""
    spec = request(prompt(0, tokens), 30, top_logprobs=1)
    bench = Poisoned(_drafter([spec], 5), static_plan("scripted", 8), eos_token_ids=(2, 0))
    assert_undisturbed(Way(), [spec], run(bench, [spec]))


T = TypeVar("T")


def _repeat(work: Callable[[], T]) -> Callable[[], T]:
    """A capture that does the work again."""
    work()
    return work


class Captured:
    """Makes a runner replay its rounds from static buffers, by row bucket."""

    def __init__(self) -> None:
        self.forwards: CapturedForwards | None = None

    def __call__(self, runner: Runner) -> Runner:
        programs = runner._programs
        table = programs.seats.page_table
        buckets = (1, 2, 4, 8, 16, 32, 64, 128)
        self.forwards = CapturedForwards(programs.model, programs.pool, table, buckets, _repeat)
        runner._programs = replace(programs, forwards=self.forwards)
        return runner


@pytest.mark.parametrize("way", [IN_STEP, AHEAD], ids=lambda way: way.mode)
def test_a_batch_that_shrinks_over_captured_buckets(way: Way) -> None:
    """B02, B18: from many rows down to one, padded up to buckets, K changing at every step."""
    specs, captured = _mixed(), Captured()
    with opened(way, specs, plan=None, wrap_runner=captured) as bench:
        plans = bench.plans.open_stream()
        answers = [submit(bench, spec) for spec in specs]
        for version in range(1, 200):
            plan = static_plan("scripted", (0, 8, 3, 1, 5)[version % 5], version=version)
            bench.plans.offer(plans, plan, 0.0)
            bench.step()
            if bench.engine.idle:
                break
        rounds = [record for record in bench.records if record.requests]
    assert_undisturbed(way, specs, answers)
    assert captured.forwards is not None
    assert not captured.forwards.fallbacks
    assert {record.requests for record in rounds} >= {1, 2, 3, 4}
    assert any(record.bucket_rows > record.target_rows for record in rounds)


@pytest.mark.parametrize("way", [IN_STEP, AHEAD], ids=lambda way: way.mode)
def test_prompts_that_end_anywhere_around_a_chunk(way: Way) -> None:
    """A26: rows of a prefill are never looked for where a round's rows are."""
    chunk = LIMITS.chunk_tokens
    specs = [
        ask("logprobs", prompt_ids=prompt(n, 60)[:tokens], max_tokens=10)
        for n, tokens in enumerate([*range(chunk - 5, chunk + 6), 2 * chunk, 2 * chunk + 1, 1, 2])
    ]
    assert_undisturbed(way, specs, serve(way, specs))


@pytest.mark.parametrize("way", [IN_STEP, AHEAD], ids=lambda way: way.mode)
def test_choices_share_the_pages_of_their_prompt(way: Way) -> None:
    """n = 4: the prompt is computed once, and each choice has noise of its own."""
    shared = prompt(1, 149)
    specs = [
        replace(ask("hot", prompt_ids=shared), key=replace(ask("hot").key, choice_index=choice))
        for choice in range(4)
    ]
    with opened(way, specs) as bench:
        answers = [submit(bench, spec) for spec in specs]
        most_pages = 0
        while not bench.engine.idle or not bench.records:
            bench.step()
            most_pages = max(most_pages, bench.pages.used_pages)
        bench.check_conservation()
    assert_undisturbed(way, specs, answers)
    assert sorted(answer.cached_prompt_tokens for answer in answers) == [0, 128, 128, 128]
    assert most_pages == 2 + 4
    assert len({tuple(answer.token_ids) for answer in answers}) == 4
    prefilled = sum(record.prefill_tokens for record in bench.records)
    assert prefilled == 150 + 3 * (150 - 128)


def test_tenants_share_text_but_no_pages() -> None:
    """Another salt finds nothing, the same one does; the answer is the same for all."""
    base = ask("hot", prompt_ids=prompt(2, 140))
    salted = [
        replace(base, key=request((1,)).key, tenant_salt=salt) for salt in (b"a", b"b", b"a", b"")
    ]
    with opened(IN_STEP, [base]) as bench:
        answers = [run(bench, [spec])[0] for spec in salted]
    assert [answer.cached_prompt_tokens for answer in answers] == [0, 0, 128, 0]
    assert {tuple(answer.token_ids) for answer in answers} == {tuple(alone(base).token_ids)}


def test_a_chat_reuses_as_much_with_drafts_as_without() -> None:
    """B11: five turns, each with all that was said before."""
    cached: dict[int, list[int]] = {}
    for draft_tokens in (0, 7):
        text, cached[draft_tokens] = list(prompt(0, 70)), []
        with opened(Way("ngram", draft_tokens), []) as bench:
            for turn in range(5):
                spec = request(text, 30, ignore_eos=True, temperature=0.3, seed=turn)
                (answer,) = run(bench, [spec])
                cached[draft_tokens].append(answer.cached_prompt_tokens)
                text += [*answer.token_ids, *prompt(turn, 5)]
    assert cached[0] == cached[7]
    assert cached[0][0] == 0
    assert cached[0][-1] >= 128


@pytest.mark.parametrize("way", [IN_STEP, AHEAD], ids=lambda way: way.mode)
def test_one_that_drafts_into_a_full_pool_harms_nobody(way: Way) -> None:
    """B16: four requests, room for hardly more than what they say without drafts."""
    specs = [ask("greedy", n, max_tokens=70, top_logprobs=None) for n in range(4)]
    with opened(way, specs, pool_pages=1 + 8) as bench:
        answers = run(bench, specs)
    assert_undisturbed(way, specs, answers)


@pytest.mark.parametrize("mode", ["in-step", "ahead"])
def test_ids_that_the_target_does_not_know_never_reach_it(mode: str) -> None:
    """B22: drafted on the device, where the host may not have seen them before they are judged."""

    class Foreign(DeviceScripted):
        def propose(self, batch: DraftBatch, tokens: int) -> DeviceDrafts:
            drafts = super().propose(batch, tokens)
            drafts.token_ids[:, 2:] = VOCAB_SIZE + 5
            return drafts

    specs = [ask("greedy", n) for n in range(3)]
    texts = {spec.prompt_ids: whole_text(spec) for spec in specs}
    stream = EmulatedStream() if mode == "ahead" else ImmediateStream()
    bench = Bench(
        device_drafter=Foreign(texts, [8], VOCAB_SIZE),
        plan=static_plan("scripted", 5),
        stream=stream,
        eos_token_ids=(2, 0),
    )
    answers = run(bench, specs)
    stream.close()
    assert_undisturbed(Way(), specs, answers)
    verified = {o.verified for record in bench.records for o in record.outcomes}
    assert max(verified) == 2
