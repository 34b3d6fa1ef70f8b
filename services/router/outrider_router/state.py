"""What the routes share: one object per running router."""

import asyncio
import hashlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, TypeVar

from prometheus_client import CollectorRegistry

from outrider_router.access.admission import Admission
from outrider_router.access.gate import Gate
from outrider_router.metrics import RouterMetrics
from outrider_router.routing.registry import Registry, ServedModel
from outrider_router.settings import RouterSettings
from outrider_runtime.clock import Clock
from outrider_runtime.tracing import NoTracer, Tracer

Result = TypeVar("Result")
_LONG_CHARACTERS = 1 << 18
"""Encoding so many takes about a quarter of a second."""


def _one_thread() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(1, "long-text")


@dataclass
class RouterState:
    """The parts of a router.

    Attributes:
        draining: nothing new is taken in.
    """

    settings: RouterSettings
    clock: Clock
    registry: Registry
    gate: Gate
    metrics: RouterMetrics
    series: CollectorRegistry
    text_threads: ThreadPoolExecutor
    long_texts: ThreadPoolExecutor = field(default_factory=_one_thread)
    tracer: Tracer = field(default_factory=NoTracer)
    draining: bool = field(default=False)

    @property
    def admission(self) -> Admission:
        """Places in flight and the line for them."""
        return self.gate.admission

    def trouble(self) -> str | None:
        """Why no request would be served; None if one would."""
        return "the router is shutting down" if self.draining else self.registry.trouble()

    async def in_text_thread(
        self, work: Callable[..., Result], *args: Any, characters: int = 0
    ) -> Result:
        """Run work on text beside the event loop, which must keep serving others meanwhile.

        `characters`: size of the text; long ones wait for each other, so that no short one does.
        """
        threads = self.long_texts if characters > _LONG_CHARACTERS else self.text_threads
        return await asyncio.get_running_loop().run_in_executor(threads, work, *args)


def fingerprint(model: ServedModel) -> str:
    """`system_fingerprint`: changes with the weights, the engine or the drafters."""
    parts = "\n".join((model.digest, model.engine_version, *model.drafters))
    return "fp_" + hashlib.sha256(parts.encode()).hexdigest()[:12]
