"""Loopback for tests: free ports, plain HTTP questions, and waiting for something to be true."""

import http.client
import socket
import time
from collections.abc import Callable
from contextlib import ExitStack

LOOPBACK = "127.0.0.1"


def free_ports(count: int) -> list[int]:
    """Ports nobody listens on; all different, since all are held while choosing."""
    with ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(count)]
        for probe in sockets:
            probe.bind((LOOPBACK, 0))
        return [probe.getsockname()[1] for probe in sockets]


def free_port_run(count: int, tries: int = 100) -> int:
    """The first of `count` free ports that follow one another."""
    for _ in range(tries):
        (first,) = free_ports(1)
        if first + count < 65536 and all(_is_free(first + step) for step in range(count)):
            return first
    raise OSError(f"no {count} free ports in a row")


def wait_until(condition: Callable[[], object], limit_s: float, what: str) -> None:
    """Ask until the answer is true; AssertionError naming `what` after the limit."""
    end_s = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > end_s:
            raise AssertionError(f"not within {limit_s:g} s: {what}")
        time.sleep(0.05)


def http_get(port: int, path: str, limit_s: float = 5.0) -> tuple[int, bytes]:
    """Status and body of a GET on loopback; status 0 where nobody answers."""
    connection = http.client.HTTPConnection(LOOPBACK, port, timeout=limit_s)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        return response.status, response.read()
    except (OSError, http.client.HTTPException):
        return 0, b""
    finally:
        connection.close()


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
    return True
