"""Puts one planner process together and takes it down in order.

Knows which parts a process has: store, service, gRPC port, HTTP port.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from outrider_planner.http import HttpServer, create_app
from outrider_planner.log.file import FileSink
from outrider_planner.log.journal import Sink
from outrider_planner.log.stream import StreamSink
from outrider_planner.rpc import SERVICE_NAME, PlannerServicer
from outrider_planner.service import PlannerService
from outrider_planner.settings import PlannerSettings
from outrider_planner.store.base import PlannerStore
from outrider_planner.store.link import StoreLink
from outrider_planner.store.memory import MemoryStore
from outrider_planner.store.redis import RedisStore
from outrider_runtime.clock import Clock, SystemClock
from outrider_runtime.lifecycle import new_incarnation
from outrider_runtime.rpc import RpcServer, start_server
from outrider_runtime.settings import is_loopback, require_secret_beyond_loopback
from outrider_runtime.tls import tls_files


@dataclass(frozen=True, slots=True)
class PlannerProcess:
    """A running planner."""

    service: PlannerService
    grpc: RpcServer
    http: HttpServer
    drain_limit_s: float

    async def stop(self) -> None:
        """Not serving first, then the streams, then the ports, which close in any case."""
        await self.grpc.set_serving(False)
        try:
            await self.service.stop()
        finally:
            await self.grpc.stop(self.drain_limit_s)
            await self.http.stop()


async def start(settings: PlannerSettings, clock: Clock | None = None) -> PlannerProcess:
    """Binds both ports and serves.

    Raises:
        ConfigurationError: a port beyond loopback without a token.
        OSError: a port is taken.
    """
    token = settings.token_text
    require_secret_beyond_loopback(settings.http_host, token, "OUTRIDER_TOKEN")
    clock = clock or SystemClock()
    service = PlannerService(
        settings.planner_config(),
        open_store(settings, clock),
        clock,
        new_incarnation(),
        log_opener(settings),
    )
    app = create_app(
        service,
        token,
        loopback=is_loopback(settings.http_host),
        hosts=settings.http_names,
        page=settings.page,
    )
    http = HttpServer(app, settings.http_host, settings.http_port)
    servicer = PlannerServicer(service)
    try:
        grpc = await start_server(
            settings.grpc_host,
            settings.grpc_port,
            token,
            servicer.register,
            [SERVICE_NAME],
            tls_files(settings),
        )
    except BaseException:
        await http.stop()
        raise
    service.start()
    http.start()
    await grpc.set_serving(True)
    return PlannerProcess(service, grpc, http, settings.drain_limit_s)


def open_store(settings: PlannerSettings, clock: Clock) -> PlannerStore:
    """The store that the settings name; Redis is contacted later, and may be away."""
    if settings.store == "redis":
        return RedisStore(settings.redis_url.get_secret_value())
    return MemoryStore(clock.wall_s)


def log_opener(settings: PlannerSettings) -> Callable[[StoreLink], Sink] | None:
    """Where decisions are logged, by the settings; None for nowhere."""
    if settings.logs_to_store:
        limits = settings.log_limits
        return lambda link: StreamSink(link.log, lambda: link.log_dropped, limits)
    path = settings.log_file
    return None if path is None else lambda _link: FileSink(path)
