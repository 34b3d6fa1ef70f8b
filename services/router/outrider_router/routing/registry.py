"""What is served and by whom: models with their text side, and the worker for each request.

A worker that is lost is not chosen until it is back and ready. While a model is being replaced,
workers of one name serve different files, told apart by their digest: a prompt made with the
tokenizer of one goes to no other. Knows nothing of HTTP or of what a request asks.
"""

import asyncio
import random
from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from outrider_router.routing.affinity import PrefixIndex
from outrider_router.routing.discovery import Discovery
from outrider_router.routing.fleet import Fleet, Worker
from outrider_router.routing.policy import Demand, MoveLimits, WorkerPicker
from outrider_router.text.model_text import ModelText, TextAssets
from outrider_router.turns import Turns
from outrider_router.types import WorkerStatus
from outrider_router.worker_client import Fetch, WorkerClient
from outrider_runtime.clock import Clock
from outrider_runtime.logs import get_logger
from outrider_runtime.tls import TlsFiles

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
    max_draft_tokens: int = 0


class Registry:
    """All workers of one router.

    Args:
        discovery: says where workers are.
        token: the secret for gRPC, None without one.
        clock: where time comes from.
        picker: chooses among ready workers.
        build_text: makes a model's text side from its files; runs in a thread.
        moves: how far choices may move between workers.
        tls: certificates for gRPC; None without TLS.
    """

    def __init__(
        self,
        discovery: Discovery,
        token: str | None,
        clock: Clock,
        picker: WorkerPicker,
        build_text: BuildText,
        moves: MoveLimits,
        tls: TlsFiles | None = None,
    ) -> None:
        self._clock = clock
        self._picker = picker
        self._build_text = build_text
        self.moves = moves
        self.turns = Turns()
        self._texts: OrderedDict[tuple[str, str], asyncio.Task[ModelText]] = OrderedDict()
        self._created_s: dict[str, int] = {}
        self._prefixes = PrefixIndex()
        # Routers that start together do not all begin with the first worker.
        self._turn = random.randrange(1 << 16)
        self._fleet = Fleet(
            discovery,
            lambda address: WorkerClient(address, token, clock, self._prepare, tls),
            lambda address: self._prefixes.forget({address}),
            clock,
        )

    @property
    def workers(self) -> dict[str, Worker]:
        """Those there are now, by one address of each."""
        return {worker.client.address: worker for worker in self._fleet}

    @property
    def running(self) -> bool:
        """False once everything ends: waiting for a worker is of no use then."""
        return self._fleet.running

    def start(self) -> None:
        """Begin to connect."""
        self._fleet.start()

    async def stop(self) -> None:
        """Disconnect; requests still on a worker fail."""
        await self._fleet.stop()
        for loading in self._texts.values():
            loading.cancel()
        await asyncio.gather(*self._texts.values(), return_exceptions=True)

    def trouble(self) -> str | None:
        """Why no request can be served, in words fit for clients; None if one can."""
        troubles = [worker.trouble for worker in self._fleet]
        if not troubles:
            return "no workers are known"
        if None in troubles:
            return None
        found = Counter(troubles).most_common()
        reasons = (f"{count} of {len(troubles)}: {why}" for why, count in found)
        return f"no worker is ready: {'; '.join(reasons)}"

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
            max_draft_tokens=max(status.max_draft_tokens for status in statuses),
        )

    def pick(
        self,
        model: ServedModel,
        demand: Demand,
        prompt_ids: Sequence[int] = (),
        salt: bytes = b"",
        without: Collection[str] = (),
    ) -> Worker:
        """The worker for a request, or for choices of one, that begins with `prompt_ids`.

        Workers with an open breaker are left out as long as there is another one.

        Raises:
            NoWorker: none is ready, apart from those in `without`.
        """
        able = [w for w in self._fleet if w.client.address not in without and _serves(w, model)]
        now_s = self._clock.monotonic_s()
        able = [w for w in able if not w.breaker.is_open(now_s)] or able
        if not able:
            trouble = self.trouble()
            raise NoWorker(trouble or f"no other worker is ready for the model {model.name!r}")
        self._turn += 1
        known = self._prefixes.matches(prompt_ids, salt)
        candidates = [w.candidate(known.get(w.client.address, 0)) for w in able]
        address = self._picker.choose(candidates, demand, self._turn).address
        self._prefixes.learn(prompt_ids, salt, address)
        worker = self._fleet.workers[address]
        worker.breaker.sent(now_s)
        return worker

    def _ready_statuses(self) -> list[WorkerStatus]:
        ready = [worker.client.status for worker in self._fleet if worker.trouble is None]
        return [status for status in ready if status is not None]

    async def _prepare(self, status: WorkerStatus, fetch: Fetch) -> None:
        """Load the model's text side unless it is there; workers of one model share it."""
        key = _text_key(status)
        loading = self._texts.get(key)
        if loading is None or (loading.done() and _failed(loading)):
            loading = self._texts[key] = asyncio.create_task(self._load(status.model, fetch))
        self._texts.move_to_end(key)
        self._forget_replaced()
        await asyncio.shield(loading)
        self._created_s.setdefault(status.model, int(self._clock.wall_s()))

    def _forget_replaced(self) -> None:
        """Let go of text sides of which nobody has spoken for longest.

        Each worker speaks every second, of what it serves or at most of what it is about to serve.
        """
        while len(self._texts) > 2 * len(self._fleet.workers):
            self._texts.popitem(last=False)[1].cancel()

    async def _load(self, model: str, fetch: Fetch) -> ModelText:
        started_s = self._clock.monotonic_s()
        text = await asyncio.to_thread(self._build_text, await fetch())
        log.info("model_text_loaded", model=model, seconds=self._clock.monotonic_s() - started_s)
        return text


def _serves(worker: Worker, model: ServedModel) -> bool:
    status = worker.client.status
    if worker.trouble is not None or status is None:
        return False
    return _text_key(status) == (model.name, model.digest)


def _text_key(status: WorkerStatus) -> tuple[str, str]:
    return status.model, status.model_digest


def _failed(task: asyncio.Task[ModelText]) -> bool:
    return task.cancelled() or task.exception() is not None
