"""What every request must satisfy before a route sees it: host, origin, type and size of a body.

A page that a browser shows can reach its own machine (`outrider_runtime.http_guard`). So
host and origin are checked, and a body must be JSON, which no page can send elsewhere unasked.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, MutableMapping
from dataclasses import dataclass
from typing import Any

from starlette.datastructures import Headers
from starlette.responses import JSONResponse

from outrider_runtime.http_guard import ForeignRequest, check_host

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Message, Receive, Send], Awaitable[None]]

MOST_BODY_BYTES = 1 << 20
BODY_LIMIT_S = 10.0
_WITH_BODY = frozenset({"POST", "PUT", "PATCH", "DELETE"})
_OPEN_PATHS = frozenset({"/health", "/metrics"})


class RefusedError(Exception):
    """A request that no route may see."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


def error_body(status: int, message: str) -> dict[str, Any]:
    """The form of every error of this port."""
    return {"error": {"code": status, "message": message}}


@dataclass(frozen=True, slots=True)
class HttpGuard:
    """Middleware. ``hosts``: names, beside addresses and localhost, that this server goes by;
    ``probes_by_name``: health and metrics answer under any name, as probes of a cluster need."""

    app: App
    hosts: Collection[str] = ()
    probes_by_name: bool = False
    body_limit_s: float = BODY_LIMIT_S

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Passes on what is in order; answers with an error object otherwise."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        try:
            receive = await self._checked(scope, receive)
            # Answered as GET; the server itself leaves the body of HEAD out.
            method = "GET" if scope["method"] == "HEAD" else scope["method"]
            await self.app({**scope, "method": method}, receive, send)
        except RefusedError as error:
            body = error_body(error.status, str(error))
            await JSONResponse(body, error.status)(scope, receive, send)

    async def _checked(self, scope: Message, receive: Receive) -> Receive:
        headers = Headers(scope=scope)
        if not (self.probes_by_name and scope["path"] in _OPEN_PATHS):
            _check_host(headers, self.hosts)
        if scope["method"] not in _WITH_BODY:
            return receive
        kind = headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/json":
            raise RefusedError(415, "the body must be of type application/json")
        return _replayed(await self._body(receive))

    async def _body(self, receive: Receive) -> bytes:
        body = bytearray()
        try:
            async with asyncio.timeout(self.body_limit_s):
                while True:
                    message = await receive()
                    if message["type"] != "http.request":
                        raise RefusedError(400, "the body ended early")
                    body += message.get("body", b"")
                    if len(body) > MOST_BODY_BYTES:
                        raise RefusedError(413, f"the body is larger than {MOST_BODY_BYTES} bytes")
                    if not message.get("more_body"):
                        return bytes(body)
        except TimeoutError as error:
            raise RefusedError(408, "the body did not arrive in time") from error


def _replayed(body: bytes) -> Receive:
    """The body as one message; after it nothing comes any more."""
    messages = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> Message:
        return messages.pop() if messages else {"type": "http.disconnect"}

    return receive


def _check_host(headers: Headers, names: Collection[str]) -> None:
    try:
        check_host(headers.getlist("host"), headers.getlist("origin"), names)
    except ForeignRequest as error:
        raise RefusedError(error.status, str(error)) from error
