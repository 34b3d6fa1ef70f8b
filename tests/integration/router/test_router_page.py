"""`/chat` without a browser: which files there are, how they are locked in, who may see them."""

import re

import pytest

from tests.support.fake_worker import FakeWorker
from tests.support.router_stack import Stack, running_router

pytestmark = pytest.mark.asyncio(loop_scope="module")
LINKS = re.compile(r'(?:href|src)="([^"#]+)"|(?:from|import) "\./([^"]+)"')


async def test_the_page_and_everything_it_names_is_there(stack: Stack) -> None:
    http = stack.router.http
    moved = await http.get("/chat")
    assert (moved.status_code, moved.headers["location"]) == (307, "chat/")
    waiting, seen = [""], set()
    while waiting:
        path = waiting.pop()
        answer = await http.get(f"/chat/{path}")
        assert answer.status_code == 200, path
        folder = path.rpartition("/")[0]
        seen.add(path)
        for link, module in LINKS.findall(answer.text):
            named = link or (f"{folder}/{module}" if folder else module)
            waiting += [] if named in seen else [named]
    assert {"chat.js", "chat.css", "answer.css", "shared/icon.svg", "shared/base.css"} <= seen


async def test_the_page_may_do_nothing_but_talk_to_its_router(stack: Stack) -> None:
    answer = await stack.router.http.get("/chat/")
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert "<style" not in answer.text
    assert not re.search(r"\son\w+=|style=|<script(?! type=\"module\" src=)", answer.text)


async def test_it_is_fetched_once(stack: Stack) -> None:
    http = stack.router.http
    tag = (await http.get("/chat/chat.js")).headers["etag"]
    again = await http.get("/chat/chat.js", headers={"if-none-match": tag})
    assert (again.status_code, again.content) == (304, b"")


async def test_no_other_file_is(stack: Stack) -> None:
    for path in ("__init__.py", "..%2fapp.py", "shared/../chat.js.map", "chat.html"):
        answer = await stack.router.http.get(f"/chat/{path}")
        assert answer.status_code == 404
        assert answer.json()["error"]["message"]


async def test_the_page_needs_no_key_and_what_it_asks_does() -> None:
    async with FakeWorker() as worker, running_router(worker, api_keys=("secret",)) as router:
        for path in ("/chat/", "/chat/chat.js", "/chat/shared/base.css"):
            assert (await router.http.get(path)).status_code == 200
        assert (await router.http.get("/v1/models")).status_code == 401
        assert (await router.http.get("/chatter")).status_code == 401


async def test_it_can_be_turned_off() -> None:
    async with running_router(ready=False, chat_page=False) as router:
        assert (await router.http.get("/chat/")).status_code == 404
        assert (await router.http.get("/chat")).status_code == 404


async def test_models_say_what_can_be_asked_of_them() -> None:
    worker = FakeWorker(drafters=("ngram", "head"), options=("prediction_ids",))
    async with worker, running_router(worker) as router:
        [model] = (await router.http.get("/v1/models")).json()["data"]
        assert model["speculation"] == {
            "drafters": ["ngram", "head"],
            "max_draft": 8,
            "prediction": True,
        }
