"""Keys that change while the router runs: their file is read again whenever it is another one.

A file that is not in order changes nothing, and the log says so: whoever could get in still can.
"""

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path

from outrider_router.access.gate import Gate
from outrider_router.access.keys import KeyPolicy
from outrider_runtime.clock import Clock
from outrider_runtime.logs import get_logger
from outrider_runtime.settings import ConfigurationError

log = get_logger(__name__)

_INTERVAL_S = 2.0
_Stamp = tuple[int, int, int] | None


class KeyWatch:
    """Looks at the file every other second.

    By its state rather than by notifications, which network file systems and the mounted secrets of
    containers do not give.

    Args:
        path: the file.
        read: all keys, those of the file among them; raises `ConfigurationError`.
        gate: takes them.
        clock: where time comes from.
    """

    def __init__(
        self, path: Path, read: Callable[[], Sequence[KeyPolicy]], gate: Gate, clock: Clock
    ) -> None:
        self._path = path
        self._read = read
        self._gate = gate
        self._clock = clock
        # Not that of now: the file may have changed since the keys were read for the start.
        self._seen: _Stamp = None

    async def run(self) -> None:
        """Watch until cancelled."""
        while True:
            await self._clock.sleep(_INTERVAL_S)
            stamp = await asyncio.to_thread(_stamp, self._path)
            if stamp != self._seen:
                self._seen = stamp
                await self._take()

    async def _take(self) -> None:
        try:
            policies = await asyncio.to_thread(self._read)
            if self._gate.take_keys(policies):
                log.info("keys_read_again", keys=len(policies))
        except ConfigurationError as error:
            log.error("keys_kept_as_they_were", reason=str(error))
        except Exception:
            # Whatever is wrong with a file, the next one is looked at again.
            log.exception("keys_kept_as_they_were")


def _stamp(path: Path) -> _Stamp:
    """Changes whenever the file does; None where there is none."""
    try:
        state = path.stat()
    except OSError:
        return None
    return state.st_ino, state.st_mtime_ns, state.st_size
