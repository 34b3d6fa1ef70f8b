"""HTTP below the API: bodies of bounded size, and noticing at once that a client has gone."""

import asyncio
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.types import Receive

from outrider_router.openai.errors import ApiError
from outrider_router.openai.json_body import json_value
from outrider_router.settings import RouterSettings

Result = TypeVar("Result")
_READ_ON = 16
_READ_AT_ONCE_BYTES = 1 << 18
# Parsing keeps the interpreter's lock, so that many at once would only take turns at holding it.
_LARGE_BODIES = ThreadPoolExecutor(1, "large-body")


class ClientGone(Exception):
    """The client closed the connection before its answer was complete."""


async def read_json(request: Request, settings: RouterSettings) -> Any:
    """The body as JSON, of a size that the settings allow.

    Raises:
        ApiError: 415 for another content type or a compressed body, 413 for too many bytes, 400 for
            broken JSON and too many values.
        starlette.requests.ClientDisconnect: the client went while sending.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise ApiError(415, "the body must be sent as application/json")
    encoding = request.headers.get("content-encoding", "identity").strip().lower()
    if encoding != "identity":
        raise ApiError(415, f"bodies with the content-encoding {encoding!r} are not taken")
    body = await _body(request, settings.max_body_bytes)
    read = partial(json_value, body, settings.max_json_values)
    if len(body) <= _READ_AT_ONCE_BYTES:
        return read()
    return await asyncio.get_running_loop().run_in_executor(_LARGE_BODIES, read)


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
