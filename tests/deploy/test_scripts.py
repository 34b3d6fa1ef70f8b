"""The small programs of the deployment: the load generator, and the stand-in for a compiler."""

import hashlib
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from deploy.compose.load import Load
from deploy.docker.triton_driver import write_command
from tests.support.net import wait_until

EVENTS = (
    'data: {"choices": [{"delta": {"content": "a"}}], "usage": null}\n\n',
    ": ping\n\n",
    'data: {"choices": [], "usage": {"completion_tokens": 7}}\n\n',
    "data: [DONE]\n\n",
)
MODELS = '{"data": [{"id": "model"}]}'


class Server(ThreadingHTTPServer):
    """Streams its events to who shows the key."""

    events: tuple[str, ...] = EVENTS
    models: str | None = MODELS  # None: what is no HTTP

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        if self.server.models is None:
            self.wfile.write(b"no HTTP\r\n")
        else:
            self._answer(self.server.models)

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self._answer("".join(self.server.events))

    def _answer(self, text: str) -> None:
        allowed = self.headers["Authorization"] == "Bearer key"
        self.send_response(200 if allowed else 401)
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *_: object) -> None:
        """Nothing: the default writes each request to stderr."""


@pytest.fixture
def server() -> Iterator[Server]:
    with Server(("127.0.0.1", 0), Handler) as running:
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield running
        running.shutdown()
        thread.join()


def one_request(load: Load) -> str:
    """What a client reports that stops after its first request."""
    stop = load.stop
    done = load.body

    def last_body() -> dict[str, object]:
        stop.set()
        return done()

    load.body = last_body  # type: ignore[method-assign]
    load.client()
    return load.summary()


def test_load_counts_answers_and_tokens(server: Server) -> None:
    assert one_request(Load(server.url, "key")) == "answers: 1, tokens: 7"


def test_load_tells_a_cut_stream_from_an_answer(server: Server) -> None:
    server.events = EVENTS[:-1]
    assert "failed (ValueError: the stream ended early): 1" in one_request(Load(server.url, "key"))
    server.events = ('data: {"error": {"message": "no worker"}}\n\n',)
    assert "failed (ValueError: no worker): 1" in one_request(Load(server.url, "key"))


def test_load_shows_its_key(server: Server) -> None:
    load = Load(server.url, "wrong")
    threading.Timer(0.2, load.stop.set).start()  # within the rest after the first failure
    load.client()
    assert "failed (HTTPError: HTTP Error 401: Unauthorized): 1" in load.summary()


@pytest.mark.parametrize(
    ("models", "why"),
    [
        ('{"data": []}', "NothingServed: no model is served yet"),
        ('{"models": []}', "KeyError: 'data'"),
        ("", "JSONDecodeError"),
        (None, "BadStatusLine"),
    ],
)
def test_load_waits_for_a_stack_that_is_not_ready_and_says_so(
    server: Server, monkeypatch: pytest.MonkeyPatch, models: str | None, why: str
) -> None:
    monkeypatch.setattr("deploy.compose.load.REST_S", 0.05)
    server.models = models
    load = Load(server.url, "key")
    client = threading.Thread(target=load.client, daemon=True)
    client.start()
    waiting = f"waiting for {server.url}; "
    try:
        wait_until(lambda: load.summary().startswith(f"{waiting}failed ({why}"), 5, why)
        server.models = MODELS
        wait_until(lambda: "answers: " in load.summary(), 5, "the load goes on")
    finally:
        load.stop.set()
        client.join(5)
    assert not client.is_alive()


def test_the_stand_in_hands_out_what_was_compiled_and_nothing_else(tmp_path: Path) -> None:
    source, other, output = (tmp_path / name for name in ("driver.c", "other.c", "out.so"))
    source.write_text("int one;")
    other.write_text("int two;")
    (tmp_path / hashlib.sha256(source.read_bytes()).hexdigest()).write_bytes(b"built")
    command = write_command(tmp_path, sys.executable)
    subprocess.run([command, source, "-O3", "-shared", "-o", output, "-lcuda"], check=True)
    assert output.read_bytes() == b"built"
    refused = subprocess.run([command, other, "-o", output], capture_output=True, text=True)
    assert refused.returncode == 1
    assert "this image has no compiler, and other.c" in refused.stderr
