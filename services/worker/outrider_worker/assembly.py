"""Puts a worker together from its settings: model, pool, cost table, engine.

The only module that knows all the parts; slow steps report progress to the log.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from outrider_runtime.lifecycle import new_incarnation
from outrider_runtime.logs import get_logger
from outrider_worker.attention import default_attention
from outrider_worker.cache import one_at_a_time, user_cache
from outrider_worker.engine.costs import CostTable
from outrider_worker.engine.drafters import Drafters
from outrider_worker.engine.engine import EngineParts
from outrider_worker.engine.guard import Guard
from outrider_worker.engine.pages import PageAccount
from outrider_worker.engine.plan_book import PlanBook
from outrider_worker.engine.prefix_cache import PrefixCache
from outrider_worker.engine.scheduler import Scheduler, SchedulerLimits
from outrider_worker.feeding import ring_memory
from outrider_worker.identity import EngineIdentity, cpu_name, model_digest
from outrider_worker.kernels import have_kernels
from outrider_worker.kv import PAGE_TOKENS, KvPool
from outrider_worker.model.config import ModelConfig
from outrider_worker.model.loader import LoadedModel, load_model, model_folder
from outrider_worker.model.resolve import DEMO, resolve_model
from outrider_worker.numerics import choose_dtype, probe_batch_invariance
from outrider_worker.open_drafters import (
    Target,
    drafter_digests,
    open_drafters,
    require_drafters,
)
from outrider_worker.open_verifier import kept_bytes, open_verifier
from outrider_worker.profile import (
    Profiler,
    load_costs,
    profile_contexts,
    row_ladder,
    store_costs,
)
from outrider_worker.profile_seats import ProfileSeats
from outrider_worker.programs import Programs, SeatSize
from outrider_worker.runner import Runner
from outrider_worker.sampling.draw import draw_on_cpu
from outrider_worker.settings import WorkerSettings
from outrider_worker.speculate.drafter import DrafterTraits
from outrider_worker.streams import open_stream

DEMO_NAME = "smollm2-135m-instruct"
# A table whose replays spread wider than this says more about the neighbours than the machine.
_STEADY_SPREAD = 0.25
_log = get_logger(__name__)


@dataclass(frozen=True)
class Assembly:
    """A worker's parts, ready to run."""

    parts: EngineParts
    config: ModelConfig
    folder: Path
    served_name: str
    deployment: str
    incarnation: str
    identity: EngineIdentity
    row_ladder: tuple[int, ...]

    @property
    def drafter_traits(self) -> tuple[DrafterTraits, ...]:
        return self.parts.drafters.traits


def served_name(settings: WorkerSettings) -> str:
    """The name clients use: as set, or derived from what was asked for."""
    if settings.served_name:
        return settings.served_name
    if settings.model == DEMO:
        return DEMO_NAME
    path = Path(settings.model).expanduser()
    if not path.exists():
        return settings.model  # a hub id
    return path.resolve().name if path.is_dir() else path.stem


def assemble(settings: WorkerSettings) -> Assembly:
    """Load, probe, measure (or read what was measured before), and build.

    Raises:
        ModelError, UnknownDrafter, ValueError: settings that cannot work, in one line.
    """
    torch.set_num_threads(settings.threads)
    device = choose_device(settings.device)
    dtype = choose_dtype(device)
    folder = model_folder(resolve_model(settings.model), _LoadProgress())
    require_drafters(settings.drafters if settings.max_draft else (), folder)
    if device.type == "cpu":
        _log.info("preparing_kernels", found=have_kernels())
        draw_on_cpu()
    backend = default_attention(device)
    loaded = load_model(folder, dtype, device, progress=_LoadProgress(), backend=backend)
    _report_numerics(loaded, dtype, device)
    target = Target(loaded, dtype, device, backend)
    drafters = open_drafters(settings.drafters, settings.max_draft, target)
    verifier = open_verifier(settings, target, drafters)
    pool = _pool(settings, target, drafters, kept_bytes(verifier))
    limits = _limits(settings, loaded.config, (pool.pages - 1) * PAGE_TOKENS)
    size = SeatSize(
        limits.max_running_requests,
        limits.max_context_tokens,
        drafters.max_tokens,
        limits.max_rows_per_forward,
    )
    programs = Programs.over(
        loaded.model,
        pool,
        size,
        verifier,
        drafters.devices,
        processed_logprobs=settings.logprobs == "processed",
    )
    runner = Runner(programs, open_stream(device))
    ladder = row_ladder(size, device)
    identity = _identity(settings, target, ladder)
    seats = ProfileSeats(runner, size, pool.pages, PAGE_TOKENS, loaded.config.vocab_size)
    costs = _costs(Profiler(seats, drafters, _log_shape), identity, ladder, limits)
    cache = PrefixCache(PAGE_TOKENS, drafters.lookahead_pools, enabled=settings.prefix_cache)
    pages = PageAccount(pool.pages, PAGE_TOKENS, cache)
    parts = EngineParts(
        runner=runner,
        scheduler=Scheduler(limits, pages),
        pages=pages,
        plans=PlanBook(),
        guard=Guard(settings.guard),
        costs=costs,
        drafters=drafters,
        eos_token_ids=frozenset(loaded.config.eos_ids),
        vocab_size=loaded.config.vocab_size,
        max_draft_tokens=drafters.max_tokens,
    )
    return Assembly(
        parts=parts,
        config=loaded.config,
        folder=loaded.folder,
        served_name=identity.model,
        deployment=settings.deployment or identity.model,
        incarnation=new_incarnation(),
        identity=identity,
        row_ladder=ladder,
    )


def _pool(settings: WorkerSettings, target: Target, drafters: Drafters, laws_bytes: int) -> KvPool:
    """The budget buys pages for the target and for a drafter's state, what the latter keeps by
    seat, the features' ring, and the laws that a verifier keeps. Weights are not in it, neither
    the target's nor a drafter's.
    """
    config, stateful = target.loaded.config, drafters.stateful
    ring_bytes = page_bytes = seats_bytes = 0
    if stateful is not None:
        page_bytes = stateful.state_size.token_bytes * PAGE_TOKENS
        seats_bytes = stateful.state_size.seat_bytes * (settings.max_running + 1)
        ring_bytes = ring_memory(
            stateful, settings.max_running, drafters.max_tokens, config.hidden_size, target.dtype
        )
    budget_bytes = settings.kv_bytes - ring_bytes - seats_bytes - laws_bytes
    pool = KvPool.for_budget(config, budget_bytes, target.dtype, target.device, page_bytes)
    _log.info(
        "memory_shared_out",
        kv_tokens=(pool.pages - 1) * PAGE_TOKENS,
        target_kv_mib=_mib(pool.pages * PAGE_TOKENS * pool.bytes_per_token(config, target.dtype)),
        drafter_kv_mib=_mib(pool.pages * page_bytes + seats_bytes),
        feature_ring_mib=_mib(ring_bytes),
        draft_laws_mib=_mib(laws_bytes),
    )
    return pool


def _mib(size_bytes: int) -> int:
    return size_bytes >> 20


def _identity(settings: WorkerSettings, target: Target, ladder: tuple[int, ...]) -> EngineIdentity:
    device, on_cpu = target.device, target.device.type == "cpu"
    names = settings.drafters if settings.max_draft else ()
    return EngineIdentity(
        model=served_name(settings),
        model_digest=model_digest(target.loaded.folder),
        drafters=tuple(f"{each}:{settings.max_draft}" for each in drafter_digests(names)),
        device=cpu_name() if on_cpu else torch.cuda.get_device_name(device),
        dtype=str(target.dtype).removeprefix("torch."),
        row_ladder=ladder,
        cpu_threads=settings.threads if on_cpu else 0,
        own_kernels=on_cpu and have_kernels(),
    )


def _log_shape(said: str) -> None:
    _log.debug("shape_measured", said=said)


class _LoadProgress:
    """Logs a long step at its start and at every quarter."""

    def __init__(self) -> None:
        self._last: tuple[str, int] = ("", -1)

    def __call__(self, step: str, done: float) -> None:
        quarter = int(4 * done)
        if (step, quarter) != self._last:
            self._last = (step, quarter)
            _log.info("loading", step=step, done=f"{25 * quarter} %")


def _limits(settings: WorkerSettings, config: ModelConfig, pool_tokens: int) -> SchedulerLimits:
    """The context is what settings, model and KV pool allow; requests are measured against it."""
    context_tokens = min(settings.context, config.max_positions, pool_tokens)
    if context_tokens == pool_tokens:
        _log.warning("kv_pool_limits_context", context_tokens=context_tokens)
    return SchedulerLimits(
        max_running_requests=settings.max_running,
        max_context_tokens=context_tokens,
        max_rows_per_forward=settings.max_rows,
        max_waiting_requests=settings.max_waiting,
        prefill_chunk_tokens=settings.prefill_chunk,
        max_waiting_prompt_tokens=settings.max_waiting_tokens,
    )


def choose_device(requested: str) -> torch.device:
    """The device asked for; "auto" is the first GPU, or the CPU where there is none.

    Raises ValueError for one that this machine does not have.
    """
    if requested == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    device = torch.device(requested)
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"device {requested!r} was asked for, and there is no GPU")
    if device.type not in ("cpu", "cuda"):
        raise ValueError(f"device {requested!r} is not served: known are auto, cpu, cuda")
    return device


def _report_numerics(loaded: LoadedModel, dtype: torch.dtype, device: torch.device) -> None:
    report = probe_batch_invariance(loaded.model, dtype, device)
    log = _log.info if report.ok or device.type != "cpu" else _log.warning
    log("numerics_probed", result=report.summary())


def _costs(
    profiler: Profiler,
    identity: EngineIdentity,
    ladder: Sequence[int],
    limits: SchedulerLimits,
) -> CostTable:
    """The stored table of this identity, or a new one; either way every shape has run once.

    Of workers that start together one measures, undisturbed by the others.
    """
    contexts = profile_contexts(limits.max_context_tokens)
    file = user_cache() / "costs" / f"{identity.digest}-{contexts[1]}.json"
    with one_at_a_time(file):
        costs = load_costs(file)
        if costs is None:
            return _measured(profiler, ladder, contexts, file)
    _log.info("cost_table_read", file=str(file))
    profiler.warm_up(ladder, contexts[0])
    return costs


def _measured(
    profiler: Profiler, ladder: Sequence[int], contexts: tuple[int, int], file: Path
) -> CostTable:
    """A new table, kept in `file` where the machine was quiet enough."""
    _log.info("measuring_cost_table", shapes=len(ladder) * len(contexts))
    costs = profiler.measure(ladder, contexts)
    spread = round(costs.relative_spread, 2)
    if spread > _STEADY_SPREAD:
        _log.warning("cost_table_not_kept", reason="the machine was busy")
    else:
        try:
            store_costs(file, costs)
        except OSError as error:
            _log.warning("cost_table_not_kept", reason=str(error))
    one_row_ms = round(costs.target_s(1, contexts[0]) * 1e3, 1)
    _log.info("cost_table_measured", one_row_ms=one_row_ms, relative_spread=spread)
    return costs
