"""The supervisor over real stand-in processes: order, restarts, limits, and nothing left behind."""

import json
import os
import re
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.support.net import free_ports, wait_until
from tests.support.processes import Process

Start = Callable[..., "Supervised"]


class Supervised(Process):
    """The real supervisor in a process of its own, over stand-ins."""

    def __init__(self, state_path: Path, asked: dict[str, Any]) -> None:
        self._state_path = state_path
        command = [sys.executable, "-m", "tests.support.stand_in_stack", json.dumps(asked)]
        super().__init__(command, {"OUTRIDER_STATE_FILE": str(state_path)})

    def state(self) -> dict[str, Any]:
        state: dict[str, Any] = (
            json.loads(self._state_path.read_text()) if self._state_path.exists() else {}
        )
        return state

    def child(self, name: str) -> dict[str, int]:
        found: dict[str, int] = self.state().get("children", {}).get(name, {})
        return found

    def await_ready(self) -> None:
        self.wait_ready(lambda: self.state().get("ready"), 30, "a ready stack")


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts a supervised stack; the keywords are processes' environments and `restart`."""
    with ExitStack() as running:

        def start_one(restart: bool = True, **processes: dict[str, str]) -> Supervised:
            named = {name.replace("_", "-"): extra for name, extra in processes.items()}
            asked = {"ports": free_ports(3), "processes": named, "restart": restart}
            return running.enter_context(Supervised(tmp_path / "state.json", asked))

        yield start_one


def test_ctrl_c_stops_router_then_worker_then_planner(start: Start, tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    extra = {"STAND_IN_JOURNAL": str(journal)}
    stack = start(planner=extra, worker_0=extra, router=extra)
    stack.await_ready()
    assert stack.stop(signal.SIGINT) == 0
    assert journal.read_text().split() == ["router", "worker-0", "planner"]
    stack.assert_nothing_left()
    assert not stack.state()


def test_lines_carry_the_name_and_the_banner_a_curl_and_the_pages(start: Start) -> None:
    stack = start()
    stack.await_ready()
    wait_until(lambda: "curl" in stack.log(), 5, "the banner")
    log = stack.log()
    assert "worker-0 | worker-0 says hello, token set" in log
    assert "planner  | planner says hello, token set" in log
    assert '"model": "stand-in"' in log
    assert re.search(r"try it: +http://127\.0\.0\.1:\d+/chat/\n", log)
    assert re.search(r"what is planned, and why: http://127\.0\.0\.1:\d+/page/\n", log)
    assert "a-secret" not in log
    assert stack.stop() == 0


def test_a_process_that_ignores_sigterm_is_killed_with_its_children(start: Start) -> None:
    stack = start(worker_0={"STAND_IN_DEAF": "1", "STAND_IN_GRANDCHILD": "1"})
    stack.await_ready()
    assert len(stack.left_over()) == 5
    assert stack.stop(signal.SIGTERM, limit_s=15) == 0
    assert "worker-0 did not stop within 1 s: killed" in stack.log()
    stack.assert_nothing_left()


def test_no_orphans_when_the_supervisor_is_killed(start: Start) -> None:
    stack = start()
    stack.await_ready()
    assert len(stack.left_over()) == 4
    stack.send(signal.SIGKILL)
    stack.assert_nothing_left()


@pytest.mark.parametrize("name", ["planner", "worker-0", "router"])
def test_a_process_that_dies_is_started_again(start: Start, name: str) -> None:
    stack = start()
    stack.await_ready()
    before = stack.child(name)
    others = {other: pid for pid, other in _by_name(stack).items() if other != name}
    _kill_child(stack, name)
    wait_until(lambda: stack.child(name).get("restarts") == 1, 15, f"{name} again")
    assert stack.child(name)["pid"] != before["pid"]
    assert {other: stack.child(other)["pid"] for other in others} == others
    assert f"{name} was ended by SIGKILL" in stack.log()
    assert stack.stop() == 0


def test_without_restart_the_others_go_on(start: Start) -> None:
    stack = start(restart=False)
    stack.await_ready()
    _kill_child(stack, "planner")
    wait_until(lambda: "it is not started again" in stack.log(), 5, "word of the planner's end")
    assert stack.exit_code is None
    assert sorted(stack.state()["children"]) == ["router", "worker-0"]
    assert stack.stop() == 0


def test_dying_while_starting_ends_everything_with_the_last_lines(start: Start) -> None:
    stack = start(worker_0={"STAND_IN_GRPC_PORT": "", "STAND_IN_END_AFTER_S": "0"})
    assert stack.wait(20) == 1
    assert "failed: worker-0 ended with exit code 3 while starting" in stack.log()
    assert "  worker-0 gives up" in stack.log()
    stack.assert_nothing_left()


def test_interrupt_while_starting_leaves_nothing(start: Start) -> None:
    stack = start(worker_0={"STAND_IN_GRPC_PORT": ""})
    wait_until(lambda: stack.child("worker-0"), 15, "a started worker")
    assert stack.stop(signal.SIGINT, limit_s=15) == 0
    stack.assert_nothing_left()


def _by_name(stack: Supervised) -> dict[int, str]:
    return {child["pid"]: name for name, child in stack.state()["children"].items()}


def _kill_child(stack: Supervised, name: str) -> None:
    os.kill(stack.child(name)["pid"], signal.SIGKILL)
