"""What HTTP clients of all kinds send beside a request's fields: methods, hosts, encodings."""

import asyncio
import gzip
import json
from typing import Any

import pytest

from tests.support.fake_worker import saying
from tests.support.router_stack import Stack

pytestmark = pytest.mark.asyncio(loop_scope="module")
GOOD: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}]}
CHAT = "/v1/chat/completions"


async def status_of(stack: Stack, head: str) -> int:
    """The status that a request gets whose head is exactly this."""
    host, port = stack.router.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        writer.write(head.replace("\n", "\r\n").encode())
        line = await asyncio.wait_for(reader.readline(), 5)
        return int(line.split()[1])
    finally:
        writer.close()
        await writer.wait_closed()


@pytest.mark.parametrize("path", ["/health", "/ready", "/version", "/metrics"])
async def test_probes_may_ask_for_the_head_alone(stack: Stack, path: str) -> None:
    whole, head = await stack.router.http.get(path), await stack.router.http.head(path)
    assert (whole.status_code, head.status_code) == (200, 200)
    assert head.headers["content-type"] == whole.headers["content-type"]
    assert (bool(whole.content), head.content) == (True, b"")


@pytest.mark.parametrize(
    ("head", "status"),
    [
        ("GET /ready HTTP/1.0\n\n", 200),
        ("GET /v1/models HTTP/1.0\n\n", 200),
        ("GET /ready HTTP/1.0\nOrigin: http://evil.example\n\n", 403),
        ("GET /ready HTTP/1.1\nHost:\n\n", 421),
        ("GET /ready HTTP/1.1\nHost: localhost\nHost: localhost\n\n", 400),
        ("GET /ready HTTP/1.1\nHost: localhost\nHost: evil.example\n\n", 400),
        ("GET /ready HTTP/1.1\nHost: localhost\nOrigin: http://localhost\n\n", 200),
        (
            "GET /ready HTTP/1.1\nHost: localhost\nOrigin: http://localhost\n"
            "Origin: http://evil.example\n\n",
            403,
        ),
    ],
)
async def test_only_one_host_is_believed_and_none_is_no_browser(
    stack: Stack, head: str, status: int
) -> None:
    assert await status_of(stack, head) == status


async def test_a_foreign_origin_has_a_code_of_its_kind(stack: Stack) -> None:
    response = await stack.router.http.get("/ready", headers={"Origin": "http://evil.example"})
    error = response.json()["error"]
    assert (response.status_code, error["type"]) == (403, "permission_error")
    assert error["code"] == "permission_denied"


async def test_compressed_bodies_are_refused_as_such(stack: Stack) -> None:
    stack.worker.script = saying("ok")
    body = json.dumps(GOOD).encode()
    headers = {"content-type": "application/json"}
    packed = {**headers, "content-encoding": "gzip"}
    response = await stack.router.http.post(CHAT, content=gzip.compress(body), headers=packed)
    assert response.status_code == 415
    assert "'gzip'" in response.json()["error"]["message"]
    plain = {**headers, "content-encoding": "identity"}
    assert (await stack.router.http.post(CHAT, content=body, headers=plain)).status_code == 200


async def test_biases_of_words_are_told_that_ids_are_wanted(stack: Stack) -> None:
    response = await stack.router.http.post(CHAT, json=GOOD | {"logit_bias": {"abc": 1}})
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (400, "logit_bias")
    assert error["message"] == "logit_bias: keys must be token ids"
