"""The banner of a stack that is up: what it shows can be copied, with and without keys."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from outrider_cli.report import Console, StateFile
from outrider_cli.stack import ChildSpec, Port, Stack
from outrider_cli.supervisor import Supervisor

HOST = "127.0.0.1"
METRICS = """# TYPE outrider_worker_info gauge
outrider_worker_info{worker="w",deployment="d",model="org/model"} 1.0
"""


@contextmanager
def answering(pages: dict[str, tuple[int, str]]) -> Iterator[Port]:
    """A server of these pages, which stands for every port of a stack."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, text = pages.get(self.path, (404, ""))
            self.send_response(status)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, format: str, *args: object) -> None:
            return

    server = ThreadingHTTPServer((HOST, 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    try:
        yield Port(HOST, server.server_address[1], "--port")
    finally:
        server.shutdown()
        server.server_close()


async def banner(capsys: pytest.CaptureFixture[str], pages: dict[str, tuple[int, str]]) -> str:
    with answering(pages) as port:

        def spec(name: str, use: str) -> ChildSpec:
            return ChildSpec(name, "none", {}, {use: port}, 1.0)

        stack = Stack(spec("planner", "http"), (spec("w", "metrics"),), spec("router", "http"), {})
        console = Console(("router",))
        await Supervisor(stack, console, StateFile(None, stack), False)._announce()
    return capsys.readouterr().out


async def test_the_model_is_what_the_router_lists(capsys: pytest.CaptureFixture[str]) -> None:
    listed = json.dumps({"data": [{"id": "demo"}]})
    shown = await banner(capsys, {"/v1/models": (200, listed), "/chat/": (200, "")})
    assert '"model": "demo"' in shown
    assert "/chat/\n" in shown
    assert "Authorization" not in shown


async def test_with_keys_the_model_is_known_nevertheless_and_the_request_has_one(
    capsys: pytest.CaptureFixture[str],
) -> None:
    shown = await banner(capsys, {"/v1/models": (401, "{}"), "/metrics": (200, METRICS)})
    assert '"model": "org/model"' in shown
    assert '-H "Authorization: Bearer $key" \\\n' in shown
