"""Registries of their own, and a side port that serves them."""

import pytest
from prometheus_client import Counter

from outrider_runtime.metrics import new_registry, render, serve_metrics
from tests.support.net import http_get


def test_registries_do_not_share_and_have_no_created_series() -> None:
    one, two = new_registry(), new_registry()
    Counter("outrider_example_things", "Things.", registry=one).inc(3)
    assert b"outrider_example_things_total 3.0" in render(one)
    assert b"_created" not in render(one)
    assert render(two) == b""


def test_the_side_port_serves_and_ends() -> None:
    registry = new_registry()
    Counter("outrider_example_things", "Things.", registry=registry).inc()
    server = serve_metrics(registry, "127.0.0.1", 0)
    assert b"outrider_example_things_total 1.0" in http_get(server.port, "/metrics")[1]
    server.close()
    assert http_get(server.port, "/metrics") == (0, b"")


def test_a_taken_port_is_an_os_error() -> None:
    server = serve_metrics(new_registry(), "127.0.0.1", 0)
    try:
        with pytest.raises(OSError, match="in use"):
            serve_metrics(new_registry(), "127.0.0.1", server.port)
    finally:
        server.close()
