"""The workers and what they serve: who is ready, how loaded each is, and the models' text side.

Workers come from a fixed list. A lost one is not chosen until it is back and ready. While a model
is being replaced, workers of one name serve different files, told apart by their digest: a prompt
made with the tokenizer of one goes to no other. Knows nothing of HTTP or of what a request asks.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from outrider_router.routing.policy import Candidate, WorkerPicker
from outrider_router.text.model_text import ModelText, TextAssets
from outrider_router.types import WorkerStatus
from outrider_router.worker_client import Fetch, WorkerClient
from outrider_runtime.clock import Clock
from outrider_runtime.logs import get_logger

log = get_logger(__name__)

BuildText = Callable[[TextAssets], ModelText]


class UnknownModel(LookupError):
    """No worker has ever served this model."""


class NoWorker(Exception):
    """No worker can take the request now; the message says why."""


@dataclass(frozen=True)
class ServedModel:
    """A model as its ready workers of one digest serve it: what all of them can do."""

    name: str
    text: ModelText
    created_s: int
    digest: str
    engine_version: str
    drafters: tuple[str, ...]
    vocab_size: int
    context_tokens: int
    options: frozenset[str]


@dataclass
class Worker:
    """One worker of the list and what this router has there."""

    client: WorkerClient
    in_flight: int = 0
    task: asyncio.Task[None] | None = field(default=None, repr=False)

    @property
    def candidate(self) -> Candidate:
        """Its load as the policy wants it."""
        status = self.client.status
        reported = status.running_requests + status.waiting_requests if status else 0
        return Candidate(self.client.address, self.in_flight, reported)


class Registry:
    """All workers of one router.

    Args:
        addresses: the workers as `host:port`.
        token: the secret for gRPC, None without one.
        clock: where time comes from.
        picker: chooses among ready workers.
        build_text: makes a model's text side from its files; runs in a thread.
    """

    def __init__(
        self,
        addresses: Collection[str],
        token: str | None,
        clock: Clock,
        picker: WorkerPicker,
        build_text: BuildText,
    ) -> None:
        self._clock = clock
        self._picker = picker
        self._build_text = build_text
        self._texts: dict[tuple[str, str], asyncio.Task[ModelText]] = {}
        self._created_s: dict[str, int] = {}
        self._turn = 0
        self.workers = {
            address: Worker(WorkerClient(address, token, clock, self._prepare))
            for address in addresses
        }

    def start(self) -> None:
        """Begin to connect."""
        for worker in self.workers.values():
            worker.task = asyncio.create_task(worker.client.run())

    async def stop(self) -> None:
        """Disconnect; requests still on a worker fail."""
        tasks: list[asyncio.Task[Any]] = [w.task for w in self.workers.values() if w.task]
        tasks += self._texts.values()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def trouble(self) -> str | None:
        """Why no request can be served; None if one can."""
        troubles = {w.client.address: w.client.trouble for w in self.workers.values()}
        if not troubles:
            return "no workers are configured"
        if None in troubles.values():
            return None
        return "no worker is ready: " + "; ".join(f"{a}: {why}" for a, why in troubles.items())

    def models(self) -> list[ServedModel]:
        """Models with a ready worker, by name."""
        names = {status.model for status in self._ready_statuses()}
        return [self.model(name) for name in sorted(names)]

    def model(self, name: str) -> ServedModel:
        """The model as its ready workers serve it; of several digests the one most of them have.

        Raises:
            UnknownModel: nobody ever served it, though somebody serves something.
            NoWorker: it is known, or may be, but no worker is ready for it.
        """
        statuses = [status for status in self._ready_statuses() if status.model == name]
        if not statuses:
            trouble = self.trouble()
            if name in self._created_s or (trouble and not self._created_s):
                raise NoWorker(trouble or f"no worker is ready for the model {name!r}")
            raise UnknownModel(name)
        [(digest, _)] = Counter(status.model_digest for status in statuses).most_common(1)
        statuses = [status for status in statuses if status.model_digest == digest]
        first = statuses[0]
        return ServedModel(
            name=name,
            text=self._texts[_text_key(first)].result(),
            created_s=self._created_s[name],
            digest=digest,
            engine_version=first.engine_version,
            drafters=first.drafters,
            vocab_size=first.vocab_size,
            context_tokens=min(status.context_tokens for status in statuses),
            options=frozenset.intersection(*(status.options for status in statuses)),
        )

    def pick(self, model: ServedModel, without: Collection[str] = ()) -> WorkerClient:
        """The worker for a new request.

        Raises:
            NoWorker: none is ready, apart from those in `without`.
        """
        candidates = [
            worker.candidate
            for address, worker in self.workers.items()
            if address not in without and self._serves(worker, model)
        ]
        if not candidates:
            trouble = self.trouble()
            raise NoWorker(trouble or f"no other worker is ready for the model {model.name!r}")
        self._turn += 1
        return self.workers[self._picker.choose(candidates, self._turn).address].client

    @contextmanager
    def holding(self, client: WorkerClient, choices: int) -> Iterator[None]:
        """Count choices as load of a worker for as long as the block runs, exactly once."""
        worker = self.workers[client.address]
        worker.in_flight += choices
        try:
            yield
        finally:
            worker.in_flight -= choices

    def _serves(self, worker: Worker, model: ServedModel) -> bool:
        status = worker.client.status
        if worker.client.trouble is not None or status is None:
            return False
        return _text_key(status) == (model.name, model.digest)

    def _ready_statuses(self) -> list[WorkerStatus]:
        clients = [worker.client for worker in self.workers.values()]
        return [c.status for c in clients if c.trouble is None and c.status is not None]

    async def _prepare(self, status: WorkerStatus, fetch: Fetch) -> None:
        """Load the model's text side unless it is there; workers of one model share it."""
        key = _text_key(status)
        loading = self._texts.get(key)
        if loading is None or (loading.done() and _failed(loading)):
            loading = self._texts[key] = asyncio.create_task(self._load(status.model, fetch))
        await asyncio.shield(loading)
        self._created_s.setdefault(status.model, int(self._clock.wall_s()))

    async def _load(self, model: str, fetch: Fetch) -> ModelText:
        started_s = self._clock.monotonic_s()
        text = await asyncio.to_thread(self._build_text, await fetch())
        log.info("model_text_loaded", model=model, seconds=self._clock.monotonic_s() - started_s)
        return text


def _text_key(status: WorkerStatus) -> tuple[str, str]:
    return status.model, status.model_digest


def _failed(task: asyncio.Task[ModelText]) -> bool:
    return task.cancelled() or task.exception() is not None
