"""The side port: health, metrics, and what the planner knows, as JSON.

Knows HTTP. Reads the service's state and changes nothing. Where a token is required, the state
needs it; health and metrics, which probes and scrapers ask for, do not.
"""

from __future__ import annotations

import asyncio
import hmac
from typing import Any

from fastapi import APIRouter, Depends, FastAPI, Request, Response
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from outrider_planner.core import views
from outrider_planner.service import PlannerService
from outrider_runtime.http import listen, quiet_server
from outrider_runtime.logs import get_logger
from outrider_runtime.metrics import METRICS_CONTENT_TYPE, render

log = get_logger(__name__)


def create_app(service: PlannerService, token: str | None = None) -> FastAPI:
    """The application; every error is a JSON object ``{"error": {"code", "message"}}``.

    With a token, ``/v1`` answers only those who present it as a bearer.
    """
    # No schema pages: they load their scripts from elsewhere.
    app = FastAPI(title="Outrider planner", docs_url=None, redoc_url=None, openapi_url=None)
    app.add_exception_handler(HTTPException, _refused)
    app.add_exception_handler(Exception, _failed)

    @app.get("/health")
    async def health() -> dict[str, Any]:
        workers = sum(worker.connected for worker in service.planner.workers.values())
        return {"status": "ok", "store_up": service.store_up, "workers": workers}

    @app.get("/metrics")
    async def metrics() -> Response:
        service.refresh_metrics()
        return Response(render(service.metrics.registry), media_type=METRICS_CONTENT_TYPE)

    app.include_router(_state_routes(service, token))
    return app


def _state_routes(service: PlannerService, token: str | None) -> APIRouter:
    async def bearer(request: Request) -> None:
        if token and not _presents(request, token):
            raise HTTPException(401, "missing or wrong token", {"WWW-Authenticate": "Bearer"})

    routes = APIRouter(prefix="/v1", dependencies=[Depends(bearer)])

    @routes.get("/deployments")
    async def deployments() -> dict[str, Any]:
        return views.deployments(service.planner, service.now_s())

    @routes.get("/deployments/{name:path}")
    async def deployment(name: str) -> dict[str, Any]:
        found = views.deployment(service.planner, name, service.now_s())
        if not found["workers"]:
            raise HTTPException(404, f"no deployment is known by the name {name!r}")
        return found

    return routes


def _presents(request: Request, token: str) -> bool:
    given = request.headers.get("authorization", "").encode()
    return hmac.compare_digest(given, f"Bearer {token}".encode())


async def _refused(_request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    body = {"error": {"code": error.status_code, "message": str(error.detail)}}
    return JSONResponse(body, error.status_code, error.headers)


async def _failed(request: Request, error: Exception) -> JSONResponse:
    log.error("request failed", path=request.url.path, exc_info=error)
    return JSONResponse({"error": {"code": 500, "message": "internal error"}}, 500)


class HttpServer:
    """The application on an address that is bound before anything else starts."""

    def __init__(self, app: FastAPI, host: str, port: int) -> None:
        """Binds at once; port 0 takes a free one.

        Raises:
            OSError: the port is taken or the host is not one of this machine's.
        """
        self._socket = listen(host, port)
        self.port: int = self._socket.getsockname()[1]
        self._server = quiet_server(app, lifespan="off")
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Serves until ``stop``."""
        self._task = asyncio.create_task(self._server.serve(sockets=[self._socket]))

    async def stop(self) -> None:
        """Ends open connections and the server."""
        self._server.should_exit = True
        self._server.force_exit = True
        if self._task is not None:
            await self._task
        self._socket.close()
