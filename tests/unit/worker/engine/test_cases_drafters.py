"""What a drafter is told, when, and for whom: one request's drafts never hang on another's."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from outrider_worker.engine.drafters import Drafters
from outrider_worker.engine.feeding import DROP_AFTER_ROUNDS
from outrider_worker.engine.scheduler import SchedulerLimits
from outrider_worker.engine.types import Draft, RequestKey, RequestSpec
from outrider_worker.speculate.device import DeviceDrafts, DraftBatch
from outrider_worker.speculate.device_ngram import DeviceNgramDrafter
from outrider_worker.speculate.drafter import Ask
from outrider_worker.speculate.ngram import NgramDrafter
from outrider_worker.speculate.scripted import ScriptedDrafter, always
from outrider_worker.streams import EmulatedStream, ImmediateStream
from tests.support.device_scripted import DeviceScripted
from tests.support.engines import Bench, request, static_plan
from tests.support.laws import (
    K_MAX,
    Way,
    alone,
    ask,
    opened,
    prompt,
    run,
    serve,
)
from tests.support.tiny_models import VOCAB_SIZE

LOOPING = tuple((token, 6.0) for token in (40, 50, 60))
"""Biases under which the tiny model says few different tokens, in turns that a lookup finds."""


class WatchedNgram(NgramDrafter):
    """Notes what it proposes, by request and by how many tokens it has been told."""

    def __init__(self) -> None:
        super().__init__(K_MAX)
        self.told: dict[RequestKey, list[int]] = {}
        self.proposed: dict[tuple[RequestKey, int], tuple[int, ...]] = {}
        self.fed: list[tuple[str, int]] = []

    def prefill(self, key: RequestKey, token_ids: Sequence[int], features: object = None) -> None:
        super().prefill(key, token_ids)
        self.told[key] = list(token_ids)
        self.fed.append(("prefill", len(token_ids)))

    def observe(self, key: RequestKey, token_ids: Sequence[int], features: object = None) -> None:
        super().observe(key, token_ids)
        self.told[key].extend(token_ids)
        self.fed.append(("observe", len(token_ids)))

    def release(self, key: RequestKey) -> None:
        super().release(key)
        del self.told[key]

    def propose(self, asks: Sequence[Ask]) -> list[Draft]:
        drafts = super().propose(asks)
        for each, draft in zip(asks, drafts, strict=True):
            if each.tokens:
                self.proposed[each.key, len(self.told[each.key])] = draft.token_ids
        return drafts


def _looping(number: int = 0, max_tokens: int = 180) -> RequestSpec:
    return ask("temperature", number, logit_bias=LOOPING, max_tokens=max_tokens, top_logprobs=None)


def _run_with_pause(off: range) -> tuple[WatchedNgram, Bench]:
    """One request, K = 4 but for the steps in `off`."""
    spec, drafter = _looping(), WatchedNgram()
    bench = Bench(drafter)
    stream = bench.plans.open_stream()
    answer = bench.submit(spec)
    for step in range(1, 400):
        plan = static_plan("ngram", 0 if step in off else 4, version=step)
        bench.plans.offer(stream, plan, 0.0)
        bench.step()
        if bench.engine.idle:
            break
    assert answer.token_ids == alone(spec).token_ids
    return drafter, bench


@pytest.mark.parametrize("pause", [10, DROP_AFTER_ROUNDS - 1, DROP_AFTER_ROUNDS + 6])
def test_acceptance_resumes_after_a_pause(pause: int) -> None:
    """B14: what it was not told meanwhile it is told at once, or all anew if it was let go of.

    Drafts after the pause are those that a drafter which never paused makes at the same places.
    """
    steady, _ = _run_with_pause(range(0))
    paused, bench = _run_with_pause(range(12, 12 + pause))
    resumed = next(r.round for r in bench.records if r.round > 12 + pause and r.pool_tokens)
    assert sum(r.accepted_tokens for r in bench.records if r.round >= resumed) > 0
    by_length = [{n: ids for (_, n), ids in each.proposed.items()} for each in (steady, paused)]
    common = by_length[0].keys() & by_length[1].keys()
    assert len(common) > 10
    assert {n: by_length[0][n] for n in common} == {n: by_length[1][n] for n in common}
    prefills = [tokens for how, tokens in paused.fed if how == "prefill"]
    assert len(prefills) == (2 if pause >= DROP_AFTER_ROUNDS else 1)


def test_nothing_is_fed_while_nothing_is_drafted() -> None:
    """B14: what 40 rounds and the one before the next draft brought comes in one piece."""
    paused, _ = _run_with_pause(range(12, 52))
    assert max(tokens for how, tokens in paused.fed if how == "observe") == 41


@pytest.mark.parametrize("cut", ["stop", "cap", "cancel"])
def test_no_draft_is_made_for_a_request_that_has_ended(cut: str) -> None:
    """A07: nor is anything kept of it."""
    spec, drafter = _looping(max_tokens=40 if cut == "cap" else 180), WatchedNgram()
    text = alone(spec).token_ids
    if cut == "stop":
        stop = frozenset({max(text, key=text.index)})
        spec = replace(spec, sampling=replace(spec.sampling, stop_token_ids=stop))
    bench = Bench(drafter, static_plan("ngram", 7))
    answer, other = bench.submit(spec), bench.submit(_looping(1))
    for _ in range(8):
        bench.step()
    if cut == "cancel":
        bench.cancel(spec.key)
    bench.run()
    assert answer.token_ids == text[: len(answer.token_ids)]
    assert drafter.told == {}
    last = max(n for key, n in drafter.proposed if key == spec.key)
    assert last <= len(spec.prompt_ids) + len(answer.token_ids)
    assert other.token_ids == alone(_looping(1)).token_ids


_PLACES: dict[str, Callable[[], Drafters]] = {
    "ngram": lambda: Drafters([WatchedNgram()]),
    "device-ngram": lambda: Drafters(devices=[WatchedDevice()]),
}


class WatchedDevice(DeviceNgramDrafter):
    """Notes the ids it has proposed."""

    def __init__(self) -> None:
        super().__init__(K_MAX)
        self.ids: set[int] = set()

    def propose(self, batch: DraftBatch, tokens: int) -> DeviceDrafts:
        drafts = super().propose(batch, tokens)
        for line, length in zip(drafts.token_ids, drafts.lengths, strict=True):
            self.ids.update(line[: int(length)].tolist())
        return drafts


@pytest.mark.parametrize("place", sorted(_PLACES))
def test_a_seat_keeps_nothing_of_who_sat_there(place: str) -> None:
    """B15: a long request, then a short one on the same seat: as on a fresh engine."""
    long = request([200 + n % 9 for n in range(160)], 60)
    short = request(prompt(1, 20), 40, logit_bias=((40, 4.0), (50, 3.8)))
    limits = SchedulerLimits(1, max_context_tokens=256)
    totals = []
    for specs in ([long, short], [short]):
        drafters = _PLACES[place]()
        bench = Bench(plan=static_plan("ngram", 7), drafters=drafters, limits=limits)
        run(bench, specs[:-1])
        watched = drafters.device.get("ngram")
        if isinstance(watched, WatchedDevice):
            watched.ids.clear()
        (answer,) = run(bench, [short])
        totals.append(answer.totals)
        assert answer.token_ids == alone(short).token_ids
        own = {*short.prompt_ids, *answer.token_ids}
        looking = drafters.host.get("ngram")
        if isinstance(watched, WatchedDevice):
            assert watched.ids <= own
        elif isinstance(looking, WatchedNgram):
            drafts = looking.proposed
            assert {t for (key, _), d in drafts.items() if key == short.key for t in d} <= own
        bench.answers.clear()
    assert totals[0] == totals[1]
    assert totals[0] is not None
    assert totals[0].accepted_tokens > 0


@pytest.mark.parametrize(
    "way",
    [
        Way("ngram", 4),
        Way("list", 4),
        Way("device-ngram", 4, "ahead"),
        Way("device-scripted", 4, "ahead"),
    ],
    ids=lambda way: way.drafter,
)
def test_acceptance_does_not_depend_on_neighbours(way: Way) -> None:
    """B21: counts of a request alone and among others, to the last draft."""
    specs = [_looping(number, 50) for number in range(4)]
    together = serve(way, specs)
    for spec, answer in zip(specs, together, strict=True):
        (single,) = serve(way, [spec])
        assert answer.totals is not None
        assert answer.totals == single.totals
        assert answer.totals.accepted_tokens > 0


@pytest.mark.parametrize("way", [Way("ngram", 4), Way("device-ngram", 4, "ahead")])
def test_cached_tokens_are_known_to_the_drafter(way: Way) -> None:
    """B10: the same prompt again: found in the cache, drafted for as well as the first time."""
    specs = [
        ask("greedy", prompt_ids=prompt(3, 150), logit_bias=LOOPING, max_tokens=60)
        for _ in range(2)
    ]
    with opened(way, specs) as bench:
        (first,) = run(bench, specs[:1])
        (second,) = run(bench, specs[1:])
    assert (first.cached_prompt_tokens, second.cached_prompt_tokens) == (0, 128)
    assert second.token_ids == first.token_ids
    assert second.totals == first.totals
    assert first.totals is not None
    assert first.totals.accepted_tokens > 0


@pytest.mark.parametrize("on_device", [False, True])
def test_a_drafter_that_is_always_right_stays_right(on_device: bool) -> None:
    """B13: 250 tokens without one rejection; no place is left out and none is judged twice."""
    spec = request(prompt(0), 250, repetition_penalty=1.1)
    limits = SchedulerLimits(2, max_context_tokens=320)
    texts = {spec.prompt_ids: run(Bench(limits=limits), [spec])[0].token_ids}
    stream = EmulatedStream() if on_device else ImmediateStream()
    host = None if on_device else ScriptedDrafter(texts, always(4), VOCAB_SIZE, 4)
    device = DeviceScripted(texts, [4], VOCAB_SIZE, 4) if on_device else None
    plan = static_plan("scripted", 4)
    bench = Bench(host, plan, device_drafter=device, stream=stream, limits=limits)
    (answer,) = run(bench, [spec])
    stream.close()
    assert answer.token_ids == texts[spec.prompt_ids]
    assert answer.totals is not None
    assert answer.totals.accepted_tokens == answer.totals.verified_tokens
    assert answer.totals.verify_steps == 50
    assert answer.totals.acceptance_histogram[4] >= 49
