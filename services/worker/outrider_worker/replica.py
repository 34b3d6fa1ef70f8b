"""What this replica is and how it is doing: facts for routers, planner and metrics."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from outrider_worker.engine.pages import PageAccount
from outrider_worker.engine.scheduler import Scheduler, SchedulerLimits
from outrider_worker.engine.thread import STUCK_AFTER_S, EngineThread
from outrider_worker.identity import EngineIdentity
from outrider_worker.model.config import ModelConfig
from outrider_worker.speculate.drafter import DrafterTraits


@dataclass
class Replica:
    """Facts are fixed; readiness and load are read from the parts that know."""

    served_name: str
    deployment: str
    incarnation: str
    folder: Path
    config: ModelConfig
    identity: EngineIdentity
    drafters: Sequence[DrafterTraits]
    max_draft_tokens: int
    scheduler: Scheduler
    pages: PageAccount
    thread: EngineThread
    draining: bool = False

    @property
    def limits(self) -> SchedulerLimits:
        return self.scheduler.limits

    @property
    def kv_capacity_tokens(self) -> int:
        return self.pages.capacity_pages * self.pages.page_tokens

    def kv_used_tokens(self) -> int:
        """Slots of the pages that requests hold; what only the prefix cache keeps is free."""
        return self.pages.used_pages * self.pages.page_tokens

    def running_requests(self) -> int:
        return len(self.scheduler.running)

    def waiting_requests(self) -> int:
        return self.scheduler.waiting_requests

    def drafter_index(self, name: str) -> int:
        """Place of a drafter in Describe's list; 0 when the name is in none."""
        names = [traits.name for traits in self.drafters]
        return names.index(name) if name in names else 0

    def not_ready_reason(self) -> str:
        """Empty while it takes requests."""
        if self.thread.failure is not None:
            return "the engine has failed"
        if self.draining:
            return "draining"
        if self.thread.silent_s > STUCK_AFTER_S:
            return f"the engine has made no progress for {self.thread.silent_s:.0f} s"
        return ""
