"""One form for all lines of a process, with the service's name and the request's id."""

import asyncio
import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest
import structlog

from outrider_runtime.logs import bind_request, configure_logs, get_logger


@pytest.fixture(autouse=True)
def _restored_logging() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    structlog.reset_defaults()
    structlog.contextvars.clear_contextvars()


def lines(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in capsys.readouterr().err.splitlines()]


def test_own_and_foreign_lines_have_one_form(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logs("router")
    get_logger("a.module").info("started", port=8000)
    logging.getLogger("some.library").warning("it %s", "rains")
    own, foreign = lines(capsys)
    assert (own["event"], own["port"], own["level"]) == ("started", 8000, "info")
    assert (foreign["event"], foreign["level"]) == ("it rains", "warning")
    assert own["service"] == foreign["service"] == "router"
    assert own["timestamp"].endswith("Z")


async def test_the_request_id_reaches_tasks_started_inside(
    capsys: pytest.CaptureFixture[str],
) -> None:
    configure_logs("worker")
    logger = get_logger("a.module")

    async def work() -> None:
        logger.info("inside")

    with bind_request("request-1"):
        await asyncio.create_task(work())
    logger.info("outside")
    inside, outside = lines(capsys)
    assert inside["request_id"] == "request-1"
    assert "request_id" not in outside


def test_exceptions_are_part_of_their_line(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logs("planner")
    try:
        raise ValueError("broken")
    except ValueError:
        get_logger("a.module").exception("failed")
    (line,) = lines(capsys)
    assert "ValueError: broken" in line["exception"]


def test_the_level_and_the_console_form(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logs("worker", level="warning", log_format="console")
    get_logger("a.module").info("unheard")
    get_logger("a.module").warning("heard", rows=3)
    shown = capsys.readouterr().err
    assert "unheard" not in shown
    assert "heard" in shown
    assert "rows=3" in shown


def test_calls_that_a_stopping_server_cancels_are_no_failures(
    capsys: pytest.CaptureFixture[str],
) -> None:
    configure_logs("worker")
    library = logging.getLogger("grpc._cython.cygrpc")
    for error in (asyncio.CancelledError(), ValueError("broken")):
        library.error("raised by a method", exc_info=error)
    [line] = lines(capsys)
    assert "broken" in line["exception"]
