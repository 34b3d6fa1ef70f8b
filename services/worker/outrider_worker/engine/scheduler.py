"""Who is let in, who is prefilled next, who decodes. Pure Python over request records.

Admission is first come, first served: a request enters when there is a running place and room for
all it can ever need, so that no running request ever has to give way.
"""

from collections import deque
from dataclasses import dataclass

from outrider_worker.engine.pages import PageAccount
from outrider_worker.engine.types import (
    Failure,
    FailureCode,
    Request,
    RequestKey,
    RequestRefused,
    RequestSpec,
)


@dataclass(frozen=True, slots=True)
class SchedulerLimits:
    max_running_requests: int = 32
    max_context_tokens: int = 2048
    max_rows_per_forward: int = 128
    max_waiting_requests: int = 256


@dataclass(frozen=True, slots=True)
class PrefillChunk:
    """`tokens` positions of one request from its committed length on."""

    request: Request
    tokens: int

    @property
    def completes(self) -> bool:
        """True when the chunk holds the last token known, whose row emits the next one."""
        return self.request.committed + self.tokens == len(self.request.token_ids)


class Scheduler:
    """The waiting line and the running set."""

    def __init__(self, limits: SchedulerLimits, pages: PageAccount) -> None:
        self.limits = limits
        self._pages = pages
        self._waiting: deque[Request] = deque()
        self._running: list[Request] = []
        self._by_key: dict[RequestKey, Request] = {}

    @property
    def running(self) -> list[Request]:
        return self._running

    @property
    def waiting_requests(self) -> int:
        return len(self._waiting)

    @property
    def idle(self) -> bool:
        return not self._waiting and not self._running

    def has(self, key: RequestKey) -> bool:
        return key in self._by_key

    def get(self, key: RequestKey) -> Request:
        """The live request of that key; KeyError for one that is not."""
        return self._by_key[key]

    def everyone(self) -> list[Request]:
        return list(self._by_key.values())

    def overdue(self, now_s: float) -> list[Request]:
        """Requests whose deadline has passed, waiting or running."""
        return [
            request
            for request in self._by_key.values()
            if request.spec.deadline_s is not None and request.spec.deadline_s < now_s
        ]

    def keys_of(self, owner: str, request_id: str | None = None) -> list[RequestKey]:
        """All live requests of a router stream, or only those with one id (all its choices)."""
        return [
            key
            for key in self._by_key
            if key.owner == owner and request_id in (None, key.request_id)
        ]

    def submit(self, spec: RequestSpec) -> Request:
        """Put a request in the waiting line.

        Raises:
            RequestRefused: it can never fit, is a duplicate, or the line is full.
        """
        self._check(spec)
        request = Request.from_spec(spec)
        self._waiting.append(request)
        self._by_key[spec.key] = request
        return request

    def admit(self) -> None:
        """Move requests from the line into the running set while there is room."""
        while self._waiting and len(self._running) < self.limits.max_running_requests:
            if not self._pages.fits_now(self._waiting[0].limit_tokens):
                return
            request = self._waiting.popleft()
            self._pages.promise(request)
            self._running.append(request)

    def prefill_chunks(self) -> list[PrefillChunk]:
        """The next prefill forward: the oldest requests first, within the row budget."""
        budget_rows = self.limits.max_rows_per_forward
        chunks = []
        for request in self._running:
            if request.emitted_here or budget_rows == 0:
                continue
            tokens = min(budget_rows, len(request.token_ids) - request.committed)
            chunks.append(PrefillChunk(request, tokens))
            budget_rows -= tokens
        return chunks

    def decoding(self) -> list[Request]:
        """Requests past their prefill, oldest first."""
        return [request for request in self._running if request.emitted_here]

    def remove(self, request: Request) -> None:
        """Forget a request, wherever it is, and free all it owns."""
        self._by_key.pop(request.spec.key, None)
        request.epoch += 1
        if request in self._running:
            self._running.remove(request)
            self._pages.release(request)
        else:
            self._waiting.remove(request)

    def _check(self, spec: RequestSpec) -> None:
        needed_tokens = len(spec.prompt_ids) + spec.sampling.max_tokens
        if spec.key in self._by_key:
            raise _refusal(FailureCode.INVALID, "this request id is in use", "request_id")
        if needed_tokens > self.limits.max_context_tokens:
            raise _refusal(
                FailureCode.TOO_LONG,
                f"{len(spec.prompt_ids)} prompt tokens and {spec.sampling.max_tokens} to emit are"
                f" more than the context of {self.limits.max_context_tokens} tokens",
                "prompt_ids",
            )
        if not self._pages.fits_ever(needed_tokens):
            raise _refusal(
                FailureCode.TOO_LONG,
                f"{needed_tokens} tokens can never fit into the KV pool of"
                f" {self._pages.capacity_pages * self._pages.page_tokens} tokens",
                "prompt_ids",
            )
        if len(self._waiting) >= self.limits.max_waiting_requests:
            raise _refusal(
                FailureCode.OVERLOADED, f"{len(self._waiting)} requests are waiting already"
            )


def _refusal(code: FailureCode, message: str, param: str = "") -> RequestRefused:
    return RequestRefused(Failure(code, message, param))
