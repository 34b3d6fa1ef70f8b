"""Birth and end of a process: who it is, and when it is asked to stop."""

import asyncio
import contextlib
import os
import secrets
import signal
import threading
import time

from outrider_runtime.settings import ConfigurationError

EXIT_WITH_PARENT = "OUTRIDER_EXIT_WITH_PARENT"
PARENT_GONE_LIMIT_S = 15.0


def new_incarnation() -> str:
    """A random name for this start of this process; 96 bits, so two never meet."""
    return secrets.token_hex(12)


def stop_event() -> asyncio.Event:
    """An event of the running loop that SIGTERM and SIGINT set; a second signal kills as usual."""
    event = asyncio.Event()
    loop = asyncio.get_running_loop()

    def on_signal(number: int) -> None:
        event.set()
        loop.remove_signal_handler(number)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal, number)
    return event


def exit_with_parent_if_asked() -> None:
    """Follow the parent named in OUTRIDER_EXIT_WITH_PARENT; does nothing where it is not set.

    Every service calls this first thing in its `main`.

    Raises:
        ConfigurationError: the variable holds no process id.
    """
    asked = os.environ.get(EXIT_WITH_PARENT)
    if not asked:
        return
    if not asked.isdecimal():
        raise ConfigurationError(f"{EXIT_WITH_PARENT} must be the parent's process id: {asked!r}")
    exit_with_parent(int(asked))


def exit_with_parent(
    parent_pid: int, poll_s: float = 0.5, limit_s: float = PARENT_GONE_LIMIT_S
) -> None:
    """End this process when `parent_pid` is no longer its parent: SIGTERM, after `limit_s` at once.

    A child of `outrider up` must not outlive it, also when the parent was killed outright. The
    pid is given by the parent, because one that died early can no longer be asked for; polling
    works on every system that Python runs on.
    """

    def watch() -> None:
        while os.getppid() == parent_pid:
            time.sleep(poll_s)
        with contextlib.suppress(ProcessLookupError):
            os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(limit_s)
        os._exit(1)

    threading.Thread(target=watch, name="parent-watch", daemon=True).start()
