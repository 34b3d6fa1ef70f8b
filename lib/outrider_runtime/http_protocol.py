"""HTTP connections of which every part is bounded, as uvicorn's own are not.

An application hears of a request once its head is complete, and can bound what comes after that:
the body it reads, the time it takes. Everything before and around is bounded here: heads, the
framing and trailers of chunked bodies, and the time in which it is the client's turn. Knows no
application. Needs uvicorn and httptools.
"""

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

_HEAD_TOO_LARGE = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\n"
    b"content-length: 0\r\nconnection: close\r\n\r\n"
)
_HEAD_TOO_SLOW = b"HTTP/1.1 408 Request Timeout\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"


class BoundedProtocol(HttpToolsProtocol):
    """A connection that is ended when its client sends too much of nothing, or too slowly.

    Args:
        max_head_bytes: of a request's line and headers, of trailers, of a chunk's own line.
        head_limit_s: time for a head, from the connection or from the first byte behind an answer.
            What is left of a body that was answered before it was read counts as such bytes. Also
            the time in which a client must take something of what is left of an answer.
        uvicorn: what every protocol of its gets.
    """

    def __init__(self, max_head_bytes: int, head_limit_s: float, **uvicorn: Any) -> None:
        super().__init__(**uvicorn)
        self._max_head_bytes = max_head_bytes
        self._head_limit_s = head_limit_s
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
        for timer in (self._turn, self._taking):
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
            self._end(_HEAD_TOO_LARGE)
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
        self._kept_bytes = 0
        self._begun = self._in_body = False
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """The answer is written, though its client may not have taken it all."""
        super().on_response_complete()
        self._watch_taking()
        if self._begun:
            # Nobody is idle who still sends this request, or has begun the next one.
            self._watch()

    @property
    def _answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _watch(self) -> None:
        """Let the client's time run as long as it is its turn."""
        if self._answering and self._turn is not None:
            self._turn.cancel()
            self._turn = None
        elif not self._answering and self._turn is None:
            self._turn = self.loop.call_later(self._head_limit_s, self._end, _HEAD_TOO_SLOW)

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

    def _end(self, answer: bytes) -> None:
        """Close, with a word to a client that has said something since it was last answered."""
        if self.transport.is_closing():
            return
        if self._begun and not self._in_body:
            self.transport.write(answer)
        self.transport.close()
        self._watch_taking()
