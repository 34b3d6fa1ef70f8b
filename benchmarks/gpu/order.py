"""Running ahead on the device's own stream: the order of events, late results, aborts.

A tiny model in float32 with n-gram drafts made on the device, more requests than seats, some
cancelled on their way. Every text must be what the CPU writes for that prompt alone (of a cancelled
one, its beginning). Then rounds once more, with torch told to raise where the host would wait.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from benchmarks.gpu.engines import Bench, static_plan
from benchmarks.gpu.machine import Machine
from benchmarks.gpu.models import CPU, random_model, tiny_config
from benchmarks.gpu.scene import Scene
from outrider_worker.engine.records import LaunchMode, RoundRecord
from outrider_worker.engine.scheduler import SchedulerLimits
from outrider_worker.speculate.device_ngram import DeviceNgramDrafter
from outrider_worker.speculate.verify import SamplerMatch

DRAFT_TOKENS = 3
_CANCEL_EVERY = 5
_LIMITS = SchedulerLimits(
    max_running_requests=6, max_context_tokens=256, max_rows_per_forward=32, prefill_chunk_tokens=24
)


def check(machine: Machine) -> dict[str, Any]:
    """Texts compared, cancelled ones among them, and how the rounds were launched."""
    tokens = 80 if machine.dry else 160
    prompts = _prompts(8 if machine.dry else 40)
    records: list[RoundRecord] = []
    bench = _bench(machine)
    engine = bench.engine(static_plan("ngram", DRAFT_TOKENS, 6), records.append)
    for number, prompt in enumerate(prompts):
        engine.submit(str(number), prompt, tokens)
        engine.step()
        if number % _CANCEL_EVERY == _CANCEL_EVERY - 1:
            engine.cancel(str(number - 1))
    engine.run()
    expected = _alone(prompts, tokens)
    texts = [engine.texts[str(number)] for number in range(len(prompts))]
    cut = sum(len(text) < tokens for text in texts)
    accepted = sum(record.accepted_tokens for record in records)
    wrong = sum(text != whole[: len(text)] for text, whole in zip(texts, expected, strict=True))
    modes = {mode.value: sum(r.launch_mode is mode for r in records) for mode in LaunchMode}
    waits = _waits(machine, bench, prompts[:6], tokens)
    exercised = accepted > 0 and 0 < cut <= len(prompts) // _CANCEL_EVERY and modes["ahead"] > 0
    return {
        "ok": wrong == 0 and exercised and waits is None,
        "texts": len(texts),
        "cancelled": cut,
        "wrong": wrong,
        "accepted_tokens": accepted,
        "launch_modes": modes,
        "host_waited": waits,
    }


def _bench(machine: Machine) -> Bench:
    model = random_model(tiny_config("llama"), machine.device, torch.float32, machine.attention)
    drafter = DeviceNgramDrafter(DRAFT_TOKENS)
    stream = machine.stream()
    return Bench.over(
        model, stream, torch.float32, machine.device, _LIMITS, SamplerMatch(), drafter
    )


def _prompts(count: int) -> list[list[int]]:
    """A few tokens over and over, so that drafts are found."""
    return [[3 + (line + place % 4) % 250 for place in range(8 + line)] for line in range(count)]


def _alone(prompts: list[list[int]], tokens: int) -> list[list[int]]:
    """What the CPU writes; its texts do not depend on company, so all are run at once."""
    model = random_model(tiny_config("llama"), CPU, torch.float32, "blocks")
    return Scene(model, CPU, torch.float32, prompts, 256).greedy(tokens)


def _waits(machine: Machine, bench: Bench, prompts: list[list[int]], tokens: int) -> str | None:
    """What made the host wait in rounds without arrivals; None if nothing did."""
    engine = bench.engine(static_plan("ngram", DRAFT_TOKENS, 6), lambda record: None)
    for number, prompt in enumerate(prompts):
        engine.submit(str(number), prompt, tokens)
    while not engine.scheduler.decoding() or engine.scheduler.waiting_requests:
        engine.step()
    try:
        with _raising_where_the_host_waits(machine):
            engine.run()
    except RuntimeError as error:
        return str(error).partition("\n")[0]
    return None


@contextmanager
def _raising_where_the_host_waits(machine: Machine) -> Iterator[None]:
    if machine.device.type != "cuda":
        yield
        return
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")
