"""The side port: health, metrics, ``/v1`` as JSON, and the page that shows it.

Knows HTTP and who may ask what. Where a token is required, ``/v1`` needs it; health and metrics,
which probes and scrapers ask for, do not.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from outrider_planner.http_guard import HttpGuard, error_body
from outrider_planner.http_routes import routes
from outrider_planner.page import page_routes
from outrider_planner.service import PlannerService
from outrider_runtime import __version__
from outrider_runtime.http import listen, quiet_server
from outrider_runtime.logs import get_logger
from outrider_runtime.metrics import METRICS_CONTENT_TYPE, render

log = get_logger(__name__)


def create_app(
    service: PlannerService,
    token: str | None = None,
    *,
    loopback: bool = True,
    hosts: Collection[str] = (),
    page: bool = True,
) -> FastAPI:
    """The application; every error is a JSON object ``{"error": {"code", "message"}}``.

    With a token, what changes something asks for it as a bearer; beyond loopback all of ``/v1``
    does. ``hosts``: names, beside addresses and localhost, that the server goes by. ``page``:
    whether the live page is served; it holds nothing that ``/v1`` protects.
    """
    # The schema without its pages: they load their scripts from elsewhere.
    app = FastAPI(title="Outrider planner", version=__version__, docs_url=None, redoc_url=None)
    app.add_exception_handler(HTTPException, _refused)
    app.add_exception_handler(RequestValidationError, _malformed)
    app.add_exception_handler(Exception, _failed)
    app.add_middleware(HttpGuard, hosts=frozenset(hosts), probes_by_name=not loopback)

    @app.get("/health")
    async def health() -> dict[str, Any]:
        workers = sum(worker.connected for worker in service.planner.workers.values())
        return {"status": "ok", "store_up": service.store_up, "workers": workers}

    @app.get("/metrics")
    async def metrics() -> Response:
        service.refresh_metrics()
        # Thousands of series take a while to write down, and streams must not wait for it.
        text = await asyncio.to_thread(render, service.metrics.registry)
        return Response(text, media_type=METRICS_CONTENT_TYPE)

    if page:
        app.include_router(page_routes())
    app.include_router(routes(service, token, open_reads=loopback))
    return app


async def _refused(_request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    body = error_body(error.status_code, str(error.detail))
    return JSONResponse(body, error.status_code, error.headers)


async def _malformed(_request: Request, error: Exception) -> JSONResponse:
    """What does not fit the model, field by field; the values given are not repeated."""
    assert isinstance(error, RequestValidationError)
    faults = [
        f"{'.'.join(str(part) for part in fault['loc'] if part != 'body')}: {fault['msg']}"
        for fault in error.errors()
    ]
    return JSONResponse(error_body(400, "; ".join(faults)), 400)


async def _failed(request: Request, error: Exception) -> JSONResponse:
    log.error("request_failed", path=request.url.path, exc_info=error)
    return JSONResponse(error_body(500, "internal error"), 500)


class HttpServer:
    """The application on an address that is bound before anything else starts."""

    def __init__(self, app: FastAPI, host: str, port: int) -> None:
        """Binds at once; port 0 takes a free one.

        Raises:
            OSError: the port is taken or the host is not one of this machine's.
        """
        self._socket = listen(host, port)
        self.port: int = self._socket.getsockname()[1]
        self._server = quiet_server(app, error_body=error_body, lifespan="off")
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
