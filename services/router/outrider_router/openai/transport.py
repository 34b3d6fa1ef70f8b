"""HTTP below the API: bodies of bounded size, and noticing at once that a client has gone."""

import asyncio
import json
import re
from collections.abc import Coroutine
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.types import Receive

from outrider_router.openai.errors import ApiError, invalid
from outrider_router.text.depth import MAX_DEPTH, is_too_deep

Result = TypeVar("Result")
_READ_ON = 16
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


class ClientGone(Exception):
    """The client closed the connection before its answer was complete."""


async def read_json(request: Request, limit_bytes: int) -> Any:
    """The body as JSON.

    Raises:
        ApiError: 415 for another content type, 413 over the limit, 400 for broken JSON.
        starlette.requests.ClientDisconnect: the client went while sending.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise ApiError(415, "the body must be sent as application/json")
    body = await _body(request, limit_bytes)
    try:
        # Left to itself, json also reads UTF-16, and halves of characters in either.
        value = json.loads(body.decode("utf-8-sig"))
        if _SURROGATE.search(body):
            # JSON can name halves of characters, which no text in UTF-8 has.
            json.dumps(value, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        raise invalid(f"the body is not valid JSON: {error}", None, "invalid_json") from error
    # Counted first: few bodies have so many brackets, and none is looked through without need.
    if body.count(b"{") + body.count(b"[") > MAX_DEPTH and is_too_deep(value):
        raise invalid(f"the body is nested deeper than {MAX_DEPTH} levels", None)
    return value


async def _body(request: Request, limit_bytes: int) -> bytearray:
    """The whole body, of which no more is kept than is allowed.

    One that is larger is read on for a while nevertheless: a client that is still sending when the
    connection ends does not see the answer.
    """
    body = bytearray()
    read_bytes = 0
    async for chunk in request.stream():
        read_bytes += len(chunk)
        if read_bytes <= limit_bytes:
            body += chunk
        elif read_bytes > _READ_ON * limit_bytes:
            break
    if read_bytes > limit_bytes:
        raise ApiError(413, f"the body is larger than {limit_bytes} bytes")
    return body


async def until_disconnect(receive: Receive, work: Coroutine[Any, Any, Result]) -> Result:
    """The result of `work`, which is cancelled as soon as the client goes.

    The request's body must have been read: what comes next can only be the disconnect.

    Raises:
        ClientGone: the client went first.
    """
    # In a task of its own, also because what wakes often should not wake on top of all the frames
    # that an application has around a route.
    task = asyncio.create_task(work)
    gone = asyncio.create_task(_disconnected(receive))
    try:
        await asyncio.wait((task, gone), return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientGone
        return task.result()
    finally:
        gone.cancel()
        if not task.done():
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
