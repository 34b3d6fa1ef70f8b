"""TLS: between services with certificates of both sides, and for clients of the HTTP port."""

import asyncio
import ssl
from pathlib import Path
from typing import Any

import httpx2
import pytest

from outrider_router.server import serve
from outrider_router.settings import RouterSettings
from outrider_runtime.settings import ConfigurationError
from outrider_runtime.tls import tls_files
from tests.support.certificates import NAME, Certificates, make_certificates
from tests.support.fake_worker import FakeWorker, saying
from tests.support.net import free_ports
from tests.support.router_stack import running_router, until

GOOD: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}]}
CHAT = "/v1/chat/completions"


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("certificates"))


def of_services(files: Certificates, **changed: Any) -> dict[str, Any]:
    pair = {"tls_cert_file": files.cert, "tls_key_file": files.key}
    return {"tls_ca_file": files.ca, "tls_server_name": NAME, **pair, **changed}


async def test_router_and_worker_prove_themselves_to_each_other(files: Certificates) -> None:
    tls = tls_files(RouterSettings(**of_services(files)))
    async with FakeWorker(script=saying("ok"), tls=tls) as worker:
        async with running_router(worker, **of_services(files)) as router:
            assert (await router.http.post(CHAT, json=GOOD)).status_code == 200
        nameless = of_services(files, tls_cert_file=None, tls_key_file=None)
        for settings in ({}, nameless):
            async with running_router(worker, ready=False, **settings) as router:
                await until(lambda r=router: "UNAVAILABLE" in str(r.state.trouble()), 5, "kept out")
        assert len(worker.submitted) == 1


async def test_clients_reach_the_router_by_https_alone(files: Certificates) -> None:
    stop, (port,) = asyncio.Event(), free_ports(1)
    async with FakeWorker(script=saying("ok")) as worker:
        settings = RouterSettings(
            workers=(worker.address,),
            port=port,
            http_tls_cert_file=files.cert,
            http_tls_key_file=files.key,
        )
        serving = asyncio.create_task(serve(settings, stop))
        trust = ssl.create_default_context(cafile=str(files.ca))
        async with httpx2.AsyncClient(verify=trust, base_url=f"https://127.0.0.1:{port}") as http:
            async with asyncio.timeout(10):
                while not await _is_ready(http):
                    await asyncio.sleep(0.05)
            answer = await http.post(CHAT, json=GOOD)
            assert answer.json()["choices"][0]["message"]["content"] == "ok"
        async with httpx2.AsyncClient(verify=False) as plain:
            with pytest.raises(httpx2.HTTPError):
                await plain.get(f"http://127.0.0.1:{port}/health")
        stop.set()
        await asyncio.wait_for(serving, 10)


async def _is_ready(http: httpx2.AsyncClient) -> bool:
    try:
        return (await http.get("/ready")).status_code == 200
    except httpx2.ConnectError:
        return False


def test_half_of_the_files_is_a_mistake_that_stops_the_start(
    files: Certificates, tmp_path: Path
) -> None:
    with pytest.raises(ConfigurationError, match="go together"):
        tls_files(RouterSettings(**of_services(files, tls_key_file=None)))
    with pytest.raises(ConfigurationError, match="needs OUTRIDER_TLS_CA_FILE"):
        tls_files(RouterSettings(**of_services(files, tls_ca_file=None)))
    with pytest.raises(ConfigurationError, match="HTTPS needs"):
        RouterSettings(http_tls_cert_file=files.cert).https()
    with pytest.raises(ConfigurationError, match=r"none\.pem"):
        tls_files(RouterSettings(**of_services(files, tls_ca_file=tmp_path / "none.pem")))
    (tmp_path / "words").write_text("no certificate")
    with pytest.raises(ConfigurationError, match="no PEM file"):
        tls_files(RouterSettings(**of_services(files, tls_key_file=tmp_path / "words")))
