"""Running ahead over an emulated device: order, late results, aborts, preemptions, wasted rows."""

import itertools
from collections.abc import Iterator

import pytest

from outrider_worker.engine.guard import Guard, GuardRound
from outrider_worker.engine.records import LaunchMode
from outrider_worker.engine.scheduler import SchedulerLimits
from outrider_worker.engine.types import Finish, FinishReason, RequestSpec
from outrider_worker.speculate.device import DeviceDrafts, DraftBatch
from outrider_worker.speculate.device_ngram import DeviceNgramDrafter
from outrider_worker.speculate.ngram import NgramDrafter
from outrider_worker.streams import EmulatedStream
from tests.support.device_scripted import DeviceScripted
from tests.support.engines import (
    Bench,
    greedy_text,
    prompts,
    request,
    static_plan,
    ticking,
    undisturbed,
)
from tests.support.tiny_models import VOCAB_SIZE
from tests.support.virtual_stream import HostClock, VirtualStream

PROMPTS = prompts(4)


@pytest.fixture
def stream() -> Iterator[EmulatedStream]:
    stream = EmulatedStream()
    yield stream
    stream.close()


def _scripted(*right: int, sparse: bool = False) -> DeviceScripted:
    continuations = {prompt: greedy_text(prompt, 64) for prompt in PROMPTS}
    return DeviceScripted(continuations, right, VOCAB_SIZE, sparse=sparse)


def _mixed(max_tokens: int = 40) -> list[RequestSpec]:
    """Greedy and seeded requests next to one another."""
    return [
        request(prompt, max_tokens, temperature=temperature, seed=11)
        for prompt, temperature in zip(PROMPTS, (0.0, 0.8, 0.0, 1.2), strict=True)
    ]


def _modes(bench: Bench) -> set[LaunchMode]:
    return {record.launch_mode for record in bench.records if record.requests}


@pytest.mark.parametrize("tokens", [0, 1, 3, 7])
def test_ahead_gives_the_undisturbed_text(stream: EmulatedStream, tokens: int) -> None:
    bench = Bench(
        device_drafter=_scripted(8, 0, 3, 1), plan=static_plan("scripted", tokens), stream=stream
    )
    specs = _mixed()
    answers = bench.run(*specs)
    assert [a.token_ids for a in answers] == [undisturbed(spec) for spec in specs]
    assert _modes(bench) == {LaunchMode.AHEAD}
    if tokens:
        assert sum(record.accepted_tokens for record in bench.records) > 0


def test_an_immediate_device_takes_the_same_drafter_in_step() -> None:
    bench = Bench(device_drafter=_scripted(8, 0, 3, 1), plan=static_plan("scripted", 3))
    specs = _mixed()
    answers = bench.run(*specs)
    assert [a.token_ids for a in answers] == [undisturbed(spec) for spec in specs]
    assert _modes(bench) == {LaunchMode.IN_STEP}


@pytest.mark.parametrize("budget", [0, 1, 3, 6])
def test_the_device_picks_within_the_budget(stream: EmulatedStream, budget: int) -> None:
    """Four requests with three drafts each, and V rows for them: unread, so picked there."""
    plan = static_plan("scripted", 3, verify=lambda n, d: min(budget, n * d))
    bench = Bench(device_drafter=_scripted(8, 1), plan=plan, stream=stream)
    specs = _mixed()
    answers = bench.run(*specs)
    assert [a.token_ids for a in answers] == [undisturbed(spec) for spec in specs]
    full = [r for r in bench.records if r.requests == 4 and r.pool_tokens == 12]
    assert full
    assert {record.verified_tokens for record in full} == {budget}


def test_missing_drafts_of_a_sparse_drafter_become_padding(stream: EmulatedStream) -> None:
    bench = Bench(
        device_drafter=_scripted(8, sparse=True), plan=static_plan("scripted", 4), stream=stream
    )
    specs = _mixed()
    answers = bench.run(*specs)
    assert [a.token_ids for a in answers] == [undisturbed(spec) for spec in specs]
    assert any(r.bucket_rows > r.target_rows for r in bench.records if r.requests)


def test_rows_for_drafts_that_never_came_are_no_plain_round_to_the_guard(
    stream: EmulatedStream,
) -> None:
    """Their cost must not pass for a slow machine: it would be forgiven for ever."""
    rounds: list[GuardRound] = []

    class Watched(Guard):
        def observe(self, round_: GuardRound, now_s: float) -> None:
            rounds.append(round_)

    bench = Bench(
        device_drafter=_scripted(8, sparse=True),
        plan=static_plan("scripted", 4),
        stream=stream,
        guard=Watched(),
    )
    bench.run(request(PROMPTS[0], 40))
    assert any(r.carried_draft_tokens and not r.verified_tokens for r in bench.records)
    assert all(each.extra_rows > 0 for each in rounds if each.speculative)


def test_plans_that_change_every_step(stream: EmulatedStream) -> None:
    bench = Bench(device_drafter=_scripted(2, 7, 0), stream=stream)
    plans = bench.plans.open_stream()
    specs = _mixed()
    answers = [bench.submit(spec) for spec in specs]
    for version, tokens in enumerate(itertools.cycle([0, 5, 1, 8, 0, 0, 3]), 1):
        bench.plans.offer(plans, static_plan("scripted", tokens, version=version), 0.0)
        bench.step()
        if bench.engine.idle:
            break
    assert [a.token_ids for a in answers] == [undisturbed(spec) for spec in specs]
    bench.check_conservation()


@pytest.mark.parametrize("steps", range(1, 9))
def test_an_abort_at_any_point_disturbs_nobody(stream: EmulatedStream, steps: int) -> None:
    """B08: its row in flight is dropped whole; what it had got is a beginning of its text."""
    bench = Bench(device_drafter=_scripted(3, 5), plan=static_plan("scripted", 5), stream=stream)
    specs = _mixed()
    answers = [bench.submit(spec) for spec in specs]
    for _ in range(steps):
        bench.step()
    bench.cancel(specs[1].key)
    bench.run()
    texts = [undisturbed(spec) for spec in specs]
    assert answers[1].token_ids == texts[1][: len(answers[1].token_ids)]
    assert answers[1].end == Finish(FinishReason.CANCELLED)
    assert [answers[i].token_ids for i in (0, 2, 3)] == [texts[i] for i in (0, 2, 3)]


@pytest.mark.parametrize("drafts", [0, 1, 3, 5])
@pytest.mark.parametrize("steps", [2, 3, 5, 6])
def test_a_preemption_at_any_point_leaves_the_text(
    stream: EmulatedStream, steps: int, drafts: int
) -> None:
    """B08: preempted twice in a row while its round is in flight."""
    bench = Bench(
        device_drafter=_scripted(8, 2), plan=static_plan("scripted", drafts), stream=stream
    )
    specs = _mixed()
    answers = [bench.submit(spec) for spec in specs]
    for _ in range(2):
        for _ in range(steps):
            bench.step()
        if bench.scheduler.running:
            bench.scheduler.preempt(bench.scheduler.running[-1])
    bench.run()
    assert [a.token_ids for a in answers] == [undisturbed(spec) for spec in specs]


def test_a_pool_for_hardly_one_serves_all_ahead(stream: EmulatedStream) -> None:
    """B16, B17: room is made again and again while rounds are in flight."""
    bench = Bench(
        device_drafter=_scripted(8, 0, 4),
        plan=static_plan("scripted", 8),
        stream=stream,
        pool_pages=7,
    )
    specs = _mixed(180)
    answers = bench.run(*specs)
    assert [a.token_ids for a in answers] == [undisturbed(spec) for spec in specs]
    assert bench.scheduler.preemptions > 0


def test_a_seat_is_taken_over_while_its_last_round_is_in_flight(stream: EmulatedStream) -> None:
    """One seat, many requests: each sits down right behind the wasted row of the one before."""
    limits = SchedulerLimits(1, max_context_tokens=256)
    bench = Bench(
        device_drafter=_scripted(4), plan=static_plan("scripted", 4), stream=stream, limits=limits
    )
    specs = [request(PROMPTS[n % 4], 5 + n, seed=n, temperature=0.5 * (n % 2)) for n in range(9)]
    answers = bench.run(*specs)
    assert [a.token_ids for a in answers] == [undisturbed(spec) for spec in specs]


def test_stop_tokens_in_flight(stream: EmulatedStream) -> None:
    """The host learns of an end one round late; nothing behind it is told."""
    text = greedy_text(PROMPTS[0], 40)
    for place in (0, 1, 7, 20):
        stop = text[place]
        bench = Bench(device_drafter=_scripted(8), plan=static_plan("scripted", 6), stream=stream)
        (answer,) = bench.run(request(PROMPTS[0], 40, stop_token_ids=frozenset({stop})))
        assert answer.token_ids == text[: text.index(stop)]
        assert answer.end == Finish(FinishReason.STOP_TOKEN, stop)


def test_ngram_drafts_in_both_places_and_takes_the_cheaper(stream: EmulatedStream) -> None:
    """Tried in step first; with rows that cost nothing more, it goes ahead afterwards."""
    bench = Bench(
        NgramDrafter(8),
        static_plan("ngram", 4),
        device_drafter=DeviceNgramDrafter(8),
        stream=stream,
        now_s=ticking(1.0),  # the host is slow, however busy the machine is
    )
    specs = [request(PROMPTS[0], 160)]
    answers = bench.run(*specs)
    assert [a.token_ids for a in answers] == [undisturbed(spec) for spec in specs]
    modes = [r.launch_mode for r in bench.records if r.requests and r.carried_draft_tokens]
    assert modes[0] is LaunchMode.IN_STEP
    assert modes[-1] is LaunchMode.AHEAD


def test_a_host_drafter_keeps_an_asynchronous_device_in_step(stream: EmulatedStream) -> None:
    bench = Bench(NgramDrafter(8), static_plan("ngram", 4), stream=stream)
    specs = _mixed()
    answers = bench.run(*specs)
    assert [a.token_ids for a in answers] == [undisturbed(spec) for spec in specs]
    assert _modes(bench) == {LaunchMode.IN_STEP}


@pytest.mark.parametrize(("host_s", "exposed_s"), [(0.002, 0.0), (0.030, 0.010)])
def test_host_time_is_hidden_as_far_as_the_device_is_busy(host_s: float, exposed_s: float) -> None:
    """A round takes the device 20 ms; what the host needs beyond that is exposed."""
    clock = HostClock()
    bench = Bench(
        device_drafter=_scripted(8),
        plan=static_plan("scripted", 2),
        stream=VirtualStream(clock, work_s=0.010),  # a forward and what follows it
        now_s=clock,
    )
    bench.submit(request(PROMPTS[0], 60))
    for _ in range(12):
        clock.now_s += host_s
        bench.step()
    times = [record.times for record in bench.records if record.requests][2:]
    assert [t.target_s for t in times] == pytest.approx([0.020] * len(times))
    assert [t.exposed_host_s for t in times] == pytest.approx([exposed_s] * len(times))
    assert [t.hidden_host_s for t in times] == pytest.approx([host_s - exposed_s] * len(times))
    assert [t.total_s for t in times] == pytest.approx([0.020 + exposed_s] * len(times))


def test_in_step_all_host_time_is_exposed() -> None:
    clock = HostClock()
    bench = Bench(
        NgramDrafter(8),
        static_plan("ngram", 2),
        stream=VirtualStream(clock, work_s=0.010),
        now_s=clock,
    )
    bench.submit(request(PROMPTS[0], 60))
    for _ in range(12):
        bench.step()
        clock.now_s += 0.005  # between two steps: another's time, in no record
    times = [record.times for record in bench.records if record.requests][2:]
    assert {t.hidden_host_s for t in times} == {0.0}
    assert [t.total_s for t in times] == pytest.approx([0.020] * len(times))


def test_a_device_error_ends_the_engine(stream: EmulatedStream) -> None:
    class Broken(DeviceScripted):
        def propose(self, batch: DraftBatch, tokens: int) -> DeviceDrafts:
            raise RuntimeError("the device has failed")

    bench = Bench(
        device_drafter=Broken({}, [1], VOCAB_SIZE), plan=static_plan("scripted", 2), stream=stream
    )
    bench.submit(request(PROMPTS[0], 20))
    with pytest.raises(RuntimeError, match="the device has failed"):
        bench.run()
