"""The side port: health, metrics, and what the planner knows, as JSON.

Knows HTTP. Reads the service's state and changes nothing.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn
from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from outrider_planner.core import views
from outrider_planner.service import PlannerService
from outrider_runtime.logs import get_logger
from outrider_runtime.metrics import METRICS_CONTENT_TYPE, render

log = get_logger(__name__)


def create_app(service: PlannerService) -> FastAPI:
    """The application; every error is a JSON object ``{"error": {"code", "message"}}``."""
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

    @app.get("/v1/deployments")
    async def deployments() -> dict[str, Any]:
        return views.deployments(service.planner, service.now_s())

    @app.get("/v1/deployments/{name:path}")
    async def deployment(name: str) -> dict[str, Any]:
        found = views.deployment(service.planner, name, service.now_s())
        if not found["workers"]:
            raise HTTPException(404, f"no deployment is known by the name {name!r}")
        return found

    return app


async def _refused(_request: Request, error: Exception) -> JSONResponse:
    status, detail = (
        (error.status_code, str(error.detail)) if isinstance(error, HTTPException) else (400, "")
    )
    return JSONResponse({"error": {"code": status, "message": detail}}, status)


async def _failed(request: Request, error: Exception) -> JSONResponse:
    log.error("request failed", path=request.url.path, exc_info=error)
    return JSONResponse({"error": {"code": 500, "message": "internal error"}}, 500)


class HttpServer:
    """uvicorn on a socket that is bound before anything else starts."""

    def __init__(self, app: FastAPI, host: str, port: int) -> None:
        """Binds at once; port 0 takes a free one.

        Raises:
            OSError: the port is taken or the host is not one of this machine's.
        """
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._socket = socket.create_server((host, port), family=family)
        self.port: int = self._socket.getsockname()[1]
        config = uvicorn.Config(app, log_config=None, access_log=False, lifespan="off")
        self._server = _QuietServer(config)
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


class _QuietServer(uvicorn.Server):
    """Leaves signals to the process, which stops its parts in order."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
