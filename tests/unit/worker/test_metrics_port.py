"""The side port that serves metrics, and what may hold one of its connections."""

import socket
import threading
import time

import pytest
from prometheus_client import Counter

from outrider_runtime.metrics import new_registry
from outrider_worker.metrics_port import serve_metrics
from tests.support.net import LOOPBACK, http_get, wait_until


def test_the_side_port_serves_and_ends() -> None:
    registry = new_registry()
    Counter("outrider_example_things", "Things.", registry=registry).inc()
    server = serve_metrics(registry, LOOPBACK, 0)
    assert b"outrider_example_things_total 1.0" in http_get(server.port, "/metrics")[1]
    server.close()
    assert http_get(server.port, "/metrics") == (0, b"")


def test_it_serves_the_other_family_too() -> None:
    server = serve_metrics(new_registry(), "::1", 0)
    try:
        with socket.create_connection(("::1", server.port), 5) as client:
            client.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
            assert b" 200 " in client.recv(100)
    finally:
        server.close()


def test_a_taken_port_is_an_os_error() -> None:
    server = serve_metrics(new_registry(), LOOPBACK, 0)
    try:
        with pytest.raises(OSError, match="in use"):
            serve_metrics(new_registry(), LOOPBACK, server.port)
    finally:
        server.close()


def test_connections_that_say_nothing_or_never_end_keep_no_thread(
    capfd: pytest.CaptureFixture[str],
) -> None:
    server = serve_metrics(new_registry(), LOOPBACK, 0, limit_s=0.3)
    before = threading.active_count()
    clients = [socket.create_connection((LOOPBACK, server.port)) for _ in range(6)]
    try:
        for client in clients[::2]:
            client.sendall(b"GET /metrics HTTP/1.1\r\nhost:")
        wait_until(lambda: threading.active_count() > before, 5, "they have come")
        started_s = time.monotonic()
        for client in clients:
            client.settimeout(5)
            while client.recv(1 << 16):
                pass
        assert time.monotonic() - started_s < 5
        wait_until(lambda: threading.active_count() <= before, 5, "no thread is left")
        assert http_get(server.port, "/metrics")[0] == 200
    finally:
        server.close()
        for client in clients:
            client.close()
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("path", ["/", "/health", "/metrics/more", "/metric"])
def test_nothing_is_anywhere_else(path: str) -> None:
    server = serve_metrics(new_registry(), LOOPBACK, 0)
    try:
        assert http_get(server.port, path)[0] == 404
        assert http_get(server.port, "/metrics?name[]=up")[0] == 200
    finally:
        server.close()
