"""`python -m outrider_router`: one router process, settings from `OUTRIDER_ROUTER_*`."""

import asyncio
import gc
import sys
from collections.abc import Callable

from pydantic import ValidationError

from outrider_router.server import serve
from outrider_router.settings import RouterSettings, environment_name
from outrider_runtime.lifecycle import exit_with_parent_if_asked, stop_event
from outrider_runtime.logs import configure_logs, get_logger
from outrider_runtime.settings import ConfigurationError

_BAD_SETTINGS = 2
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
    exit_with_parent_if_asked()
    try:
        settings = RouterSettings()
    except ValidationError as error:
        for fault in error.errors():
            variable = environment_name(str(fault["loc"][0]))
            print(f"outrider_router: {variable}: {fault['msg']}", file=sys.stderr)
        return _BAD_SETTINGS
    except ConfigurationError as error:
        return _refused(error)
    configure_logs("router", settings.log_level, settings.log_format)
    log = get_logger(__name__)
    log.info("starting", settings=settings.masked())
    try:
        gc.set_threshold(_GC_THRESHOLD)
        with asyncio.Runner(loop_factory=_loop_factory()) as runner:
            runner.run(_run(settings))
    except ConfigurationError as error:
        return _refused(error)
    log.info("stopped")
    return 0


def _refused(error: ConfigurationError) -> int:
    print(f"outrider_router: {error}", file=sys.stderr)
    return _BAD_SETTINGS


if __name__ == "__main__":
    sys.exit(main())
