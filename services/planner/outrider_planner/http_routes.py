"""``/v1`` of the side port: what the planner knows, why it plans so, and what an operator sets.

Knows routes and status codes. Reads answer without a token where that is allowed at all; writes
want it wherever one is set.
"""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated, Any, TypeVar

from fastapi import APIRouter, Depends, Query, Request
from starlette.exceptions import HTTPException

from outrider_planner.core import overview, views
from outrider_planner.core.explain import explain
from outrider_planner.core.planning import Basis
from outrider_planner.core.policies import usages
from outrider_planner.core.settings import (
    DeploymentSettings,
    SettingsConflictError,
    SettingsError,
)
from outrider_planner.core.shared_costs import CostTableError
from outrider_planner.core.types import MAX_DRAFT_TOKENS
from outrider_planner.core.whatif import Answer, answer
from outrider_planner.core.worker_state import WorkerState
from outrider_planner.http_models import SettingsBody, WhatIfBody
from outrider_planner.plugins import installed_policies
from outrider_planner.service import PlannerService

T = TypeVar("T")

MOST_REQUESTS = 65_536
ELSEWHERE = "where several planners run, each knows the workers that are connected to it"
# Questions are computed beside the event loop, one at a time; so many more may wait.
MOST_WAITING = 4


def routes(service: PlannerService, token: str | None, open_reads: bool) -> APIRouter:
    """``open_reads``: GET needs no token even where one is set."""

    async def bearer(request: Request) -> None:
        reads = open_reads and request.method == "GET"
        if token and not reads and not _presents(request, token):
            raise HTTPException(401, "missing or wrong token", {"WWW-Authenticate": "Bearer"})

    found = APIRouter(prefix="/v1", dependencies=[Depends(bearer)])
    _add_settings(found, service)
    _add_evidence(found, service)
    _add_state(found, service)
    return found


def _add_state(routes: APIRouter, service: PlannerService) -> None:
    """Last, because a deployment's name may hold slashes."""

    policies = usages(installed_policies())

    @routes.get("/overview")
    async def at_a_glance() -> dict[str, Any]:
        found = overview.overview(service.planner, service.now_s())
        return {"policies": policies, "store_up": service.store_up, **found}

    @routes.get("/deployments")
    async def deployments() -> dict[str, Any]:
        return views.deployments(service.planner, service.now_s())

    @routes.get("/deployments/{name:path}")
    async def deployment(name: str) -> dict[str, Any]:
        _workers(service, name)
        return views.deployment(service.planner, name, service.now_s())


def _add_settings(routes: APIRouter, service: PlannerService) -> None:
    @routes.get("/deployments/{name:path}/settings")
    async def settings(name: str) -> DeploymentSettings:
        _workers(service, name)
        return service.planner.settings.of(name).settings

    @routes.put("/deployments/{name:path}/settings")
    async def put_settings(name: str, body: SettingsBody) -> DeploymentSettings:
        _workers(service, name)
        with _refusals():
            present = service.planner.settings.of(name).settings
            return service.put_settings(name, body.settings(present.version))


def _add_evidence(routes: APIRouter, service: PlannerService) -> None:
    queue = _Queue()

    @routes.get("/deployments/{name:path}/explain")
    async def why(
        name: str,
        n: Annotated[int | None, Query(ge=1, le=MOST_REQUESTS)] = None,
        d: Annotated[int | None, Query(ge=0, le=MAX_DRAFT_TOKENS)] = None,
        worker: str | None = None,
    ) -> dict[str, Any]:
        incarnation, state, basis = _planned(service, name, worker)
        assert state.decision is not None
        now_s = service.now_s()
        # Of workers that are planned together each is asked about at its own load.
        found = explain(basis, state.decision, n or max(state.requests_at(now_s), 1), d)
        return views.explanation(service.planner, incarnation, found, now_s)

    @routes.get("/deployments/{name:path}/map")
    async def plan_map(name: str, worker: str | None = None) -> dict[str, Any]:
        _, state, basis = _planned(service, name, worker)
        rates = await queue.run(overview.rate_map, basis)
        return overview.plan_map(state, rates, service.now_s())

    @routes.post("/deployments/{name:path}/whatif")
    async def what_if(name: str, body: WhatIfBody) -> Answer:
        _, state, basis = _planned(service, name, body.worker)
        assert state.decision is not None
        with _refusals():
            question, parse = body.question(), service.planner.config.parse
            decision, hello = state.decision, state.hello
            return await queue.run(
                lambda apart: answer(question, apart, decision, hello, parse), basis
            )


class _Queue:
    """What takes a while is computed beside the event loop, one at a time."""

    def __init__(self) -> None:
        self._turn = asyncio.Semaphore(1)
        self._waiting = asyncio.Semaphore(1 + MOST_WAITING)

    async def run(self, compute: Callable[[Basis], T], basis: Basis) -> T:
        """``compute`` of a copy of the basis. Raises 429 where too many wait already."""
        if self._waiting.locked():
            raise HTTPException(429, "too many questions at once", {"Retry-After": "1"})
        async with self._waiting, self._turn:
            return await asyncio.to_thread(compute, basis.apart())


def _workers(service: PlannerService, name: str) -> dict[str, WorkerState]:
    found = {i: w for i, w in service.planner.workers.items() if w.hello.deployment == name}
    if not found:
        raise HTTPException(404, f"no worker of {name!r} is at this planner; {ELSEWHERE}")
    return found


def _planned(
    service: PlannerService, name: str, incarnation: str | None
) -> tuple[str, WorkerState, Basis]:
    """The worker asked for, or the busiest one that has a plan, and what that was made from."""
    workers = _workers(service, name)
    if incarnation is not None and incarnation not in workers:
        raise HTTPException(404, f"{name!r} has no worker {incarnation!r} here; {ELSEWHERE}")
    planned = {i: w for i, w in workers.items() if i in service.planner.basis}
    chosen = incarnation or max(planned, key=lambda i: planned[i].present_requests, default=None)
    if chosen is None or chosen not in planned:
        raise HTTPException(409, "nothing was planned yet")
    return chosen, planned[chosen], service.planner.basis[chosen]


@contextmanager
def _refusals() -> Iterator[None]:
    """The core's refusals as statuses, with its words."""
    try:
        yield
    except SettingsConflictError as error:
        raise HTTPException(409, str(error)) from error
    except (SettingsError, CostTableError) as error:
        raise HTTPException(400, str(error)) from error


def _presents(request: Request, token: str) -> bool:
    given = request.headers.get("authorization", "").encode()
    return hmac.compare_digest(given, f"Bearer {token}".encode())
