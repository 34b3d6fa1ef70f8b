"""One worker as the router sees it: a connection that comes back by itself.

Keeps one `Attach` stream open with heartbeats both ways, hands each choice's news to whoever sent
it, asks for a description every second, and follows the worker's gRPC health. A lost stream fails
all choices on it at once; the client then reconnects with growing, jittered waits. A stream belongs
to one life (incarnation) of the worker: what another one says on it is dropped, and the stream with
it. What a request or a model means is known elsewhere.
"""

import asyncio
from collections.abc import Awaitable, Callable

import grpc

from outrider_router.text.model_text import TextAssets
from outrider_router.types import Failure, FailureCode, Submission, Update, WorkerStatus
from outrider_router.worker_client.send_line import SendLine
from outrider_router.worker_client.wire import Key, WorkerWire, incarnation_of, news_of
from outrider_runtime.clock import Clock
from outrider_runtime.heartbeat import Heartbeat, ReconnectBackoff
from outrider_runtime.logs import get_logger
from outrider_runtime.rpc import HEARTBEAT_DEADLINE_S, open_channel
from outrider_runtime.tls import TlsFiles

_DESCRIBE_INTERVAL_S = 1.0
_TICK_S = 0.25
_AWAY = "the worker is not connected"

log = get_logger(__name__)

Fetch = Callable[[], Awaitable[TextAssets]]
Prepare = Callable[[WorkerStatus, Fetch], Awaitable[None]]
Take = Callable[[Update], None]


class LinkLost(Exception):
    """The stream to the worker is of no use any more."""


class WorkerClient:
    """Sends choices to one worker and takes their news.

    Args:
        address: `host:port`.
        token: the secret that every call carries, None without one.
        clock: where time comes from.
        prepare: called with each description of a ready worker before the worker counts as ready;
            loads the model's text files with the function it is given. What it raises keeps the
            worker away.
        tls: certificates; None without TLS.
    """

    def __init__(
        self,
        address: str,
        token: str | None,
        clock: Clock,
        prepare: Prepare,
        tls: TlsFiles | None = None,
    ) -> None:
        self.address = address
        self._token = token
        self._tls = tls
        self._clock = clock
        self._prepare = prepare
        self._status: WorkerStatus | None = None
        self._described_s = clock.monotonic_s()
        self._lost_because = "not connected yet"
        self._told_because = _AWAY
        self._serving = True
        self._line: SendLine | None = None
        self._takers: dict[Key, Take] = {}

    @property
    def status(self) -> WorkerStatus | None:
        """The latest description, kept while the worker is away; None before the first."""
        return self._status

    @property
    def trouble(self) -> str | None:
        """Why nothing may be sent to the worker, in words fit for clients; None if it is ready.

        What gRPC says of it is in the log: it names addresses.
        """
        if self._line is None or self._status is None:
            return self._told_because
        if not self._serving:
            return "the worker is draining"
        if not self._status.ready:
            return self._status.not_ready_reason or "the worker is not ready"
        if self._clock.monotonic_s() - self._described_s > HEARTBEAT_DEADLINE_S:
            return "the worker has not described itself for too long"
        return None

    @property
    def tracked_choices(self) -> int:
        """Choices registered here; 0 when idle."""
        return len(self._takers)

    def send(self, submission: Submission, take: Take) -> None:
        """Send one choice; `take` gets its news up to its end, and nothing after `drop`."""
        if self._line is None:
            take(Update(end=Failure(FailureCode.UNAVAILABLE, self._told_because)))
            return
        self._takers[submission.key] = take
        self._line.submit(submission)

    def drop(self, submission: Submission) -> None:
        """Take no more news of a choice; the worker drops it if it has not ended it."""
        if self._takers.pop(submission.key, None) and self._line is not None:
            self._line.cancel(submission)

    async def run(self) -> None:
        """Stay connected until cancelled."""
        backoff = ReconnectBackoff()
        try:
            while True:
                reason = await self._one_connection(backoff)
                if self._line is not None:
                    log.warning("worker_lost", worker=self.address, reason=reason)
                elif reason != self._lost_because:
                    log.info("worker_awaited", worker=self.address, reason=reason)
                self._lose(reason, "the worker was lost")
                await self._clock.sleep(backoff.next_wait_s())
        finally:
            self._lose("stopping", "the router is stopping")

    async def _one_connection(self, backoff: ReconnectBackoff) -> str:
        """One connection's life; returns why it ended."""
        reasons: list[str] = []
        try:
            async with open_channel(self.address, self._tls) as channel:
                wire = WorkerWire(channel, self._token)
                await self._describe(wire)
                async with asyncio.TaskGroup() as tasks:
                    tasks.create_task(self._attach(wire, backoff))
                    tasks.create_task(self._keep_described(wire))
                    tasks.create_task(self._follow_health(wire))
        except* (grpc.aio.AioRpcError, LinkLost) as errors:
            reasons = [_reason(error) for error in errors.exceptions]
            self._told_because = _told(errors.exceptions[0])
        except* Exception as errors:
            reasons = [_reason(error) for error in errors.exceptions]
            self._told_because = _told(errors.exceptions[0])
            # Tried again every few seconds; the same trace each time would only fill the log.
            if "; ".join(reasons) != self._lost_because:
                log.exception("worker_link_failed", worker=self.address)
        return "; ".join(reasons)

    async def _describe(self, wire: WorkerWire) -> None:
        status = await wire.describe()
        if status.ready:
            await self._prepare(status, lambda: wire.text_assets(status.chat_template))
        self._status = status
        self._described_s = self._clock.monotonic_s()

    async def _keep_described(self, wire: WorkerWire) -> None:
        while True:
            await self._clock.sleep(_DESCRIBE_INTERVAL_S)
            try:
                await self._describe(wire)
            except grpc.aio.AioRpcError as error:
                # Whether the worker is gone is for the stream's heartbeats to say.
                log.info("describe_failed", worker=self.address, reason=error.details())

    async def _follow_health(self, wire: WorkerWire) -> None:
        """A worker that drains says so here first, before its next description."""
        self._serving = True
        told = None
        while True:
            try:
                async for self._serving in wire.health():
                    told = None
            except grpc.aio.AioRpcError as error:
                if error.code() is not told:
                    log.info("health_failed", worker=self.address, reason=error.details())
                told = error.code()
            await self._clock.sleep(_DESCRIBE_INTERVAL_S)

    async def _attach(self, wire: WorkerWire, backoff: ReconnectBackoff) -> None:
        """Run the stream until it is lost; never returns normally."""
        line = SendLine()
        heartbeat = Heartbeat(self._clock.monotonic_s())
        incarnation = self._status.incarnation if self._status else ""
        drafters = self._status.drafters if self._status else ()
        call = wire.attach(line.messages())
        watch = asyncio.create_task(self._beat(heartbeat, line))
        watch.add_done_callback(lambda _: call.cancel())
        try:
            async for response in call:
                heartbeat.heard(self._clock.monotonic_s())
                if self._line is None:
                    # The first sign of life: from here on requests can be sent.
                    self._line = line
                    backoff.reset()
                    log.info("worker_attached", worker=self.address)
                if incarnation_of(response) not in ("", incarnation):
                    raise LinkLost("another life of the worker answers on this stream")
                for key, update in news_of(response, drafters):
                    self._deliver(key, update)
            raise LinkLost("the worker closed the stream")
        except asyncio.CancelledError:
            if watch.done() and not watch.cancelled():
                raise LinkLost("no sign of life from the worker") from None
            raise
        finally:
            line.close()
            watch.cancel()

    async def _beat(self, heartbeat: Heartbeat, line: SendLine) -> None:
        """Send signs of life; returns once the worker has given none for too long."""
        last_s = self._clock.monotonic_s()
        while True:
            now_s = self._clock.monotonic_s()
            if now_s - last_s > 4 * _TICK_S:
                # This process itself stood still: what was sent meanwhile is still to be read.
                heartbeat.heard(now_s)
            if heartbeat.expired(now_s):
                return
            sequence = heartbeat.due(now_s)
            if sequence is not None:
                line.ping(sequence)
            last_s = now_s
            await self._clock.sleep(_TICK_S)

    def _deliver(self, key: Key, update: Update) -> None:
        take = self._takers.get(key)
        if take is None:
            return
        if update.end is not None:
            del self._takers[key]
        take(update)

    def _lose(self, reason: str, told: str) -> None:
        """Nothing can be sent any more; whoever waits is told so, without the wire's own words."""
        self._line = None
        self._lost_because = reason
        lost, self._takers = self._takers, {}
        failure = Failure(FailureCode.UNAVAILABLE, told, worker_lost=True)
        for take in lost.values():
            take(Update(end=failure))


def _told(error: BaseException) -> str:
    if isinstance(error, grpc.aio.AioRpcError):
        return f"{_AWAY} ({error.code().name})"
    return str(error)


def _reason(error: BaseException) -> str:
    if isinstance(error, grpc.aio.AioRpcError):
        return f"{error.code().name}: {error.details()}"
    return f"{type(error).__name__}: {error}"
