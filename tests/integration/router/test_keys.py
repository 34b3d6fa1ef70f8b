"""API keys over HTTP: who gets in, how much each may have, and what workers learn of it."""

import asyncio
import hashlib
import json
from pathlib import Path
from typing import Any

import openai
import pytest
import structlog

from tests.support.fake_worker import FakeWorker, saying
from tests.support.router_stack import HurriedClock, RunningRouter, running_router, until

pytestmark = pytest.mark.asyncio(loop_scope="module")
GOOD: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}]}
CHAT = "/v1/chat/completions"


def key_file(folder: Path, **limits: dict[str, Any]) -> Path:
    """A file of keys that are called as their names."""
    keys = [
        {"name": name, "sha256": hashlib.sha256(name.encode()).hexdigest(), **of_key}
        for name, of_key in limits.items()
    ]
    path = folder / "keys.json"
    path.write_text(json.dumps({"keys": keys}))
    return path


async def ask(router: RunningRouter, key: str, **options: Any) -> Any:
    headers = {"Authorization": f"Bearer {key}"}
    return await router.http.post(CHAT, json=GOOD | options, headers=headers)


async def test_only_keys_get_in() -> None:
    async with (
        FakeWorker(script=saying("ok")) as worker,
        running_router(worker, api_key="k2", api_keys="k1,k2") as router,
    ):
        for headers in ({}, {"Authorization": "Bearer nope"}, {"Authorization": "Basic k1"}):
            response = await router.http.post(CHAT, json=GOOD, headers=headers)
            assert response.status_code == 401
            assert response.json()["error"]["code"] == "invalid_api_key"
            assert response.headers["x-request-id"]
        for path in ("/ready", "/health", "/metrics", "/version"):
            assert (await router.http.get(path)).status_code == 200
        assert (await router.client.chat.completions.create(**GOOD)).choices
        with pytest.raises(openai.AuthenticationError):
            await router.client.with_options(api_key="k3").models.list()


async def test_a_key_is_held_to_its_requests_and_told_when_to_come_back(tmp_path: Path) -> None:
    path = key_file(tmp_path, poor={"requests_per_minute": 2}, rich={})
    async with (
        FakeWorker(script=saying("ok")) as worker,
        running_router(worker, api_keys_file=path) as router,
    ):
        answers = [await ask(router, "poor") for _ in range(3)]
        assert [a.status_code for a in answers] == [200, 200, 429]
        assert answers[0].headers["x-ratelimit-remaining-requests"] == "1"
        refused = answers[2]
        assert 25_000 < int(refused.headers["retry-after-ms"]) <= 30_000
        assert int(refused.headers["retry-after"]) <= 30
        assert refused.headers["x-ratelimit-remaining-requests"] == "0"
        assert "requests per minute" in refused.json()["error"]["message"]
        free = await ask(router, "rich")
        assert free.status_code == 200
        assert not [name for name in free.headers if name.startswith("x-ratelimit")]
        assert await router.metric("outrider_router_requests_total", outcome="overloaded") == 1


async def test_a_keys_tokens_count_prompts_and_answers(tmp_path: Path) -> None:
    path = key_file(tmp_path, a={"tokens_per_minute": 60}, b={})
    async with (
        FakeWorker(script=saying("abcdefghijklmnopqrstuvwxyz0123456789")) as worker,
        running_router(worker, api_keys_file=path) as router,
    ):
        first = await ask(router, "a", max_tokens=36)
        usage = first.json()["usage"]
        assert usage["completion_tokens"] > 20
        second = await ask(router, "a")
        assert second.status_code == 429
        assert "tokens per minute" in second.json()["error"]["message"]
        left = int(second.headers["x-ratelimit-remaining-tokens"])
        assert left <= max(0, 60 - usage["total_tokens"]) + 2
        assert router.settled()


async def test_workers_learn_a_keys_class_salt_and_cap_from_the_file_alone(tmp_path: Path) -> None:
    marks = {"class_label": "batch", "cache_salt": "s", "max_draft_tokens": 2, "priority": "low"}
    path = key_file(tmp_path, marked=marks, plain={})
    async with (
        FakeWorker(script=saying("ok")) as worker,
        running_router(worker, api_keys_file=path) as router,
    ):
        forged = {"X-Class-Label": "interactive", "Authorization": "Bearer marked"}
        assert (await router.http.post(CHAT, json=GOOD, headers=forged)).status_code == 200
        assert (await ask(router, "plain")).status_code == 200
        marked, plain = worker.submitted
        assert (marked.class_label, len(marked.tenant_salt)) == ("batch", 32)
        assert (marked.priority > 0, marked.speculation.max_draft_tokens) == (True, 2)
        assert (plain.class_label, plain.tenant_salt, plain.priority) == ("", b"", 0)
        assert not plain.speculation.HasField("max_draft_tokens")


async def test_a_key_that_asks_for_much_does_not_keep_another_one_waiting(tmp_path: Path) -> None:
    path = key_file(tmp_path, crowd={}, one={}, few={"concurrent": 1})
    async with (
        FakeWorker(script=saying("ok", stall_after=0)) as worker,
        running_router(worker, api_keys_file=path, max_in_flight=1, max_waiting=16) as router,
    ):
        order: list[str] = []

        async def timed(key: str) -> int:
            response = await ask(router, key)
            order.append(key)
            return int(response.status_code)

        tasks = [asyncio.create_task(timed("crowd")) for _ in range(6)]
        await until(lambda: router.state.admission.waiting == 5, 3, "the crowd waits")
        tasks += [asyncio.create_task(timed(key)) for key in ("few", "one")]
        await until(lambda: router.state.admission.waiting == 7, 3, "all wait")
        assert (await ask(router, "few")).status_code == 429, "one place in all, waiting or not"
        worker.resume.set()
        assert await asyncio.gather(*tasks) == [200] * 8
        assert max(order.index("few"), order.index("one")) <= 3
        await until(router.settled, 1, "settled")


async def test_priority_decides_who_of_a_key_is_next() -> None:
    """Lower first, as other servers have it; workers are told."""
    async with (
        FakeWorker(script=saying("ok", stall_after=0)) as worker,
        running_router(worker, max_in_flight=1, max_waiting=16) as router,
    ):
        tasks = [asyncio.create_task(router.http.post(CHAT, json=GOOD))]
        await until(lambda: worker.active, 3, "the first is in")
        for number, priority in enumerate((3, None, -2, 7), 1):
            tasks.append(
                asyncio.create_task(router.http.post(CHAT, json=GOOD | {"priority": priority}))
            )
            await until(lambda n=number: router.state.admission.waiting == n, 3, "in line")
        worker.resume.set()
        assert [(await task).status_code for task in tasks] == [200] * 5
        assert [submit.priority for submit in worker.submitted] == [0, -2, 0, 3, 7]
        ignored = "outrider_router_ignored_fields_total"
        assert await router.metric(ignored, field="priority") == 0


async def test_keys_are_read_again_when_their_file_changes(tmp_path: Path) -> None:
    """Without a restart; a file that is not in order changes nothing, and the log says so."""
    path = key_file(tmp_path, old={}, both={"requests_per_minute": 1})
    async with (
        FakeWorker(script=saying("ok")) as worker,
        running_router(worker, api_keys_file=path, clock=HurriedClock()) as router,
    ):

        async def statuses(*keys: str) -> list[int]:
            return [(await ask(router, key)).status_code for key in keys]

        assert await statuses("old", "both", "new") == [200, 200, 401]
        good = key_file(tmp_path, new={}, both={"requests_per_minute": 1}).read_text()
        gate: Any = router.state.gate
        await until(lambda: gate.tenant("new"), 5, "the new key is known")
        assert await statuses("old", "both", "new") == [401, 429, 200]
        for bad in (b'{"keys": [{"name": "new"}]}', b"", b"[" * 200_000, b"\xff", None):
            with structlog.testing.capture_logs() as lines:
                path.unlink() if bad is None else path.write_bytes(bad)
                await until(lambda told=lines: _kept(told), 5, "told")
            assert await statuses("old", "new") == [401, 200]
        path.write_text(good.replace('"both"', '"another"'))
        await until(lambda: gate.tenant("both").name == "another", 5, "read again")


def _kept(lines: Any) -> bool:
    return any(line["event"] == "keys_kept_as_they_were" for line in lines)


async def test_a_file_without_keys_lets_nobody_in(tmp_path: Path) -> None:
    async with running_router(ready=False, api_keys_file=key_file(tmp_path)) as router:
        assert (await ask(router, "any")).status_code == 401


async def test_a_missing_content_type_is_json_only_where_a_key_is_shown() -> None:
    body = json.dumps(GOOD).encode()
    async with FakeWorker(script=saying("ok")) as worker:
        async with running_router(worker, api_keys="k") as router:
            headers = {"Authorization": "Bearer k"}
            response = await router.http.post(CHAT, content=body, headers=headers)
            assert response.status_code == 200
            wrong = headers | {"content-type": "text/plain"}
            assert (await router.http.post(CHAT, content=body, headers=wrong)).status_code == 415
        async with running_router(worker) as router:
            assert (await router.http.post(CHAT, content=body)).status_code == 415
