"""A scheduler over real page accounting, whose requests a test moves on by hand."""

import pytest

from outrider_worker.engine.pages import PageAccount
from outrider_worker.engine.prefix_cache import PrefixCache
from outrider_worker.engine.scheduler import Scheduler, SchedulerLimits
from outrider_worker.engine.types import FailureCode, Request, RequestRefused
from tests.support.paper_engine import spec_of

PAGE = 16


class Desk:
    """A scheduler whose requests are moved on by hand."""

    def __init__(self, pages: int = 20, *, cached: bool = False, **limits: int) -> None:
        self.pages = PageAccount(pages + 1, PAGE, PrefixCache(PAGE, enabled=cached))
        sizes = {"max_running_requests": 4, "max_context_tokens": 512, **limits}
        self.scheduler = Scheduler(SchedulerLimits(**sizes), self.pages)

    def submit(self, *sizes: int, max_tokens: int = 8) -> list[Request]:
        """Requests with prompts of these sizes that have nothing in common."""
        return [self.scheduler.submit(spec_of([100 + size] * size, max_tokens)) for size in sizes]

    def decode(self, *sizes: int, max_tokens: int = 30) -> list[Request]:
        """Requests that have just emitted their first token."""
        requests = self.submit(*sizes, max_tokens=max_tokens)
        assert self.scheduler.admit() == requests
        for request in requests:
            request.committed = len(request.token_ids)
            request.token_ids.append(7)
            request.prefilled = True
        return requests

    def emit(self, request: Request) -> None:
        """One round without drafts."""
        request.committed = len(request.token_ids)
        request.token_ids.append(7)

    def refusal(self, prompt: int, max_tokens: int = 1) -> FailureCode:
        with pytest.raises(RequestRefused) as refused:
            self.scheduler.submit(spec_of([3] * prompt, max_tokens))
        return refused.value.failure.code
