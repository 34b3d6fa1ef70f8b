"""A process for tests of the supervisor that behaves as its environment says: serves the questions
a supervisor asks, ends by itself, ignores SIGTERM, leaves a grandchild.

    STAND_IN_HTTP_PORT      answer GET /health, /ready and /v1/models here
    STAND_IN_GRPC_PORT      serve the standard health service here
    STAND_IN_END_AFTER_S    end with exit code 3 after this time
    STAND_IN_DEAF           ignore SIGTERM
    STAND_IN_GRANDCHILD     start a process that sleeps for a minute
    STAND_IN_JOURNAL        append a line here when SIGTERM arrives
"""

import asyncio
import json
import os
import signal
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from outrider_runtime.lifecycle import exit_with_parent_if_asked
from outrider_runtime.rpc import start_server

_ASKED = os.environ


class _Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        body = json.dumps({"data": [{"id": "stand-in"}]}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        return


def _serve_http(port: int) -> None:
    server = ThreadingHTTPServer(("127.0.0.1", port), _Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()


def _on_term(number: int, _frame: object) -> None:
    if path := _ASKED.get("STAND_IN_JOURNAL"):
        with Path(path).open("a") as journal:
            journal.write(f"{_ASKED['STAND_IN_NAME']}\n")
    if "STAND_IN_DEAF" not in _ASKED:
        sys.exit(0)


async def main() -> None:
    exit_with_parent_if_asked()
    signal.signal(signal.SIGTERM, _on_term)
    name = _ASKED["STAND_IN_NAME"]
    print(f"{name} says hello, token {'set' if _ASKED.get('OUTRIDER_TOKEN') else 'missing'}")
    if "STAND_IN_GRANDCHILD" in _ASKED:
        await asyncio.create_subprocess_exec(sys.executable, "-c", "import time; time.sleep(60)")
    if port := _ASKED.get("STAND_IN_HTTP_PORT"):
        _serve_http(int(port))
    if port := _ASKED.get("STAND_IN_GRPC_PORT"):
        server = await start_server("127.0.0.1", int(port), None, lambda _: None, ())
        await server.set_serving(True)
    await asyncio.sleep(float(_ASKED.get("STAND_IN_END_AFTER_S", "60")))
    print(f"{name} gives up", file=sys.stderr)
    sys.exit(3)


if __name__ == "__main__":
    asyncio.run(main())
