"""A whole engine on the device that is checked, stepped by hand: as served, without a wire."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch

from outrider_worker.engine.costs import CostCurve, CostTable, Timing
from outrider_worker.engine.drafters import Drafters
from outrider_worker.engine.engine import Engine, EngineParts
from outrider_worker.engine.guard import Guard
from outrider_worker.engine.inbox import Cancel, Submit
from outrider_worker.engine.pages import PageAccount
from outrider_worker.engine.plan_book import PlanBook
from outrider_worker.engine.plans import DrafterBudget, Plan
from outrider_worker.engine.prefix_cache import PrefixCache
from outrider_worker.engine.records import RoundRecord
from outrider_worker.engine.scheduler import Scheduler, SchedulerLimits
from outrider_worker.engine.types import RequestKey, RequestSpec, SamplingParams, TokenNews
from outrider_worker.kv import PAGE_TOKENS, KvPool
from outrider_worker.model.base import CausalLM
from outrider_worker.programs import Programs, SeatSize
from outrider_worker.runner import Runner
from outrider_worker.speculate.device import DeviceDrafter
from outrider_worker.speculate.verify import Verifier
from outrider_worker.streams import DeviceStream

# What rounds cost is measured here, not looked up: only the guard would, and it is off.
_UNUSED_COSTS = CostTable((CostCurve(1, (1,), (Timing(1.0, 0.0, 1),)),))


def static_plan(drafter: str, draft_tokens: int, max_requests: int) -> Plan:
    """Draft `draft_tokens` at every n and verify them all; 0 is off."""
    ladder = tuple(range(1, max_requests + 1))
    rows = tuple(tuple(n * (1 + d) for d in range(draft_tokens + 1)) for n in ladder)
    budget = DrafterBudget((draft_tokens,) * len(ladder), rows)
    name = f"static:{draft_tokens}" if draft_tokens else "off"
    return Plan(1, ladder, {drafter: budget}, validity_s=1e9, policy=name)


@dataclass(frozen=True)
class Bench:
    """One model with its device state, reused by one engine after another."""

    runner: Runner
    programs: Programs
    limits: SchedulerLimits
    drafter: DeviceDrafter | None
    vocab_size: int

    @classmethod
    def over(
        cls,
        model: CausalLM,
        stream: DeviceStream,
        dtype: torch.dtype,
        device: torch.device,
        limits: SchedulerLimits,
        verifier: Verifier,
        drafter: DeviceDrafter | None,
    ) -> Bench:
        """With room in the pool for every seat's whole context."""
        each = -(-limits.max_context_tokens // PAGE_TOKENS)
        pages = 1 + limits.max_running_requests * each
        pool = KvPool.of_pages(model.config, pages, dtype, device)
        size = SeatSize(
            limits.max_running_requests,
            limits.max_context_tokens,
            drafter.traits.max_draft_tokens if drafter else 0,
            limits.max_rows_per_forward,
        )
        programs = Programs.over(model, pool, size, verifier, [drafter] if drafter else [])
        vocab_size = model.config.vocab_size
        return cls(Runner(programs, stream), programs, limits, drafter, vocab_size)

    def engine(self, plan: Plan, on_record: Callable[[RoundRecord], None]) -> BenchEngine:
        """A fresh engine: empty seats, empty pages, `plan` in force, no guard."""
        cache = PrefixCache(PAGE_TOKENS, enabled=False)
        pages = PageAccount(self.programs.pool.pages, PAGE_TOKENS, cache)
        plans = PlanBook()
        plans.offer(plans.open_stream(), plan, time.monotonic())
        parts = EngineParts(
            runner=self.runner,
            scheduler=Scheduler(self.limits, pages),
            pages=pages,
            plans=plans,
            guard=Guard(enabled=False),
            costs=_UNUSED_COSTS,
            drafters=Drafters(devices=[self.drafter] if self.drafter else []),
            eos_token_ids=frozenset(),
            vocab_size=self.vocab_size,
            max_draft_tokens=self.programs.seats.draft_bins.shape[1],
        )
        return BenchEngine(parts, on_record)


class BenchEngine:
    """An engine and what it answered, by number of request."""

    def __init__(self, parts: EngineParts, on_record: Callable[[RoundRecord], None]) -> None:
        self.scheduler = parts.scheduler
        self.texts: dict[str, list[int]] = {}
        self._engine = Engine(parts, self._on_news, on_record)

    @property
    def idle(self) -> bool:
        return self._engine.idle

    def submit(self, name: str, prompt: Iterable[int], max_tokens: int) -> None:
        """Greedy, to the full length."""
        self.texts[name] = []
        params = SamplingParams(max_tokens=max_tokens, ignore_eos=True)
        spec = RequestSpec(RequestKey("check", name), tuple(prompt), params)
        self._engine.inbox.put(Submit(spec))

    def cancel(self, name: str) -> None:
        self._engine.inbox.put(Cancel("check", name))

    def step(self) -> None:
        self._engine.step()

    def run(self) -> None:
        """To the end of all requests."""
        while not self.idle:
            self.step()

    def _on_news(self, _round: int, news: Sequence[TokenNews]) -> None:
        for each in news:
            self.texts[each.key.request_id].extend(each.token_ids)
