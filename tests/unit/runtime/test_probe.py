"""The question that containers ask their services: in plain, by TLS, and where all is not well."""

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from outrider_runtime.http import listen, quiet_server
from outrider_runtime.probe import trouble
from outrider_runtime.rpc import start_server
from outrider_runtime.tls import TlsFiles
from tests.support.certificates import Certificates, make_certificates
from tests.support.net import LOOPBACK, free_ports


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("certificates"))


async def state(scope: dict[str, Any], _receive: Any, send: Any) -> None:
    status = 200 if scope["path"] == "/ready" else 503
    await send({"type": "http.response.start", "status": status, "headers": []})
    await send({"type": "http.response.body", "body": b""})


@asynccontextmanager
async def served(**options: Any) -> AsyncIterator[str]:
    listener = listen(LOOPBACK, 0)
    server = quiet_server(state, lifespan="off", **options)
    serving = asyncio.create_task(server.serve([listener]))
    try:
        yield f"http://{LOOPBACK}:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        await serving


async def asked(url: str) -> str | None:
    return await asyncio.to_thread(trouble, url)


@pytest.mark.parametrize("secure", [False, True])
async def test_http_is_asked_as_the_server_speaks_it(
    files: Certificates, secure: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    pair = {"ssl_certfile": str(files.cert), "ssl_keyfile": str(files.key)} if secure else {}
    async with served(**pair) as url:
        assert await asked(f"{url}/ready") is None
        assert "503" in str(await asked(f"{url}/health"))
    assert "refused" in str(await asked(f"{url}/ready"))


@pytest.mark.parametrize("name", [None, "workers.internal", "another.internal"])
async def test_grpc_is_asked_by_tls_where_the_services_use_it(
    files: Certificates, name: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the name in the certificate, whatever it is, unless a setting says another."""
    tls = TlsFiles(files.ca, files.cert, files.key)
    server = await start_server(LOOPBACK, 0, "token", lambda _server: None, [], tls)
    url = f"grpc://{LOOPBACK}:{server.port}"
    try:
        await server.set_serving(True)
        assert await asked(url) is not None, "in plain it does not answer"
        for variable, path in (("CA", files.ca), ("CERT", files.cert), ("KEY", files.key)):
            monkeypatch.setenv(f"OUTRIDER_TLS_{variable}_FILE", str(path))
        if name:
            monkeypatch.setenv("OUTRIDER_TLS_SERVER_NAME", name)
        assert (await asked(url) is None) is (name != "another.internal")
        await server.set_serving(False)
        assert await asked(url) is not None
    finally:
        await server.stop(0)


async def test_grpc_in_plain_and_nobody_there() -> None:
    server = await start_server(LOOPBACK, 0, "token", lambda _server: None, [])
    url = f"grpc://{LOOPBACK}:{server.port}"
    assert "not serving" in str(await asked(url))
    await server.set_serving(True)
    assert await asked(url) is None
    await server.stop(0)
    assert LOOPBACK in str(await asked(url))


def test_the_answer_is_the_exit_status_and_what_is_not_needed_is_not_imported(
    tmp_path: Path,
) -> None:
    (port,) = free_ports(1)
    probe = [sys.executable, "-X", "importtime", "-m", "outrider_runtime.probe"]
    done = subprocess.run([*probe, f"http://{LOOPBACK}:{port}/"], capture_output=True, text=True)
    assert done.returncode == 1
    assert "refused" in done.stderr
    assert "pydantic" not in done.stderr
    assert "grpc" not in done.stderr.replace("grpc://", "")
    assert subprocess.run([*probe], capture_output=True).returncode == 2
    with pytest.raises(ValueError, match="neither http"):
        trouble("redis://a:1")


def test_an_address_of_another_kind_is_told_in_a_line() -> None:
    probe = [sys.executable, "-m", "outrider_runtime.probe", "https://a:1/ready"]
    done = subprocess.run(probe, capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.splitlines() == [
        "'https://a:1/ready' is neither http://HOST:PORT/PATH nor grpc://HOST:PORT;"
        " http:// finds a server that speaks HTTPS, too"
    ]
