"""HTTP connections of which every part is bounded, as uvicorn's own are not.

An application hears of a request once its head is complete, and can bound what comes after that:
the body it reads, the time it takes. Everything before and around is bounded here: heads, the
framing and trailers of chunked bodies, and the time in which it is the client's turn. What is told
of it has the application's form. Knows no application. Needs uvicorn and httptools.
"""

import asyncio
import json
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Any, cast

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from outrider_runtime.http_parser import PlainParser

ErrorBody = Callable[[int, str], Mapping[str, Any]]
"""An error as a JSON object, from its status and a message."""
_HEAD_TOO_SLOW = (HTTPStatus.REQUEST_TIMEOUT, "the headers did not arrive in time")
_HEAD_TOO_LARGE = (HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, "the headers are too large")
_NOT_HTTP = (HTTPStatus.BAD_REQUEST, "the request is no valid HTTP")


class BoundedProtocol(HttpToolsProtocol):
    """A connection that is ended when its client sends too much of nothing, or too slowly.

    Args:
        max_head_bytes: of a request's line and headers, of trailers, of a chunk's own line.
        head_limit_s: time for a head, from the connection or from the first byte behind an answer.
            What is left of a body that was answered before it was read counts as such bytes. Also
            the time in which a client must take something of what is left of an answer.
        error_body: what a client is told whose request no application gets to see.
        uvicorn: what every protocol of its gets.
    """

    def __init__(
        self, max_head_bytes: int, head_limit_s: float, error_body: ErrorBody, **uvicorn: Any
    ) -> None:
        super().__init__(**uvicorn)
        self.parser = cast(httptools.HttpRequestParser, PlainParser(self))
        self._max_head_bytes = max_head_bytes
        self._head_limit_s = head_limit_s
        self._error_body = error_body
        # Received since the parser last gave something away, so at least what it keeps.
        self._kept_bytes = 0
        self._begun = self._in_body = False
        self._turn: asyncio.TimerHandle | None = None
        self._taking: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """It is the client's turn."""
        super().connection_made(transport)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        """Nothing is waited for any more."""
        for timer in (self._turn, self._taking, self.timeout_keep_alive_task):
            if timer is not None:
                timer.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Some of a request."""
        self._kept_bytes += len(data)
        super().data_received(data)
        if self.transport.is_closing():
            return
        if self._kept_bytes > self._max_head_bytes:
            self._end(*_HEAD_TOO_LARGE)
        else:
            self._watch()

    def on_message_begin(self) -> None:
        """The first byte of a request."""
        self._begun = True
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header; trailers, which nobody here reads, are dropped."""
        if not self._in_body:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """The head has ended."""
        if not self.parser.should_upgrade():
            self._kept_bytes, self._in_body = 0, True
            super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """A piece of the body, which is the application's to bound."""
        self._kept_bytes = 0
        super().on_body(body)

    def on_chunk_header(self) -> None:
        """A chunk begins; after the last one, trailers do."""
        self._kept_bytes = 0

    def on_message_complete(self) -> None:
        """The request has ended."""
        if not self.parser.should_upgrade():
            self._kept_bytes = 0
            self._begun = self._in_body = False
            super().on_message_complete()

    def on_response_complete(self) -> None:
        """The answer is written, though its client may not have taken it all."""
        super().on_response_complete()
        self._watch_taking()
        self._watch()

    def send_400_response(self, msg: str) -> None:
        """What came is no HTTP; uvicorn's words for it are no JSON."""
        self._end(*_NOT_HTTP)

    @property
    def _answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    @property
    def _idle(self) -> bool:
        """Whether all that came is answered, and more may come or not.

        Nobody is idle who still sends the request that was answered, or has begun the next one.
        """
        return self.cycle is not None and not self._answering and not self._begun

    def _watch(self) -> None:
        """Let the client's time run as long as it is its turn, and be long while it is idle."""
        if self.transport.is_closing():
            return
        if self._answering or self._idle:
            if self._turn is not None:
                self._turn.cancel()
                self._turn = None
        elif self._turn is None:
            self._turn = self.loop.call_later(self._head_limit_s, self._end, *_HEAD_TOO_SLOW)
        if self._idle and self.timeout_keep_alive_task is None:
            # The last of a body that was answered before, which uvicorn takes for a new request.
            self.timeout_keep_alive_task = self.loop.call_later(
                self.timeout_keep_alive, self.timeout_keep_alive_handler
            )

    def _watch_taking(self) -> None:
        left_bytes = self.transport.get_write_buffer_size()
        if left_bytes and self._taking is None:
            self._taking = self.loop.call_later(self._head_limit_s, self._check, left_bytes)

    def _check(self, left_bytes: int) -> None:
        """Let go of a client that has taken nothing: closing would wait for it without end.

        Within an answer, it is the application's to wait.
        """
        self._taking = None
        if self._answering or self.transport.get_write_buffer_size() < left_bytes:
            self._watch_taking()
        else:
            self.transport.abort()

    @property
    def _heard(self) -> bool:
        """Whether what is written now would be taken as the answer to what is at fault.

        Within an answer it would be a part of that, and to a request of which only the body was
        left, or behind one that still waits, the answer to another one.
        """
        if self._answering:
            return self._in_body and not self.pipeline and not self.cycle.response_started
        return self._begun and not self._in_body

    def _end(self, status: HTTPStatus, message: str) -> None:
        """Close, with a word to a client that can tell what it is about."""
        if self.transport.is_closing():
            return
        if self._heard:
            body = json.dumps(self._error_body(status, message)).encode()
            head = (
                f"HTTP/1.1 {status.value} {status.phrase}\r\ncontent-type: application/json\r\n"
                f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
            )
            self.transport.write(head.encode() + body)
        self.transport.close()
        self._watch_taking()
