"""A parser of requests for connections that stay HTTP/1.1, whatever else their clients offer.

httptools takes an offer (`Upgrade: h2c`, which Java's client sends with every first request) for an
agreement, and a request that makes one for ended with its head. A server may ignore offers (RFC
9110, section 7.8): here such a request is read again without, body and all. Knows no connection.
Needs uvicorn and httptools.
"""

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol


class PlainParser:
    """What uvicorn's protocol uses of httptools' parser.

    While `should_upgrade`, what the protocol is told of a request is to be ignored, but for its
    line and its headers, which it keeps: all of it is told again.
    """

    def __init__(self, protocol: HttpToolsProtocol) -> None:
        self._protocol = protocol
        self._parser = self._new_parser()

    def feed_data(self, data: bytes) -> None:
        """Some of a request, or of several.

        Raises:
            httptools.HttpParserError: this is no HTTP, or asks for a tunnel (CONNECT).
        """
        rest = memoryview(data)
        while rest:
            try:
                self._parser.feed_data(rest)
                return
            except httptools.HttpParserUpgrade as offer:
                head = self._head_without_offer()
                # A new one: the other has ended where this is the connection's last request.
                self._parser = self._new_parser()
                self._parser.feed_data(head)
                rest = rest[offer.args[0] :]

    def should_upgrade(self) -> bool:
        """Whether what the protocol is being told will be told again."""
        return self._parser.should_upgrade()

    def should_keep_alive(self) -> bool:
        """Whether another request may follow this one."""
        return self._parser.should_keep_alive()

    def get_http_version(self) -> str:
        """Of this request: `1.1`."""
        return self._parser.get_http_version()

    def get_method(self) -> bytes:
        """Of this request: `POST`."""
        return self._parser.get_method()

    def _new_parser(self) -> httptools.HttpRequestParser:
        parser = httptools.HttpRequestParser(self._protocol)
        # As uvicorn has it: what comes behind the last request is dropped.
        parser.set_dangerous_leniencies(lenient_data_after_close=True)
        return parser

    def _head_without_offer(self) -> bytes:
        method, version = self.get_method(), self.get_http_version()
        if method == b"CONNECT":
            raise httptools.HttpParserError("CONNECT is for proxies")
        lines = [b"%s %s HTTP/%s" % (method, self._protocol.url, version.encode())]
        headers = self._protocol.headers
        lines += [b"%s: %s" % header for header in headers if header[0] != b"upgrade"]
        return b"\r\n".join([*lines, b"", b""])
