"""What a router refuses before it reads a request, and what slow or foreign clients can do."""

import asyncio
import json
import time
from typing import Any

import pytest
from structlog.processors import format_exc_info
from structlog.testing import capture_logs

from tests.support.fake_worker import FakeWorker, saying
from tests.support.router_stack import Stack, running_router, until

pytestmark = pytest.mark.asyncio(loop_scope="module")
GOOD: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}]}
CHAT = "/v1/chat/completions"


async def test_no_web_page_drives_a_router_without_keys(stack: Stack) -> None:
    """Neither by a name that resolves to it, nor by asking from its own origin."""
    stack.worker.script = saying("ok")
    http, own = stack.router.http, stack.router.url
    for headers, status in (
        ({"Host": "evil.example"}, 421),
        ({"Host": "127.0.0.1.evil.example"}, 421),
        ({"Origin": "https://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": own}, 200),
        ({"Host": "localhost:8000"}, 200),
    ):
        response = await http.post(CHAT, json=GOOD, headers=headers)
        assert response.status_code == status, headers
        assert status == 200 or response.json()["error"]["message"]
        assert response.headers["x-request-id"]


async def test_names_can_be_allowed_and_keys_make_them_needless() -> None:
    named = {"Host": "models.internal"}
    async with FakeWorker(script=saying("ok")) as worker:
        async with running_router(worker, http_names="models.internal") as router:
            assert (await router.http.post(CHAT, json=GOOD, headers=named)).status_code == 200
        async with running_router(worker, api_keys="k") as router:
            keyed = {"Host": "anything", "Authorization": "Bearer k", "Origin": "https://a.example"}
            assert (await router.http.post(CHAT, json=GOOD, headers=keyed)).status_code == 200


async def test_headers_and_slow_bodies_are_bounded() -> None:
    async with (
        FakeWorker(script=saying("ok")) as worker,
        running_router(worker, max_header_bytes=2000, body_limit_s=0.3) as router,
    ):
        large = {"x-large": "a" * 3000}
        refused = await router.http.get("/v1/models", headers=large)
        assert refused.status_code == 431
        host, port = router.url.removeprefix("http://").split(":")
        # What has no end is refused before the application gets to see it, in the same form.
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"GET / HTTP/1.1\r\nx-large: " + b"a" * 4000)
        answered, _, body = (await reader.read()).partition(b"\r\n\r\n")
        assert b" 431 " in answered
        for error in (refused.json()["error"], json.loads(body)["error"]):
            assert error["message"].startswith("the headers are ")
            assert (error["type"], error["param"]) == ("invalid_request_error", None)
        writer.close()
        reader, writer = await asyncio.open_connection(host, int(port))
        head = f"POST {CHAT} HTTP/1.1\r\nHost: {host}:{port}\r\ncontent-type: application/json\r\n"
        writer.write(f"{head}content-length: 1000\r\n\r\n{{".encode())
        started_s = time.monotonic()
        answer = await asyncio.wait_for(reader.readline(), 5)
        assert b" 408 " in answer
        assert time.monotonic() - started_s < 3
        writer.close()
        await until(router.settled, 1, "settled")


async def test_prompts_are_in_no_log(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither of answers nor of refusals, nor where the router fails."""
    secret = "a-word-of-the-prompt"
    stack.worker.script = saying("a-word-of-the-answer")
    messages = [{"role": "user", "content": secret}]
    asked = [
        (200, GOOD | {"messages": messages}),
        (400, GOOD | {"messages": [{"role": secret}]}),
        (400, GOOD | {"messages": messages, secret: [secret], "temperature": secret}),
        (400, f'{{"model": "tiny", "messages": "{secret}'),
        (415, None),
        (500, GOOD | {"messages": messages}),
    ]
    with capture_logs(processors=[format_exc_info]) as lines:
        for status, body in asked:
            if status == 500:
                monkeypatch.setattr("outrider_router.openai.endpoint.order_of", fail)
            content = body if isinstance(body, str) else json.dumps(body)
            kind = {"content-type": "application/json"} if body else {}
            response = await stack.router.http.post(CHAT, content=content, headers=kind)
            assert response.status_code == status
    (failed,) = [line for line in lines if line["event"] == "request_failed"]
    assert "order_of is broken" in failed["exception"]
    assert "a-word" not in repr(lines)


def fail(*_: Any) -> Any:
    raise RuntimeError("order_of is broken")
