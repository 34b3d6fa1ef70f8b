"""Serving the application until asked to stop, and stopping without cutting anybody off."""

import asyncio
import socket
from typing import Any

import uvicorn

from outrider_router.app import build_state, create_app
from outrider_router.openai.errors import ApiError
from outrider_router.settings import RouterSettings
from outrider_router.state import RouterState
from outrider_runtime.http import listen, quiet_server
from outrider_runtime.logs import get_logger
from outrider_runtime.settings import ConfigurationError

log = get_logger(__name__)

SEND_BUFFER_BYTES = 256 * 1024
"""What the kernel may keep of an answer for a client that does not read."""
_POLL_S = 0.05
_CLOSE_LIMIT_S = 5


async def serve(settings: RouterSettings, stop: asyncio.Event) -> None:
    """Serve until `stop` is set, then drain and return.

    Raises:
        ConfigurationError: the address is open to others and no API key is set, or the port is
            taken.
    """
    settings.require_safe()
    https = settings.https()
    listener = _listen(settings.host, settings.port)
    log.info("listening", host=settings.host, port=listener.getsockname()[1])
    state = build_state(settings)
    server = make_server(state, timeout_graceful_shutdown=_CLOSE_LIMIT_S, **https)
    running = asyncio.create_task(server.serve([listener]))
    stopping = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait((running, stopping), return_when=asyncio.FIRST_COMPLETED)
        if not running.done():
            await drain(state)
            server.should_exit = True
        await running
    finally:
        stopping.cancel()


def make_server(state: RouterState, **options: Any) -> uvicorn.Server:
    """The application on a server that has its limits and its form of errors.

    `options`: of `uvicorn.Config`.
    """
    return quiet_server(
        create_app(state),
        # The application refuses what is complete; this ends what never is.
        max_head_bytes=2 * state.settings.max_header_bytes,
        error_body=lambda status, message: ApiError(status, message).body(),
        **options,
    )


def _listen(host: str, port: int) -> socket.socket:
    try:
        return listen(host, port, SEND_BUFFER_BYTES)
    except OSError as error:
        raise ConfigurationError(f"cannot listen on {host}:{port}: {error.strerror}") from error


async def drain(state: RouterState) -> None:
    """Take in nothing new, let running requests finish within the limit, fail the rest."""
    state.draining = True
    state.admission.send_away()
    log.info("draining", choices=state.admission.choices)
    try:
        async with asyncio.timeout(state.settings.drain_limit_s):
            await _until_idle(state)
    except TimeoutError:
        log.warning("drain_limit_reached", choices=state.admission.choices)
        # Ends every request still on a worker with an error that its client gets to see.
        await state.registry.stop()


async def _until_idle(state: RouterState) -> None:
    while state.admission.choices:
        await asyncio.sleep(_POLL_S)
