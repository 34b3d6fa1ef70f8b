"""`python -m outrider_router`: one router process, settings from `OUTRIDER_ROUTER_*`."""

import asyncio
import gc
import sys
from collections.abc import Callable

from outrider_router.access.keys import SAFE_KEY_CHARACTERS
from outrider_router.server import serve
from outrider_router.settings import RouterSettings
from outrider_runtime.lifecycle import exit_with_parent_if_asked, stop_event
from outrider_runtime.logs import configure_logs, get_logger
from outrider_runtime.settings import ConfigurationError
from outrider_runtime.settings_faults import read_settings, refused, warn_of_unknown

_GC_THRESHOLD = 20_000
"""Answers are streams of values that live for a moment and hold no cycles: to look for some after
every 700, as by default, takes a tenth of the time."""


async def _run(settings: RouterSettings) -> None:
    await serve(settings, stop_event())


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop's, which writes to many connections at less cost; the standard one on Windows."""
    if sys.platform == "win32":
        return None
    import uvloop

    return uvloop.new_event_loop


def main() -> int:
    """Run until SIGTERM or SIGINT; the exit status."""
    try:
        exit_with_parent_if_asked()
        settings = read_settings(RouterSettings)
    except ConfigurationError as error:
        return refused("router", error)
    configure_logs("router", settings.log_level, settings.log_format)
    log = get_logger(__name__)
    warn_of_unknown(RouterSettings, log)
    for number in settings.short_api_keys():
        log.warning("short_api_key", entry=number, wanted_characters=SAFE_KEY_CHARACTERS)
    log.info("starting", settings=settings.masked())
    try:
        gc.set_threshold(_GC_THRESHOLD)
        with asyncio.Runner(loop_factory=_loop_factory()) as runner:
            runner.run(_run(settings))
    except ConfigurationError as error:
        return refused("router", error)
    log.info("stopped")
    return 0


if __name__ == "__main__":
    sys.exit(main())
