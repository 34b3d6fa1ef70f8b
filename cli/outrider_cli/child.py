"""One child process: started in a session of its own, its lines shown with its name, stopped
within a limit.

Knows nothing of restarts or of what the process is for.
"""

import asyncio
import contextlib
import os
import signal
import sys
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping

from outrider_cli.stack import ChildSpec

TAIL_LINES = 20
_DRAIN_LIMIT_S = 1.0


class Child:
    """A running process of the stack; make one with `start_child`."""

    def __init__(
        self, spec: ChildSpec, process: asyncio.subprocess.Process, show: Callable[[str], None]
    ) -> None:
        self.spec = spec
        self.tail: deque[str] = deque(maxlen=TAIL_LINES)
        self._process = process
        self._swept = False
        self._pump = asyncio.create_task(self._show_lines(show))

    @property
    def pid(self) -> int:
        return self._process.pid

    async def wait(self) -> str:
        """Wait for the end and say how it ended, once the last lines have been shown.

        Whatever the process had started in its session ends with it.
        """
        code = await self._process.wait()
        self.kill()
        await asyncio.wait({self._pump}, timeout=_DRAIN_LIMIT_S)
        self._pump.cancel()
        return _ending(code)

    async def stop(self) -> bool:
        """SIGTERM, then SIGKILL after the specified limit; True if it ended by itself."""
        self._signal(signal.SIGTERM)
        try:
            await asyncio.wait_for(self._process.wait(), self.spec.stop_limit_s)
        except TimeoutError:
            return False
        finally:
            self.kill()
            await self.wait()
        return True

    def kill(self) -> None:
        """End the whole session at once; once it is known to be empty, its id is not ours."""
        if self._swept:
            return
        self._swept = self._process.returncode is not None
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(number)

    async def _show_lines(self, show: Callable[[str], None]) -> None:
        assert self._process.stdout is not None
        async for line in _lines(self._process.stdout):
            self.tail.append(line)
            show(line)


async def start_child(
    spec: ChildSpec, environment: Mapping[str, str], show: Callable[[str], None]
) -> Child:
    """Start `python -m spec.module`; `show` gets each of its lines, from both outputs."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", spec.module),
        env={**environment, **spec.environment},
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        start_new_session=True,  # Ctrl-C reaches the supervisor alone
    )
    return Child(spec, process, show)


async def _lines(stream: asyncio.StreamReader) -> AsyncIterator[str]:
    """Lines of any length, without their ends."""
    pending = b""
    while chunk := await stream.read(65536):
        *complete, pending = (pending + chunk).split(b"\n")
        for line in complete:
            yield line.decode(errors="replace").rstrip("\r")
    if pending:
        yield pending.decode(errors="replace")


def _ending(code: int) -> str:
    if code < 0:
        with contextlib.suppress(ValueError):
            return f"was ended by {signal.Signals(-code).name}"
    return f"ended with exit code {code}"
