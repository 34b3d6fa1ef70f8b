"""Which planner a worker talks to where there are several, and when it should change.

Knows addresses, names that stand for many of them, and an order of preference that is a worker's
own: rendezvous hashing (Thaler and Ravishankar, 1998). Workers spread evenly over planners without
anybody counting them; a planner that is lost moves only its own workers, one that comes back gets
the same ones again, and nobody else moves. Does not know streams.
"""

import asyncio
import hashlib
import random
import socket
from collections.abc import Awaitable, Callable, Iterable

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from outrider_runtime.logs import get_logger
from outrider_runtime.rpc import open_channel
from outrider_runtime.tls import TlsFiles

_ANSWER_LIMIT_S = 2.0
_log = get_logger(__name__)

Resolve = Callable[[str], Awaitable[list[str]]]


def parse_targets(text: str) -> tuple[str, ...]:
    """The addresses of `host:port,host:port`; none for an empty text.

    Raises:
        ValueError: something between the commas is no `host:port`.
    """
    targets = tuple(part.strip() for part in text.split(",") if part.strip())
    for target in targets:
        host, _, port = target.rpartition(":")
        if not host or not port.isdecimal() or int(port) > 65_535:
            raise ValueError(f"{target!r} is not host:port")
    return targets


async def resolve(target: str) -> list[str]:
    """All addresses a name stands for, as a headless service in a cluster has them.

    Of a name with addresses of both families, those of the preferred one: they are one server.

    Raises:
        OSError: the name is not known.
    """
    host, _, port = target.rpartition(":")
    found = await asyncio.get_running_loop().getaddrinfo(
        host.strip("[]"), int(port), type=socket.SOCK_STREAM
    )
    family = found[0][0]
    hosts = [str(address[0]) for kind, *_, address in found if kind == family]
    return [f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host in hosts]


def by_preference(targets: Iterable[str], incarnation: str) -> list[str]:
    """Highest weight first, the weight being a hash of worker and address."""

    def weight(target: str) -> bytes:
        return hashlib.blake2b(f"{incarnation}\0{target}".encode(), digest_size=8).digest()

    return sorted(set(targets), key=weight, reverse=True)


class PlannerTargets:
    """A worker's planners, resolved anew whenever they are asked for."""

    def __init__(
        self,
        targets: tuple[str, ...],
        incarnation: str,
        check_s: float = 60.0,
        resolve: Resolve = resolve,
        tls: TlsFiles | None = None,
    ) -> None:
        self._targets = targets
        self._incarnation = incarnation
        self._check_s = check_s
        self._resolve = resolve
        self._tls = tls

    def channel(self, target: str) -> grpc.aio.Channel:
        """A channel to one of them."""
        return open_channel(target, self._tls)

    async def order(self) -> list[str]:
        """Addresses, the preferred one first. Names that nobody knows now are left out.

        Raises:
            OSError: none of the names is known.
        """
        found = await asyncio.gather(*map(self._resolve, self._targets), return_exceptions=True)
        known = [item for item in found if not isinstance(item, BaseException)]
        if not known:
            raise OSError(f"no planner's name is known: {', '.join(self._targets)}")
        return by_preference((address for item in known for address in item), self._incarnation)

    async def better_than(self, present: str) -> str:
        """Returns once a planner that is preferred to the present one serves: its address.

        Asked now and then, at times of this worker's own, so that a planner that comes back is not
        met by all of them at once.
        """
        while True:
            await asyncio.sleep(self._check_s * random.uniform(0.5, 1.5))
            try:
                order = await self.order()
            except OSError as error:
                _log.info("planners_not_found", reason=str(error))
                continue
            preferred = order[: order.index(present)] if present in order else order
            for target in preferred:
                if await is_serving(target, self._tls):
                    return target


async def is_serving(target: str, tls: TlsFiles | None = None) -> bool:
    """Whether a planner says that it serves; False too where nobody answers."""
    async with open_channel(target, tls) as channel:
        try:
            answer = await health_pb2_grpc.HealthStub(channel).Check(
                health_pb2.HealthCheckRequest(), timeout=_ANSWER_LIMIT_S
            )
        except grpc.aio.AioRpcError:
            return False
    serving: bool = answer.status == health_pb2.HealthCheckResponse.SERVING
    return serving
