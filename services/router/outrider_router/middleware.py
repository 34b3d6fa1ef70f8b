"""What surrounds every HTTP request: its id, the last net for errors, and API keys.

Pure ASGI: the base class that wraps requests in tasks would hide disconnects from the routes.
"""

import hmac
import json
import re
import secrets
from collections.abc import Iterable

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from outrider_router.openai.errors import ApiError
from outrider_runtime.clock import Clock
from outrider_runtime.logs import bind_request, get_logger

log = get_logger(__name__)

_SANE_ID = re.compile(r"[A-Za-z0-9._:@/+=-]{1,128}")
_OPEN_PATHS = frozenset({"/health", "/ready", "/version", "/metrics"})


class RequestContext:
    """Gives each request an id, shown in logs and headers, and answers faults with an envelope."""

    def __init__(self, app: ASGIApp, clock: Clock) -> None:
        self._app = app
        self._clock = clock

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = _request_id(Headers(scope=scope))
        scope.setdefault("state", {})["request_id"] = request_id
        started_s = self._clock.monotonic_s()
        began = False

        async def send_with_headers(message: Message) -> None:
            nonlocal began
            if message["type"] == "http.response.start":
                began = True
                milliseconds = (self._clock.monotonic_s() - started_s) * 1000
                headers = MutableHeaders(scope=message)
                headers["x-request-id"] = request_id
                headers["openai-processing-ms"] = str(round(milliseconds))
            await send(message)

        with bind_request(request_id):
            try:
                await self._app(scope, receive, send_with_headers)
            except Exception:
                log.exception("request_failed", path=scope["path"])
                if began:
                    raise
                await send_error(send_with_headers, ApiError(500, "the router failed"))


class ApiKeys:
    """Lets only clients with a key through; health, readiness and metrics stay open."""

    def __init__(self, app: ASGIApp, keys: Iterable[str]) -> None:
        self._app = app
        self._keys = [key.encode() for key in keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in _OPEN_PATHS or self._permits(scope):
            await self._app(scope, receive, send)
            return
        await send_error(send, ApiError(401, "a valid API key is needed: Authorization: Bearer …"))

    def _permits(self, scope: Scope) -> bool:
        kind, _, key = Headers(scope=scope).get("authorization", "").partition(" ")
        # Every key is compared, so that the time taken tells nothing.
        matches = [hmac.compare_digest(key.strip().encode(), known) for known in self._keys]
        return kind.lower() == "bearer" and any(matches)


async def send_error(send: Send, error: ApiError) -> None:
    """Write an error's envelope as the whole response."""
    body = json.dumps(error.body()).encode()
    headers = {"content-type": "application/json", "content-length": str(len(body))}
    if error.status == 401:
        headers["www-authenticate"] = "Bearer"
    raw = [
        (name.encode(), value.encode()) for name, value in {**headers, **error.headers()}.items()
    ]
    await send({"type": "http.response.start", "status": error.status, "headers": raw})
    await send({"type": "http.response.body", "body": body})


def _request_id(headers: Headers) -> str:
    """The client's own id if it has a sane form, a new one otherwise."""
    for name in ("x-request-id", "x-client-request-id"):
        given = headers.get(name, "")
        if _SANE_ID.fullmatch(given):
            return given
    return f"req_{secrets.token_hex(12)}"
