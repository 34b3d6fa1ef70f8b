"""`python -m outrider_worker`: settings from the environment, one replica until told to stop."""

import asyncio
import os
import sys

from outrider_runtime.lifecycle import exit_with_parent_if_asked
from outrider_runtime.logs import configure_logs, get_logger
from outrider_runtime.settings import ConfigurationError, require_secret_beyond_loopback
from outrider_runtime.settings_faults import BAD_SETTINGS, read_settings, refused, warn_of_unknown
from outrider_worker.settings import WorkerSettings

# How long OpenMP threads spin at a barrier before they sleep. Left to itself the library spins so
# long that a neighbour who wants one of the cores stops the tokens for a second; this much keeps
# the speed of an idle machine and shortens the stalls (docs/adr/0008).
SPIN_COUNT = "10000"


def main() -> int:
    """Exit status: 0 stopped as asked, 1 the engine failed, 2 settings that cannot work."""
    try:
        exit_with_parent_if_asked()
        settings = read_settings(WorkerSettings)
        require_secret_beyond_loopback(settings.host, settings.token_text, "OUTRIDER_TOKEN")
    except ConfigurationError as error:
        return refused("worker", error)
    configure_logs("worker", settings.log_level, settings.log_format)
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", SPIN_COUNT)
    # Imported late: torch takes seconds, wrong settings should be told at once, and OpenMP reads
    # its environment when it is loaded.
    from outrider_worker.model.config import ModelError
    from outrider_worker.service import serve

    log = get_logger(__name__)
    warn_of_unknown(WorkerSettings, log)
    log.info("starting", settings=settings.masked())
    try:
        return asyncio.run(serve(settings))
    except (ConfigurationError, ModelError, ValueError, OSError) as error:
        log.error("cannot_start", reason=str(error))
        return BAD_SETTINGS


if __name__ == "__main__":
    sys.exit(main())
