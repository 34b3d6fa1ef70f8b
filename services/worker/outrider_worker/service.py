"""The worker process: assemble, serve, drain, exit."""

import asyncio
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import torch

from outrider_runtime.lifecycle import stop_event
from outrider_runtime.logs import get_logger
from outrider_runtime.rpc import RpcServer, start_server
from outrider_runtime.supervision import keep_going
from outrider_runtime.tls import tls_files
from outrider_runtime.tracing import tracer_for
from outrider_worker.assembly import Assembly, assemble
from outrider_worker.constrain import (
    CompileLimits,
    GrammarCompiler,
    GrammarsUnavailable,
    Vocabulary,
)
from outrider_worker.engine.engine import Engine
from outrider_worker.engine.fanout import Fanout
from outrider_worker.engine.inbox import EndAll
from outrider_worker.engine.plan_book import PlanBook
from outrider_worker.engine.records import RoundRecord
from outrider_worker.engine.tally import RecordRing
from outrider_worker.engine.thread import EngineThread
from outrider_worker.engine.types import TokenNews
from outrider_worker.live_metrics import add_info, add_live_gauges
from outrider_worker.metrics import WorkerMetrics
from outrider_worker.metrics_port import MetricsServer, serve_metrics
from outrider_worker.planner_client.client import Introduction, PlannerClient, PlannerLink
from outrider_worker.planner_client.targets import PlannerTargets, parse_targets
from outrider_worker.replica import Replica
from outrider_worker.rpc.service import SERVICE_NAME, WorkerRpc
from outrider_worker.runner import Runner
from outrider_worker.settings import WorkerSettings

_log = get_logger(__name__)


async def serve(settings: WorkerSettings) -> int:
    """Run until told to stop (exit status 0) or until the engine fails (1)."""
    assembly = await _assemble(settings)
    stop = stop_event()
    worker = await Worker.start(settings, assembly, on_failure=stop.set)
    _log.info(
        "worker_ready",
        model=assembly.served_name,
        address=f"{settings.host}:{worker.server.port}",
        incarnation=assembly.incarnation,
    )
    await stop.wait()
    await worker.stop(settings.drain_limit_s)
    return 1 if worker.replica.thread.failure else 0


async def _assemble(settings: WorkerSettings) -> Assembly:
    """Assemble on a thread that ends with it.

    Every thread that starts parallel regions keeps an OpenMP team of its own; with more team
    threads than cores, even sleeping ones, the waits between regions go through the kernel and
    rounds take a third longer.
    """
    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="assembly") as thread:
        return await asyncio.get_running_loop().run_in_executor(thread, assemble, settings)


@dataclass
class Worker:
    """The running parts of one worker process."""

    replica: Replica
    engine: Engine
    plans: PlanBook
    server: RpcServer
    metrics_server: MetricsServer
    planner: "asyncio.Task[None] | None"
    grammars: GrammarCompiler | None
    runner: Runner

    @classmethod
    async def start(
        cls, settings: WorkerSettings, assembly: Assembly, on_failure: Callable[[], None]
    ) -> "Worker":
        """Wire the parts and open the ports; it is ready when this returns."""
        parts = assembly.parts
        metrics = WorkerMetrics(parts.costs, parts.max_draft_tokens)
        ring = RecordRing()
        news: Fanout[[int, Sequence[TokenNews]]] = Fanout()
        records: Fanout[[RoundRecord]] = Fanout()
        engine = Engine(parts, news, records)
        thread = _engine_thread(engine, settings.threads, on_failure)
        replica = _replica(assembly, thread)
        grammars = await asyncio.to_thread(_grammars, assembly, settings.grammar_limit_s)
        rpc = WorkerRpc(replica, engine, grammars, tracer_for("worker", settings))
        news.to(metrics.observe_news, rpc.deliver)
        records.to(metrics.observe_round, ring.append)
        server = await start_server(
            settings.host,
            settings.port,
            settings.token_text,
            rpc.register,
            [SERVICE_NAME],
            tls_files(settings),
        )
        client = _planner_client(settings, assembly, ring, server.port)
        link = client.link if client else PlannerLink()
        add_info(metrics, assembly.incarnation, assembly.deployment, assembly.served_name)
        add_live_gauges(metrics, replica, parts.plans, parts.guard, link, parts.runner)
        metrics_server = serve_metrics(metrics.registry, settings.host, settings.metrics_port)
        thread.start()
        await server.set_serving(True)
        planner = keep_going("planner client", client.run) if client else None
        return cls(
            replica, engine, parts.plans, server, metrics_server, planner, grammars, parts.runner
        )

    async def stop(self, drain_limit_s: float) -> None:
        """Take nothing new, let running requests finish up to the limit, end the rest.

        A second call does nothing.
        """
        if self.replica.draining:
            return
        self.replica.draining = True
        await self.server.set_serving(False)
        deadline_s = time.monotonic() + drain_limit_s
        while self._busy() and time.monotonic() < deadline_s:
            await asyncio.sleep(0.05)
        if self._busy():
            self.engine.inbox.put(EndAll("the worker is shutting down"))
            await _until(lambda: not self._busy(), limit_s=2.0)
        if self.planner:
            self.planner.cancel()
            await asyncio.gather(self.planner, return_exceptions=True)
        if self.grammars:
            self.grammars.close()
        await asyncio.to_thread(self.replica.thread.stop)
        await asyncio.to_thread(self.runner.close)
        await self.server.stop(grace_s=0.5)
        self.metrics_server.close()
        _log.info("worker_stopped")

    def _busy(self) -> bool:
        return not self.engine.idle and self.replica.thread.failure is None


def _grammars(assembly: Assembly, limit_s: float) -> GrammarCompiler | None:
    """What compiles grammars; None (and the log says why) where the model allows none."""
    config = assembly.config
    try:
        vocabulary = Vocabulary.load(assembly.folder, config.vocab_size, config.eos_ids)
    except GrammarsUnavailable as reason:
        _log.warning("grammars_refused", reason=str(reason))
        return None
    return GrammarCompiler(vocabulary, CompileLimits(wait_s=limit_s))


async def _until(condition: Callable[[], bool], limit_s: float) -> None:
    deadline_s = time.monotonic() + limit_s
    while not condition() and time.monotonic() < deadline_s:
        await asyncio.sleep(0.02)


def _engine_thread(engine: Engine, threads: int, on_failure: Callable[[], None]) -> EngineThread:
    loop = asyncio.get_running_loop()

    def failed(error: BaseException) -> None:
        _log.error("engine_failed", exc_info=error)
        loop.call_soon_threadsafe(on_failure)

    # The number of OpenMP threads belongs to the thread that starts the parallel region.
    return EngineThread(engine, lambda: torch.set_num_threads(threads), failed)


def _replica(assembly: Assembly, thread: EngineThread) -> Replica:
    return Replica(
        served_name=assembly.served_name,
        deployment=assembly.deployment,
        incarnation=assembly.incarnation,
        folder=assembly.folder,
        config=assembly.config,
        identity=assembly.identity,
        drafters=assembly.drafter_traits,
        max_draft_tokens=assembly.parts.max_draft_tokens,
        scheduler=assembly.parts.scheduler,
        pages=assembly.parts.pages,
        thread=thread,
    )


def _planner_client(
    settings: WorkerSettings, assembly: Assembly, ring: RecordRing, port: int
) -> PlannerClient | None:
    if not settings.planner:
        _log.warning("no_planner_configured", effect="speculation stays off")
        return None
    parts = assembly.parts
    introduction = Introduction(
        deployment=assembly.deployment,
        incarnation=assembly.incarnation,
        address=f"{settings.host}:{port}",
        identity=assembly.identity,
        limits=parts.scheduler.limits,
        max_draft_tokens=parts.max_draft_tokens,
        kv_capacity_tokens=parts.pages.capacity_pages * parts.pages.page_tokens,
        row_buckets=assembly.row_ladder,
        drafters=assembly.drafter_traits,
        costs=parts.costs,
    )
    addresses = parse_targets(settings.planner)
    targets = PlannerTargets(addresses, assembly.incarnation, tls=tls_files(settings))
    return PlannerClient(
        targets, settings.token_text, introduction, ring, parts.plans, parts.guard.snapshot
    )
