"""What surrounds every HTTP request: its id, the last net for errors, and API keys.

Pure ASGI: the base class that wraps requests in tasks would hide disconnects from the routes.
"""

import json
import re
import secrets

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from outrider_router.access.gate import Gate
from outrider_router.openai.errors import ApiError
from outrider_router.page import is_page
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
    """Lets only clients with a key through, and tells them what is left of its limits.

    Health, readiness, metrics and the page stay open. What comes behind finds the key's `tenant` in
    the request's state; where no keys are set, everybody is `anonymous`.
    """

    def __init__(self, app: ASGIApp, gate: Gate, clock: Clock) -> None:
        self._app = app
        self._gate = gate
        self._clock = clock

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in _OPEN_PATHS or is_page(scope["path"]):
            await self._app(scope, receive, send)
            return
        tenant = self._gate.tenant(_bearer(scope))
        if tenant is None:
            text = "a valid API key is needed: Authorization: Bearer …"
            await send_error(send, ApiError(401, text))
            return
        scope.setdefault("state", {})["tenant"] = tenant
        if self._gate.needs_key:
            _assume_json(scope)

        async def send_with_limits(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.update(dict(tenant.rate_headers(self._clock.monotonic_s())))
            await send(message)

        await self._app(scope, receive, send_with_limits)


def _bearer(scope: Scope) -> str:
    kind, _, key = Headers(scope=scope).get("authorization", "").partition(" ")
    return key.strip() if kind.lower() == "bearer" else ""


def _assume_json(scope: Scope) -> None:
    """A body of no stated type counts as JSON: no web page can send it with a key unasked."""
    if "content-type" not in Headers(scope=scope):
        scope["headers"] = [*scope["headers"], (b"content-type", b"application/json")]


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
