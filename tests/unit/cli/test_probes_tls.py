"""A supervisor's questions where its services use TLS."""

import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from outrider_cli.errors import CommandError
from outrider_cli.inherited import InheritedTls, inherited_tls
from outrider_cli.options import StackOptions
from outrider_cli.probes import grpc_serving, http_get, http_ok
from outrider_cli.report import base_url
from outrider_cli.stack import Port, build_stack
from outrider_runtime.rpc import start_server
from outrider_runtime.tls import TlsFiles
from tests.support.certificates import NAME, Certificates, make_certificates

HOST = "127.0.0.1"


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("certificates"))


class _Ready(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"{}")

    def log_message(self, format: str, *args: object) -> None:
        return


@contextmanager
def https_server(files: Certificates) -> Iterator[int]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files.cert, files.key)
    server = ThreadingHTTPServer((HOST, 0), _Ready)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


async def test_a_router_of_https_is_asked_by_https(files: Certificates) -> None:
    with https_server(files) as number:
        port = Port(HOST, number, "--port", tls=True)
        assert await http_ok(port, "/ready")
        assert await http_get(port, "/ready") == (200, b"{}")
        assert base_url(port) == f"https://{HOST}:{number}/v1"
        assert not await http_ok(Port(HOST, number, "--port"), "/ready")


async def test_workers_are_asked_with_the_certificates_they_want(files: Certificates) -> None:
    tls = TlsFiles(files.ca, files.cert, files.key, NAME)
    server = await start_server(HOST, 0, None, lambda _: None, (), tls)
    await server.set_serving(True)
    port = Port(HOST, server.port, "--worker-port")
    assert await grpc_serving(port, tls)
    assert not await grpc_serving(port)
    await server.stop(0)


def test_tls_is_taken_from_the_environment_as_the_services_take_it(
    files: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert inherited_tls() == InheritedTls()
    monkeypatch.setenv("OUTRIDER_ROUTER_HTTP_TLS_CERT_FILE", str(files.cert))
    for name in ("ca", "cert", "key"):
        monkeypatch.setenv(f"OUTRIDER_TLS_{name.upper()}_FILE", str(getattr(files, name)))
    found = inherited_tls()
    assert found == InheritedTls(TlsFiles(files.ca, files.cert, files.key), https=True)
    stack = build_stack(StackOptions(), "demo", "t", found.https)
    assert [child.name for child in stack.children if any(p.tls for p in child.ports.values())] == [
        "router"
    ]
    monkeypatch.delenv("OUTRIDER_TLS_KEY_FILE")
    with pytest.raises(CommandError, match="go together"):
        inherited_tls()
