"""Where workers are: a fixed list, or a name whose addresses change while the router runs.

`dns:NAME:PORT` is one worker for each address of the name, as a headless service has them; anything
else is a worker by itself. A name that cannot be resolved tells nothing, so what was known of it
stays.
"""

import asyncio
import socket
from collections.abc import Awaitable, Callable, Collection

from outrider_runtime.clock import Clock
from outrider_runtime.logs import get_logger

log = get_logger(__name__)

DNS_PREFIX = "dns:"
Resolve = Callable[[str, int], Awaitable[Collection[str]]]


async def resolve(name: str, port: int) -> Collection[str]:
    """The name's addresses as `host:port`.

    Raises:
        OSError: it cannot be resolved now.
    """
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(name, port, type=socket.SOCK_STREAM)
    hosts = {str(entry[4][0]) for entry in found}
    return {f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host in hosts}


class Discovery:
    """The workers of a router's setting.

    Args:
        sources: entries of the setting.
        clock: where time comes from.
        interval_s: time between two looks at the names.
        resolve_name: finds a name's addresses.
    """

    def __init__(
        self,
        sources: Collection[str],
        clock: Clock,
        interval_s: float = 5.0,
        resolve_name: Resolve = resolve,
    ) -> None:
        self._clock = clock
        self._interval_s = interval_s
        self._resolve = resolve_name
        self.fixed = tuple(s for s in sources if not s.startswith(DNS_PREFIX))
        self._found: dict[str, Collection[str]] = {
            s.removeprefix(DNS_PREFIX): () for s in sources if s.startswith(DNS_PREFIX)
        }

    async def follow(self, changed: Callable[[Collection[str]], None]) -> None:
        """Tell all addresses, now and whenever names may have changed; ends where none are used."""
        while self._found:
            for source in self._found:
                await self._look_up(source)
            found = [address for some in self._found.values() for address in some]
            changed((*self.fixed, *found))
            await self._clock.sleep(self._interval_s)

    async def _look_up(self, source: str) -> None:
        name, _, port = source.rpartition(":")
        try:
            self._found[source] = await self._resolve(name, int(port))
        # A name that cannot be one is told as a fault of its letters.
        except (OSError, UnicodeError) as error:
            log.info("workers_not_found", name=name, reason=str(error))
