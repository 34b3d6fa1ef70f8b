"""Every error has the envelope and the right status, whatever went wrong and wherever."""

import io
import itertools
from typing import Any

import openai
import pytest
import structlog

from outrider.worker.v1 import worker_pb2
from tests.support.fake_worker import FakeWorker, Script, saying
from tests.support.router_stack import Stack, running_router

pytestmark = pytest.mark.asyncio(loop_scope="module")
MESSAGES: Any = [{"role": "user", "content": "hi"}]
GOOD: dict[str, Any] = {"model": "tiny", "messages": MESSAGES}
CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"


def envelope(response: Any) -> dict[str, Any]:
    """The error object, checked for its form and headers."""
    body = response.json()
    assert set(body) == {"error"}
    assert set(body["error"]) == {"message", "type", "param", "code"}
    assert isinstance(body["error"]["message"], str)
    assert "x-request-id" in response.headers
    error: dict[str, Any] = body["error"]
    return error


HALF_CHARACTER = b'{"model": "tiny\\ud83d", "messages": [{"role": "user", "content": "\\ud83d"}]}'
# The same half in UTF-8, where it has no right to be, and bodies in other encodings.
RAW_HALF_CHARACTER = b'{"model": "tiny", "messages": [{"role": "user", "content": "\xed\xa0\xbd"}]}'
OTHER_ENCODINGS = [
    text.encode(name, "surrogatepass")
    for text in ('{"model": "tiny", "user": "\ud83d"}', '{"model": "tiny"}')
    for name in ("utf-16", "utf-16-le", "utf-32-be")
]
TOOLS = [{"type": "function", "function": {"name": "f"}}]
# Changes to a good chat request: status, param, code.
BAD_CHATS: list[tuple[dict[str, Any], int, str | None, str]] = [
    ({"messages": []}, 400, "messages", "invalid_value"),
    ({"messages": "hi"}, 400, "messages", "invalid_value"),
    ({"messages": [{"role": "wizard", "content": "x"}]}, 400, "messages[0].role", "invalid_value"),
    ({"model": 7}, 400, "model", "invalid_value"),
    ({"model": "other"}, 404, "model", "model_not_found"),
    ({"temperature": 2.1}, 400, "temperature", "invalid_value"),
    ({"temperature": "0.5"}, 400, "temperature", "invalid_value"),
    ({"top_p": -0.1}, 400, "top_p", "invalid_value"),
    ({"max_tokens": 0}, 400, "max_tokens", "invalid_value"),
    ({"n": 0}, 400, "n", "invalid_value"),
    ({"n": 100}, 400, "n", "invalid_value"),
    ({"n": True}, 400, "n", "invalid_value"),
    ({"stop": ["a", "b", "c", "d", "e"]}, 400, "stop", "invalid_value"),
    ({"stop": ""}, 400, "stop", "invalid_value"),
    ({"seed": 1.5}, 400, "seed", "invalid_value"),
    ({"stream": "yes"}, 400, "stream", "invalid_value"),
    ({"stream_options": {"include_usage": True}}, 400, "stream_options", "invalid_value"),
    ({"speculation": {"max_draft": -1}}, 400, "speculation.max_draft", "invalid_value"),
    ({"speculation": {"depth": 3}}, 400, "speculation.depth", "invalid_value"),
    ({"tools": [{"type": "function"}]}, 400, "tools[0].function", "invalid_value"),
    ({"tools": TOOLS}, 400, "tools", "unsupported_parameter"),
    ({"logprobs": True}, 400, "logprobs", "unsupported_parameter"),
    ({"response_format": {"type": "json_object"}}, 400, "response_format", "unsupported_parameter"),
    ({"functions": [{}]}, 400, "functions", "unsupported_parameter"),
    ({"modalities": ["text", "audio"]}, 400, "modalities", "unsupported_parameter"),
    ({"store": True}, 400, "store", "unsupported_parameter"),
    ({"best_of": 3}, 400, "best_of", "unsupported_parameter"),
    ({"presence_penalty": 0.5}, 400, "presence_penalty", "unsupported_parameter"),
    ({"min_tokens": 3}, 400, "min_tokens", "unsupported_parameter"),
    ({"logit_bias": {"5": 1}}, 400, "logit_bias", "unsupported_parameter"),
    (
        {"messages": [{"role": "user", "content": "word " * 600}]},
        400,
        "messages",
        "context_length_exceeded",
    ),
    (
        {"messages": [{"role": "user", "content": "x" * 200_000}]},
        400,
        "messages",
        "context_length_exceeded",
    ),
]
BAD_TEXTS: list[tuple[dict[str, Any], str, str]] = [
    ({}, "prompt", "missing_required_parameter"),
    ({"prompt": ""}, "prompt", "invalid_value"),
    ({"prompt": []}, "prompt", "invalid_value"),
    ({"prompt": [10**6]}, "prompt", "invalid_value"),
    ({"prompt": [[1], ["a"]]}, "prompt", "invalid_value"),
    ({"prompt": [5] * 512}, "prompt", "context_length_exceeded"),
    ({"prompt": ["a", [1]]}, "prompt", "invalid_value"),
    ({"prompt": [True]}, "prompt", "invalid_value"),
    ({"prompt": [2**32]}, "prompt", "invalid_value"),
    ({"prompt": ["a"] * 17}, "prompt", "invalid_value"),
    ({"prompt": ["a"] * 9, "n": 2}, "prompt", "invalid_value"),
    ({"prompt": ["a"] * 2, "n": 17}, "n", "invalid_value"),
    ({"prompt": "a", "echo": True, "logprobs": 1}, "echo", "unsupported_parameter"),
    ({"prompt": "a", "suffix": "b"}, "suffix", "unsupported_parameter"),
    ({"prompt": "a", "logprobs": 0}, "logprobs", "unsupported_parameter"),
]


async def test_bad_requests(stack: Stack) -> None:
    """E09: status, shape, field and code of each; the router serves on afterwards."""
    worker, router = stack.worker, stack.router
    worker.script = saying("ok")
    for change, status, param, code in BAD_CHATS:
        response = await router.http.post(CHAT, json=GOOD | change)
        error = envelope(response)
        assert (response.status_code, error["param"], error["code"]) == (status, param, code)
        assert error["type"] == "invalid_request_error"
    for fields, param, code in BAD_TEXTS:
        response = await router.http.post(TEXT, json={"model": "tiny"} | fields)
        error = envelope(response)
        assert (response.status_code, error["param"], error["code"]) == (400, param, code)
    assert not worker.submitted
    assert (await router.http.post(CHAT, json=GOOD)).status_code == 200
    assert router.settled()
    refused = len(BAD_CHATS) + len(BAD_TEXTS)
    assert await router.metric("outrider_router_requests_total", outcome="invalid") == refused


async def test_errors_below_the_api() -> None:
    json_type = {"content-type": "application/json"}
    async with (
        FakeWorker(script=saying("ok")) as worker,
        running_router(worker, max_body_bytes=1000) as router,
    ):
        http = router.http
        cases = [
            (await http.post(CHAT, content=b"{oops", headers=json_type), 400),
            (await http.post(CHAT, content=b"[1]", headers=json_type), 400),
            (await http.post(CHAT, content=b"\xff\xfe\x00", headers=json_type), 400),
            (await http.post(CHAT, content=b"[" * 900, headers=json_type), 400),
            (await http.post(CHAT, content=b"", headers=json_type), 400),
            (await http.post(CHAT, content=HALF_CHARACTER, headers=json_type), 400),
            (await http.post(CHAT, content=RAW_HALF_CHARACTER, headers=json_type), 400),
            *[(await http.post(CHAT, content=c, headers=json_type), 400) for c in OTHER_ENCODINGS],
            (await http.post(CHAT, content=b"{}", headers={"content-type": "text/plain"}), 415),
            (await http.post(CHAT, content=b"{}"), 415),
            (await http.post(CHAT, content=b"x" * 1001, headers=json_type), 413),
            (await http.get(CHAT), 405),
            (await http.delete("/v1/models"), 405),
            (await http.get("/v2/none"), 404),
            (await http.get("/redoc"), 404),
            (await http.get("/v1/models/none"), 404),
            (await http.post("/tokenize", json={"model": "tiny"}), 400),
            (await http.post("/detokenize", json={"model": "tiny", "tokens": [10**6]}), 400),
        ]
        for response, status in cases:
            error = envelope(response)
            assert response.status_code == status, error
            assert error["type"] == "invalid_request_error"


async def test_contents_by_role(stack: Stack) -> None:
    """E10: strings and lists of text parts are content, everything else is a 400."""
    part = {"type": "text", "text": "a"}
    table: list[tuple[dict[str, Any], int, str | None]] = [
        ({}, 400, None),
        ({"content": None}, 400, None),
        ({"content": ""}, 200, ""),
        ({"content": []}, 400, None),
        ({"content": [part]}, 200, "a"),
        ({"content": [part, {"type": "text", "text": "b"}]}, 200, "ab"),
        ({"content": [{"type": "image_url", "image_url": {}}]}, 400, None),
        ({"content": [{"type": "riddle"}]}, 400, None),
        ({"content": [{"type": "text"}]}, 400, None),
        ({"content": [7]}, 400, None),
        ({"content": {"text": "a"}}, 400, None),
    ]
    roles = {r: r for r in ("system", "user", "assistant", "tool")} | {"developer": "system"}
    worker, router = stack.worker, stack.router
    worker.script = saying("ok")
    for (role, shown), (fields, status, text) in itertools.product(roles.items(), table):
        body = {"model": "tiny", "messages": [{"role": role, **fields}]}
        response = await router.http.post(CHAT, json=body)
        assert response.status_code == status, (fields, response.text)
        if text is None:
            assert envelope(response)["param"].startswith("messages[0]")
        else:
            assert f"<|im_start|>{shown}\n{text}<|im_end|>" in worker.texts()[-1]


# Failure code of the worker: status, wire code, param.
WORKER_FAILURES: dict[str, tuple[int, str, str | None]] = {
    "INVALID": (400, "invalid_value", "top_k"),
    "UNSUPPORTED": (400, "unsupported_parameter", "top_k"),
    "TOO_LONG": (400, "context_length_exceeded", "messages"),
    "OVERLOADED": (429, "rate_limit_exceeded", None),
    "UNAVAILABLE": (503, "overloaded", None),
    "INTERNAL": (500, "server_error", None),
    "DEADLINE": (408, "timeout", None),
}


@pytest.mark.parametrize("stream", [False, True])
async def test_worker_failures_before_the_first_token(stream: bool, stack: Stack) -> None:
    worker, router = stack.worker, stack.router
    for code, (status, wire_code, param) in WORKER_FAILURES.items():
        value = worker_pb2.FailureCode.Value(f"FAILURE_CODE_{code}")
        given = "top_k" if status == 400 else ""
        worker.script = Script([], failure=value, failure_param=given)
        response = await router.http.post(CHAT, json=GOOD | {"stream": stream})
        error = envelope(response)
        assert (response.status_code, error["code"], error["param"]) == (
            status,
            wire_code,
            param,
        )
        assert response.headers["content-type"] == "application/json"
        assert ("retry-after" in response.headers) is (status in (429, 503))
    assert router.settled()


async def test_failure_after_the_first_token(stack: Stack) -> None:
    """E12: an error event and the end, no DONE; a whole answer is an error not to be retried."""
    failing = saying("ab", 1, failure=worker_pb2.FAILURE_CODE_INTERNAL)
    worker, router = stack.worker, stack.router
    worker.script = failing
    response = await router.http.post(CHAT, json=GOOD | {"stream": True})
    events = response.text.strip().split("\n\n")
    assert response.status_code == 200
    assert events[-1].startswith('data: {"error":{"message":"as scripted","type":"server_err')
    assert "[DONE]" not in response.text
    assert '"finish_reason":"' not in response.text
    stream = await router.client.chat.completions.create(**GOOD, stream=True)
    seen = io.StringIO()
    with pytest.raises(openai.APIError, match="as scripted"):
        await copy_text(stream, seen)
    assert seen.getvalue() == "ab", "what came before the failure is delivered"
    whole = await router.http.post(CHAT, json=GOOD)
    assert (whole.status_code, whole.headers["x-should-retry"]) == (500, "false")
    assert envelope(whole)["code"] == "server_error"
    assert await router.metric("outrider_router_requests_total", outcome="error") == 3


async def test_worker_that_sends_too_much_is_an_error(stack: Stack) -> None:
    def script(submit: worker_pb2.Submit) -> Script:
        submit.sampling.max_tokens = 10
        return saying("abcdefghij", 10)

    worker, router = stack.worker, stack.router
    worker.script = script
    response = await router.http.post(CHAT, json=GOOD | {"max_tokens": 2})
    assert response.status_code == 500
    assert "more tokens than asked for" in envelope(response)["message"]
    assert router.settled()


async def test_no_worker_is_503_and_not_ready() -> None:
    async with running_router("127.0.0.1:9", ready=False) as router:
        assert (await router.http.get("/health")).status_code == 200
        ready = await router.http.get("/ready")
        assert ready.status_code == 503
        reason = ready.json()["reason"]
        assert "the worker is not connected" in reason
        assert "127.0.0.1" not in reason, "addresses are nobody's business"
        assert (await router.client.models.list()).data == []
        response = await router.http.post(CHAT, json=GOOD)
        assert (response.status_code, response.headers["retry-after"]) == (503, "1")
        assert envelope(response)["type"] == "server_error"
        assert await router.metric("outrider_router_requests_total", outcome="unavailable") == 1
    async with running_router(ready=False) as router:
        assert (await router.http.get("/ready")).json()["reason"] == "no workers are known"


async def test_template_that_refuses_is_the_clients_error() -> None:
    template = "{{ raise_exception('roles must alternate') }}"
    async with FakeWorker(chat_template=template) as worker, running_router(worker) as router:
        response = await router.http.post(CHAT, json=GOOD)
        assert response.status_code == 400
        assert "roles must alternate" in envelope(response)["message"]
        tokens = await router.http.post("/tokenize", json=GOOD)
        assert tokens.status_code == 400


async def copy_text(stream: Any, seen: io.StringIO) -> None:
    async for chunk in stream:
        seen.write(chunk.choices[0].delta.content or "")


async def test_faults_of_the_router_have_the_envelope_too(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    router = stack.router
    monkeypatch.setattr(router.state.registry.model("tiny").text, "encode_chat", None)
    with structlog.testing.capture_logs():
        response = await router.http.post(CHAT, json=GOOD)
    assert response.status_code == 500
    assert envelope(response)["message"] == "the router failed"
    assert await router.metric("outrider_router_requests_total", outcome="error") == 1
    assert router.settled()
