"""``python -m outrider_planner``: one planner process, until SIGTERM."""

from __future__ import annotations

import asyncio
import sys

from outrider_planner.assembly import start
from outrider_planner.settings import PlannerSettings
from outrider_runtime.lifecycle import exit_with_parent_if_asked, stop_event
from outrider_runtime.logs import configure_logs, get_logger
from outrider_runtime.settings import ConfigurationError
from outrider_runtime.settings_faults import read_settings, refused, warn_of_unknown


def main() -> int:
    """Exit status 0 after a clean stop, 2 for settings under which the planner cannot start."""
    try:
        exit_with_parent_if_asked()
        settings = read_settings(PlannerSettings)
    except ConfigurationError as error:
        return refused("planner", error)
    configure_logs("planner", settings.log_level, settings.log_format)
    return asyncio.run(_serve(settings))


async def _serve(settings: PlannerSettings) -> int:
    log = get_logger("outrider_planner")
    warn_of_unknown(PlannerSettings, log)
    stop = stop_event()
    try:
        process = await start(settings)
    except (ConfigurationError, OSError) as error:
        return refused("planner", error)
    log.info(
        "planner_ready",
        grpc_port=process.grpc.port,
        http_port=process.http.port,
        policy=settings.policy,
        store=settings.store,
    )
    await stop.wait()
    log.info("planner_stopping")
    await process.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
