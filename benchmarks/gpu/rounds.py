"""Whole rounds of an 8B shape under synthetic acceptance: off, static and two_stage by load.

Random weights, so the text is noise and acceptance is made to order (speculate.synthetic); times
are what a trained model of this shape would take. Counted are rounds in which all n requests
get tokens and nothing is prefilled.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.gpu.engines import Bench, static_plan
from benchmarks.gpu.machine import Machine
from benchmarks.gpu.plans import two_stage_plan
from outrider_planner.core.types import WorkerLimits
from outrider_worker.engine.plans import Plan
from outrider_worker.engine.records import RoundRecord
from outrider_worker.engine.scheduler import SchedulerLimits
from outrider_worker.model.base import CausalLM
from outrider_worker.speculate.synthetic import SyntheticDrafter, SyntheticVerifier

SURVIVAL = (0.75, 0.55, 0.40, 0.29, 0.21, 0.15, 0.11)
"""P(the first j drafts are accepted): a good drafter on chat."""

STATIC_TOKENS = 3


@dataclass(frozen=True)
class Sizes:
    """requests: the loads, ascending. Every prompt and every answer has the same length."""

    requests: tuple[int, ...]
    prompt_tokens: int
    answer_tokens: int
    chunk_tokens: int

    @classmethod
    def of(cls, machine: Machine) -> Sizes:
        if machine.dry:
            return cls((1, 2), prompt_tokens=12, answer_tokens=16, chunk_tokens=64)
        return cls((1, 16, 64, 128), prompt_tokens=512, answer_tokens=256, chunk_tokens=2048)

    @property
    def limits(self) -> SchedulerLimits:
        most = self.requests[-1]
        return SchedulerLimits(
            max_running_requests=most,
            max_context_tokens=self.prompt_tokens + self.answer_tokens,
            max_rows_per_forward=most * (1 + STATIC_TOKENS),
            prefill_chunk_tokens=self.chunk_tokens,
        )


@dataclass
class Counted:
    """The rounds that count, and when each was over."""

    requests: int
    records: list[RoundRecord] = field(default_factory=list)
    ends_s: list[float] = field(default_factory=list)

    def add(self, record: RoundRecord) -> None:
        everyone = record.requests == self.requests <= record.emitted_tokens
        if everyone and not record.prefill_tokens:
            self.records.append(record)
            self.ends_s.append(time.perf_counter())

    def summary(self, plan: Plan) -> dict[str, Any]:
        timed = self.records[1:]
        times, count = [record.times for record in timed], len(timed)
        span_s = self.ends_s[-1] - self.ends_s[0]
        emitted = sum(record.emitted_tokens for record in timed)
        buckets = Counter(record.bucket_rows for record in timed)
        return {
            "policy": plan.policy,
            "requests": self.requests,
            "rounds": count,
            "tokens_per_s": round(emitted / span_s, 1),
            "tokens_per_request_round": round(emitted / count / self.requests, 3),
            "bucket_rows": {str(size): rounds for size, rounds in sorted(buckets.items())},
            "round_ms": _mean_ms([span_s], count),
            "target_ms": _mean_ms([each.target_s for each in times], count),
            "draft_ms": _mean_ms([each.draft_s for each in times], count),
            "hidden_host_ms": _mean_ms([each.hidden_host_s for each in times], count),
            "exposed_host_ms": _mean_ms([each.exposed_host_s for each in times], count),
            "reason": plan.reason,
        }


def _mean_ms(seconds: list[float], count: int) -> float:
    return round(sum(seconds) / count * 1e3, 3)


def check(machine: Machine, model: CausalLM) -> dict[str, Any]:
    """One entry for each load and policy, and the launches that no graph served."""
    sizes = Sizes.of(machine)
    bench = _bench(machine, model, sizes)
    most = sizes.requests[-1]
    fixed = [static_plan("synthetic", tokens, most) for tokens in (0, STATIC_TOKENS)]
    measured = [_run(bench, sizes, n, plan) for n in sizes.requests for plan in fixed]
    records = [record for counted in measured for record in counted.records]
    limits = WorkerLimits(most, sizes.limits.max_rows_per_forward, len(SURVIVAL))
    pads_rows = machine.device.type == "cuda"
    planned = two_stage_plan("synthetic", SURVIVAL, records, limits, pads_rows)
    entries = [counted.summary(fixed[at % 2]) for at, counted in enumerate(measured)]
    entries += [_run(bench, sizes, n, planned).summary(planned) for n in sizes.requests]
    for entry in entries:
        print(f"  n={entry['requests']} {entry['policy']}: {entry['tokens_per_s']} tokens/s")
    fallbacks = {str(rows): n for rows, n in bench.programs.forwards.fallbacks.items()}
    return {
        "ok": not fallbacks,
        "rounds": entries,
        "two_stage_to_best": _to_best(entries),
        "fallbacks": fallbacks,
        "survival": SURVIVAL,
    }


def _to_best(entries: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """By load: the planned speed over that of the better of off and static."""
    speeds: dict[int, dict[str, float]] = defaultdict(dict)
    for entry in entries:
        speeds[entry["requests"]][entry["policy"]] = entry["tokens_per_s"]
    return {
        str(n): round(by_policy.pop("two_stage") / max(by_policy.values()), 3)
        for n, by_policy in speeds.items()
    }


def _bench(machine: Machine, model: CausalLM, sizes: Sizes) -> Bench:
    return Bench.over(
        model,
        machine.stream(),
        machine.dtype,
        machine.device,
        sizes.limits,
        SyntheticVerifier(SURVIVAL, seed=0, device=machine.device),
        SyntheticDrafter(SURVIVAL, machine.device),
    )


def _run(bench: Bench, sizes: Sizes, requests: int, plan: Plan) -> Counted:
    """`requests` at once, to the end."""
    counted = Counted(requests)
    engine = bench.engine(plan, counted.add)
    for number in range(requests):
        # Distinct prompts: an expert model would send equal rows to equal experts.
        places = range(number * 7919, number * 7919 + 31 * sizes.prompt_tokens, 31)
        prompt = [place % bench.vocab_size for place in places]
        engine.submit(str(number), prompt, sizes.answer_tokens)
    engine.run()
    return counted
