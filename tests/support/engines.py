"""A real engine over a tiny random model, stepped by hand: what the laws are tested on."""

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache

import torch

from outrider_worker.engine.constraint import Constraint
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
from outrider_worker.engine.types import (
    Failure,
    Finish,
    RequestKey,
    RequestSpec,
    SamplingParams,
    SpeculationLimits,
    SpeculationTotals,
    TokenLogprobs,
    TokenNews,
)
from outrider_worker.kv import PAGE_TOKENS, KvPool
from outrider_worker.model.loader import LoadedModel, load_model
from outrider_worker.programs import Programs, SeatSize
from outrider_worker.runner import Runner
from outrider_worker.speculate.device import DeviceDrafter
from outrider_worker.speculate.drafter import Drafter
from outrider_worker.speculate.verify import SamplerMatch, Verifier
from outrider_worker.streams import DeviceStream, ImmediateStream
from tests.support.tiny_models import VOCAB_SIZE, shared_tiny_llama


@cache
def tiny_model() -> LoadedModel:
    return load_model(shared_tiny_llama())


def static_plan(
    drafter: str,
    draft_tokens: int,
    max_requests: int = 32,
    verify: Callable[[int, int], int] = lambda n, d: n * d,
    version: int = 1,
) -> Plan:
    """Always draft `draft_tokens`; verify everything, or what `verify(n, d)` says."""
    ladder = tuple(range(1, max_requests + 1))
    rows = tuple(tuple(n + verify(n, d) for d in range(draft_tokens + 1)) for n in ladder)
    budget = DrafterBudget((draft_tokens,) * len(ladder), rows)
    return Plan(version, ladder, {drafter: budget}, validity_s=1e9, policy="static")


def flat_costs(seconds: float = 1.0) -> CostTable:
    """Every forward costs the same: for tests that do not look at time."""
    timings = (Timing(seconds, 0.0, 5),) * 2
    return CostTable((CostCurve(64, (1, 128), timings), CostCurve(512, (1, 128), timings)))


def ticking(step_s: float = 1e-3) -> Callable[[], float]:
    """A clock that moves on by `step_s` whenever it is read."""
    return itertools.count(0.0, step_s).__next__


@dataclass
class Answer:
    """All that came back for one request."""

    logprobs: list[TokenLogprobs] = field(default_factory=list)
    cached_prompt_tokens: int = 0
    token_ids: list[int] = field(default_factory=list)
    accepted_tokens: int = 0
    relaxed_tokens: int = 0
    ends: list[Finish | Failure] = field(default_factory=list)
    totals: SpeculationTotals | None = None

    @property
    def end(self) -> Finish | Failure:
        (end,) = self.ends
        return end

    def add(self, news: TokenNews) -> None:
        assert not self.ends, "news after the end"
        self.token_ids.extend(news.token_ids)
        self.logprobs.extend(news.logprobs)
        self.cached_prompt_tokens += news.cached_prompt_tokens
        self.accepted_tokens += news.accepted_tokens
        self.relaxed_tokens += news.relaxed_tokens
        if news.end is not None:
            self.ends.append(news.end)
            self.totals = news.totals


class Bench:
    """An engine with its outputs gathered; invariants are checked after every step."""

    def __init__(
        self,
        drafter: Drafter | None = None,
        plan: Plan | None = None,
        *,
        device_drafter: DeviceDrafter | None = None,
        drafters: Drafters | None = None,
        stream: DeviceStream | None = None,
        model: LoadedModel | None = None,
        verifier: Verifier | None = None,
        prefix_cache: bool = True,
        limits: SchedulerLimits | None = None,
        pool_pages: int = 200,
        max_draft_tokens: int = 8,
        eos_token_ids: Iterable[int] = (),
        costs: CostTable | None = None,
        guard: Guard | None = None,
        now_s: Callable[[], float] | None = None,
        wrap_runner: Callable[[Runner], Runner] = lambda runner: runner,
    ) -> None:
        model = model or tiny_model()
        limits = limits or SchedulerLimits(max_context_tokens=1024)
        drafters = drafters or Drafters(
            [drafter] if drafter else [], [device_drafter] if device_drafter else []
        )
        pool = KvPool.of_pages(model.config, pool_pages, torch.float32)
        size = SeatSize(
            limits.max_running_requests,
            limits.max_context_tokens,
            max_draft_tokens if drafters.names else 0,
            limits.max_rows_per_forward,
        )
        self.programs = Programs.over(
            model.model, pool, size, verifier or SamplerMatch(), drafters.devices
        )
        self.stream = stream or ImmediateStream()
        cache = PrefixCache(PAGE_TOKENS, drafters.lookahead_pools, enabled=prefix_cache)
        self.pages = PageAccount(pool_pages, PAGE_TOKENS, cache)
        self.scheduler = Scheduler(limits, self.pages)
        self.plans = PlanBook()
        if plan is not None:
            self.plans.offer(self.plans.open_stream(), plan, 0.0)
        self.answers: dict[RequestKey, Answer] = {}
        self.records: list[RoundRecord] = []
        parts = EngineParts(
            runner=wrap_runner(Runner(self.programs, self.stream)),
            scheduler=self.scheduler,
            pages=self.pages,
            plans=self.plans,
            guard=guard or Guard(enabled=False),
            costs=costs or flat_costs(),
            drafters=drafters,
            eos_token_ids=frozenset(eos_token_ids),
            vocab_size=VOCAB_SIZE,
            max_draft_tokens=max_draft_tokens,
        )
        self.engine = Engine(parts, self._on_news, self.records.append, now_s or ticking())

    def submit(self, spec: RequestSpec, constraint: Constraint | None = None) -> Answer:
        answer = self.answers[spec.key] = Answer()
        self.engine.inbox.put(Submit(spec, constraint))
        return answer

    def cancel(self, key: RequestKey) -> None:
        self.engine.inbox.put(Cancel(key.owner, key.request_id, key.choice_index))

    def step(self) -> None:
        self.engine.step()
        self.pages.check(self.scheduler.running)

    def run(self, *specs: RequestSpec, max_steps: int = 2000) -> list[Answer]:
        """Submit everything, step until idle, and check that nothing is left behind."""
        answers = [self.submit(spec) for spec in specs]
        for _ in range(max_steps):
            self.step()
            if self.engine.idle:
                break
        assert self.engine.idle, "the engine did not finish"
        self.check_conservation()
        return answers

    def check_conservation(self) -> None:
        """Law five: nothing left, and counters that add up over requests and positions."""
        assert self.pages.used_pages == 0
        assert not self.scheduler.running
        assert self.scheduler.waiting_requests == 0
        totals = [answer.totals for answer in self.answers.values() if answer.totals]
        accepted = sum(record.accepted_tokens for record in self.records)
        assert accepted == sum(total.accepted_tokens for total in totals)
        for record in self.records:
            assert record.accepted_tokens <= record.verified_tokens <= record.pool_tokens

    def _on_news(self, _round: int, news: Sequence[TokenNews]) -> None:
        for item in news:
            self.answers[item.key].add(item)


_numbers = itertools.count()


def request(
    prompt_ids: Sequence[int],
    max_tokens: int = 32,
    *,
    speculation: SpeculationLimits | None = None,
    resumed_ids: Sequence[int] = (),
    choice_index: int = 0,
    deadline_s: float | None = None,
    **sampling: object,
) -> RequestSpec:
    """A request with a key of its own."""
    params = replace(SamplingParams(max_tokens=max_tokens), **sampling)  # type: ignore[arg-type]
    return RequestSpec(
        key=RequestKey("test", f"r{next(_numbers)}", choice_index),
        prompt_ids=tuple(prompt_ids),
        resumed_ids=tuple(resumed_ids),
        sampling=params,
        speculation=speculation or SpeculationLimits(),
        deadline_s=deadline_s,
    )


def greedy_text(prompt_ids: Sequence[int], max_tokens: int) -> list[int]:
    """The target's own greedy tokens, alone and without any speculation."""
    return undisturbed(request(prompt_ids, max_tokens))


def undisturbed(spec: RequestSpec) -> list[int]:
    """What a request gets alone and without any speculation. Do not change the list."""
    return _undisturbed(spec.prompt_ids, spec.sampling)


@cache
def _undisturbed(prompt_ids: tuple[int, ...], sampling: SamplingParams) -> list[int]:
    (answer,) = Bench().run(RequestSpec(RequestKey("test", "alone"), prompt_ids, sampling))
    return answer.token_ids


def prompts(count: int, tokens: int = 12) -> list[tuple[int, ...]]:
    """Different prompts over the tiny vocabulary."""
    return [
        tuple(3 + (17 * n + 5 * place * (n + 1)) % 250 for place in range(tokens + n))
        for n in range(count)
    ]
