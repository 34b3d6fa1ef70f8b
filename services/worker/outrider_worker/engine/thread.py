"""Runs an engine on a thread of its own, and tells whether it is alive."""

import threading
import time
from collections.abc import Callable

from outrider_worker.engine.engine import Engine

# One step is at most a round and a prefill chunk; an engine silent for this long is stuck.
STUCK_AFTER_S = 15.0
_IDLE_WAIT_S = 0.25


class EngineThread:
    """Steps an engine until stopped; a step that raises ends the thread and is reported."""

    def __init__(
        self,
        engine: Engine,
        on_start: Callable[[], None],
        on_failure: Callable[[BaseException], None],
    ) -> None:
        """`on_start` runs first, on the thread; `on_failure` last, if a step raised."""
        self._engine = engine
        self._on_start = on_start
        self._on_failure = on_failure
        self._stopping = threading.Event()
        self._progress_s = time.monotonic()
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self.failure: BaseException | None = None

    def start(self) -> None:
        self._thread.start()

    def stop(self, timeout_s: float = 10.0) -> None:
        """End after the step at hand."""
        self._stopping.set()
        self._engine.inbox.wake()
        if self._thread.is_alive():
            self._thread.join(timeout_s)

    @property
    def silent_s(self) -> float:
        """Seconds since the last step ended."""
        return time.monotonic() - self._progress_s

    def _run(self) -> None:
        try:
            self._on_start()
            while not self._stopping.is_set():
                self._engine.step(_IDLE_WAIT_S)
                self._progress_s = time.monotonic()
        except BaseException as failure:
            self.failure = failure
            self._on_failure(failure)
