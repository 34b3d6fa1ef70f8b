"""Starts a stack, keeps its processes alive, and stops them in order.

Knows when a process is ready, what to do when one dies, and that none may be left behind; knows
nothing of what the processes do.
"""

import asyncio
import json
import os
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from outrider_cli.child import Child, start_child
from outrider_cli.errors import StackError
from outrider_cli.probes import grpc_serving, http_get, http_ok, label_of
from outrider_cli.report import Console, StateFile, root_url
from outrider_cli.stack import PLANNER, ROUTER, ChildSpec, Stack
from outrider_runtime.heartbeat import ReconnectBackoff
from outrider_runtime.lifecycle import EXIT_WITH_PARENT, stop_event
from outrider_runtime.tls import TlsFiles

MAX_RESTARTS = 5
FORGIVEN_AFTER_S = 60.0
_FIRST_RESTART_S = 0.5
_RESTART_CAP_S = 10.0
_PROBE_INTERVAL_S = 0.2
_PROGRESS_INTERVAL_S = 10.0


class Supervisor:
    """One run of `outrider up`; `tls` is what its services use for gRPC."""

    def __init__(
        self,
        stack: Stack,
        console: Console,
        state: StateFile,
        restart: bool,
        tls: TlsFiles | None = None,
    ) -> None:
        self._stack = stack
        self._console = console
        self._state = state
        self._restart = restart
        self._tls = tls
        self._environment = {**os.environ, **stack.common, EXIT_WITH_PARENT: str(os.getpid())}
        self._children: dict[str, Child] = {}
        self._keepers: dict[str, asyncio.Task[None]] = {}
        self._given_up: set[str] = set()
        self._ready = False

    async def run(self) -> None:
        """Serve until SIGINT or SIGTERM.

        Raises:
            StackError: a process died while starting, or again and again later.
        """
        stopping = asyncio.create_task(stop_event().wait())
        serving = asyncio.create_task(self._serve())
        try:
            await asyncio.wait({stopping, serving}, return_when=asyncio.FIRST_COMPLETED)
            if serving.done():
                serving.result()
        finally:
            stopping.cancel()
            await _cancel([serving, *self._keepers.values()])
            await self._stop_all()

    async def _serve(self) -> None:
        """Bring the stack up, then fail with the first process that is given up."""
        bring_up = asyncio.create_task(self._bring_up())
        try:
            await self._first_failure_or(bring_up)
            self._ready = True
            self._state.ready()
            await self._announce()
            await self._first_failure_or(asyncio.get_running_loop().create_future())
        finally:
            await _cancel([bring_up])

    async def _first_failure_or(self, goal: asyncio.Future[Any]) -> None:
        """Wait for `goal`, unless a keeper fails first."""
        while not goal.done():
            watched = {task for task in self._keepers.values() if not task.done()}
            # Keepers may be added while this waits, hence the timeout.
            await asyncio.wait({goal, *watched}, timeout=1.0, return_when=asyncio.FIRST_COMPLETED)
            for task in self._keepers.values():
                if task.done():
                    task.result()
        goal.result()

    async def _bring_up(self) -> None:
        """Everything but the later workers at once; those when the first has filled the caches.

        Converting a model and measuring its costs happen once per machine: several workers doing
        it side by side would do the work twice and disturb each other's measurements.
        """
        first, *others = self._stack.workers
        self._keep(self._stack.planner, first, self._stack.router)
        await self._until(self._stack.planner, self._planner_answers)
        await self._until_serving(first)
        self._keep(*others)
        for worker in others:
            await self._until_serving(worker)
        await self._until(self._stack.router, self._router_is_ready)

    async def _planner_answers(self) -> bool:
        return await http_ok(self._stack.planner.ports["http"], "/health")

    async def _router_is_ready(self) -> bool:
        return await http_ok(self._stack.router.ports["http"], "/ready")

    async def _until_serving(self, worker: ChildSpec) -> None:
        await self._until(worker, lambda: grpc_serving(worker.ports["grpc"], self._tls))

    async def _until(self, spec: ChildSpec, probe: Callable[[], Awaitable[bool]]) -> None:
        """Ask until the answer is yes, and say now and then what is waited for."""
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        next_word_s = began_s + _PROGRESS_INTERVAL_S
        while not await probe():
            if loop.time() >= next_word_s:
                self._console.say(f"waiting for {spec.name} ({loop.time() - began_s:.0f} s)")
                next_word_s += _PROGRESS_INTERVAL_S
            await asyncio.sleep(_PROBE_INTERVAL_S)

    async def _announce(self) -> None:
        port = self._stack.router.ports["http"]
        # With keys set, a router tells only those who show one what is served: 401.
        status, models = await http_get(port, "/v1/models")
        served = json.loads(models)["data"] if status == 200 else []
        name = served[0]["id"] if served else await self._model()
        planner = self._stack.planner.ports["http"]
        pages = {"try it": (port, "/chat/"), "what is planned, and why": (planner, "/page/")}
        shown = {
            use: f"{root_url(at)}{path}"
            for use, (at, path) in pages.items()
            if await http_ok(at, path)  # pages can be left out by settings
        }
        self._console.ready(port, name, shown, needs_key=status == 401)

    async def _model(self) -> str:
        """What the first worker serves."""
        series = await http_get(self._stack.workers[0].ports["metrics"], "/metrics")
        return label_of(series[1].decode(), "outrider_worker_info", "model") or "MODEL"

    def _keep(self, *specs: ChildSpec) -> None:
        for spec in specs:
            self._keepers[spec.name] = asyncio.create_task(self._keep_alive(spec))

    async def _keep_alive(self, spec: ChildSpec) -> None:
        """Start the process again whenever it ends; return when it is given up without harm."""
        loop = asyncio.get_running_loop()
        backoff = ReconnectBackoff(_FIRST_RESTART_S, _RESTART_CAP_S)
        restarts = in_a_row = 0
        while True:
            began_s = loop.time()
            ending = await self._run_once(spec, restarts)
            if loop.time() - began_s > FORGIVEN_AFTER_S:
                backoff.reset()
                in_a_row = 0
            if not self._may_restart(spec, ending, in_a_row):
                return
            wait_s = backoff.next_wait_s()
            self._console.say(f"{spec.name} {ending}{_effect(spec)}; starting again")
            await asyncio.sleep(wait_s)
            restarts += 1
            in_a_row += 1

    async def _run_once(self, spec: ChildSpec, restarts: int) -> str:
        """Start the process and wait for its end; says how it ended."""
        child = await start_child(spec, self._environment, self._console.of(spec.name))
        self._children[spec.name] = child
        self._state.child_started(spec.name, child.pid, restarts)
        ending = await child.wait()
        self._state.child_ended(spec.name)
        return ending

    def _may_restart(self, spec: ChildSpec, ending: str, in_a_row: int) -> bool:
        """Whether to start `spec` again; raises `StackError` where the stack cannot go on."""
        if not self._ready:
            lines = "\n".join(f"  {line}" for line in self._children[spec.name].tail)
            raise StackError(f"{spec.name} {ending} while starting. Its last lines:\n{lines}")
        if not self._restart:
            self._console.say(f"{spec.name} {ending}{_effect(spec)}; it is not started again")
            return False
        if spec.name == PLANNER or in_a_row < MAX_RESTARTS:
            return True
        self._given_up.add(spec.name)
        workers = {worker.name for worker in self._stack.workers}
        if spec.name == ROUTER or workers <= self._given_up:
            raise StackError(f"{spec.name} {ending}, {in_a_row + 1} times in a row")
        self._console.say(f"{spec.name} {ending}, {in_a_row + 1} times in a row; going on without")
        return False

    async def _stop_all(self) -> None:
        """Router, then workers, then planner, each within its limit; nothing survives this."""
        try:
            if self._children:
                self._console.say("stopping")
            for group in self._stack.stop_order:
                await asyncio.gather(*(self._stop_one(spec) for spec in group))
        finally:
            for child in self._children.values():
                child.kill()
            self._state.remove()

    async def _stop_one(self, spec: ChildSpec) -> None:
        child = self._children.get(spec.name)
        if child and not await child.stop():
            self._console.say(f"{spec.name} did not stop within {spec.stop_limit_s:g} s: killed")


def _effect(spec: ChildSpec) -> str:
    """What the loss of this process means for those who are being served."""
    return ", serving goes on without new plans" if spec.name == PLANNER else ""


async def _cancel(tasks: Sequence[asyncio.Future[Any]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
