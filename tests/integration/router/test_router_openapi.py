"""Requests made up from our own description: no server error, and answers as described."""

import asyncio
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis.strategies import SearchStrategy
from schemathesis import checks
from schemathesis.generation import GenerationMode

from tests.support.fake_worker import ALL_OPTIONS, FakeWorker, saying
from tests.support.router_stack import running_router

pytestmark = pytest.mark.asyncio(loop_scope="module")
EXAMPLES = 5
# Not that every request that fits the schema is taken: fields can contradict each other.
CHECKS = [
    checks.not_a_server_error,
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_schema_conformance,
]


QUIET = settings(
    max_examples=EXAMPLES,
    deadline=None,
    database=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)


def fuzz(url: str, api: Any) -> dict[str, int]:
    """Send requests of every route, good ones and bad ones; how many of each were answered well.

    Runs beside the event loop that serves them.
    """
    good: dict[str, int] = {}
    for result in api.get_all_operations():
        operation = result.ok()
        for mode in GenerationMode:
            if mode is GenerationMode.POSITIVE or operation.method != "get":
                answered = try_out(url, operation.as_strategy(generation_mode=mode))
                good[operation.path] = good.get(operation.path, 0) + answered
    return good


def try_out(url: str, cases: "SearchStrategy[schemathesis.Case[Any]]") -> int:
    """Send requests of one kind; the number of answers that were good."""
    good = 0

    @QUIET
    @given(case=cases)
    def check(case: "schemathesis.Case[Any]") -> None:
        nonlocal good
        if isinstance(case.body, dict) and isinstance(case.body.get("model"), str):
            case.body["model"] = "tiny"
        if case.path_parameters:
            case.path_parameters["name"] = "tiny"
        response = case.call(base_url=url, timeout=10)
        case.validate_response(response, checks=CHECKS)
        good += response.status_code == 200

    check()
    return good


async def test_the_description_is_kept() -> None:
    worker = FakeWorker(script=saying("ok"), options=ALL_OPTIONS)
    async with worker, running_router(worker) as router:
        api = schemathesis.openapi.from_dict((await router.http.get("/openapi.json")).json())
        good = await asyncio.to_thread(fuzz, router.url, api)
        assert all(good.values()), good
        assert len(good) == len(api.raw_schema["paths"])
        assert router.settled()


async def test_the_page_shows_every_route_and_loads_nothing() -> None:
    async with running_router(ready=False) as router:
        page = (await router.http.get("/docs")).text
        paths = (await router.http.get("/openapi.json")).json()["paths"]
        assert all(path in page for path in paths)
        assert "max_completion_tokens" in page
        assert "http" not in page
        assert "script" not in page
