"""What a request must satisfy before anything reads it: who sends it, how large and how slow it is.

A router without keys serves its own machine, which includes every page that a browser there shows;
`outrider_runtime.http_guard` says how those are told apart. With keys that is not needed: no page
has one.
"""

import asyncio
from collections.abc import Collection

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from outrider_router.middleware import send_error
from outrider_router.openai.errors import ApiError
from outrider_runtime.http_guard import ForeignRequest, check_host


class HttpGuard:
    """Refuses what is foreign or too large, and bodies that do not arrive.

    Args:
        app: what comes behind.
        hosts: names that the server goes by; None checks neither host nor origin.
        max_header_bytes: of all headers together.
        body_limit_s: time for the whole body.
    """

    def __init__(
        self,
        app: ASGIApp,
        hosts: Collection[str] | None,
        max_header_bytes: int,
        body_limit_s: float,
    ) -> None:
        self._app = app
        self._hosts = hosts
        self._max_header_bytes = max_header_bytes
        self._body_limit_s = body_limit_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        try:
            self._check(scope)
        except ApiError as error:
            await send_error(send, error)
            return
        await self._app(scope, self._in_time(receive), send)

    def _check(self, scope: Scope) -> None:
        size = sum(len(name) + len(value) for name, value in scope["headers"])
        if size + len(scope["raw_path"]) + len(scope["query_string"]) > self._max_header_bytes:
            raise ApiError(431, f"the headers are larger than {self._max_header_bytes} bytes")
        if self._hosts is None:
            return
        headers = Headers(scope=scope)
        try:
            check_host(headers.getlist("host"), headers.getlist("origin"), self._hosts)
        except ForeignRequest as error:
            raise ApiError(error.status, str(error)) from error

    def _in_time(self, receive: Receive) -> Receive:
        """The body's parts, all within the limit; what comes behind the body may take its time."""
        end_s = asyncio.get_running_loop().time() + self._body_limit_s
        whole = False

        async def receive_in_time() -> Message:
            nonlocal whole
            if whole:
                return await receive()
            try:
                async with asyncio.timeout_at(end_s):
                    message = await receive()
            except TimeoutError:
                raise ApiError(408, "the body did not arrive in time") from None
            whole = not message.get("more_body", False)
            return message

        return receive_in_time
