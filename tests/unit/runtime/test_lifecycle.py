"""Who a process is, how it hears that it should stop, and that it follows its parent."""

import asyncio
import os
import signal
import sys

import pytest

from outrider_runtime.lifecycle import (
    EXIT_WITH_PARENT,
    exit_with_parent_if_asked,
    new_incarnation,
    stop_event,
)
from outrider_runtime.settings import ConfigurationError
from tests.support.net import wait_until
from tests.support.processes import Process

_CHILD = """
import os, signal, sys, time
from outrider_runtime.lifecycle import exit_with_parent
{deaf}
exit_with_parent(int(sys.argv[1]), poll_s=0.05, limit_s=0.2)
time.sleep(60)
"""
# Starts a child that follows it, and ends at once or stays, as asked.
_PARENT = """
import os, subprocess, sys, time
subprocess.Popen([sys.executable, "-c", {child!r}, str(os.getpid())])
time.sleep({stay_s})
"""


def test_incarnations_differ() -> None:
    names = {new_incarnation() for _ in range(100)}
    assert len(names) == 100
    assert all(len(name) == 24 for name in names)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_sets_the_stop_event(number: signal.Signals) -> None:
    event = stop_event()
    os.kill(os.getpid(), number)
    await asyncio.wait_for(event.wait(), 5)
    assert event.is_set()
    for each in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().remove_signal_handler(each)


@pytest.mark.parametrize(
    "deaf", ["", "signal.signal(signal.SIGTERM, signal.SIG_IGN)"], ids=["obeys", "ignores"]
)
def test_a_child_does_not_outlive_its_parent(deaf: str) -> None:
    child = _CHILD.format(deaf=deaf)
    with Process([sys.executable, "-c", _PARENT.format(child=child, stay_s=60)]) as parent:
        wait_until(lambda: len(parent.left_over()) == 2, 10, "parent and child")
        parent.send(signal.SIGKILL)
        parent.assert_nothing_left()
        assert parent.exit_code == -signal.SIGKILL


def test_a_child_whose_parent_was_gone_before_it_looked_ends_too() -> None:
    child = _CHILD.format(deaf="")
    with Process([sys.executable, "-c", _PARENT.format(child=child, stay_s=0)]) as parent:
        assert parent.wait(10) == 0
        parent.assert_nothing_left()


def test_nothing_follows_where_nobody_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(EXIT_WITH_PARENT, raising=False)
    exit_with_parent_if_asked()
    monkeypatch.setenv(EXIT_WITH_PARENT, "yes")
    with pytest.raises(ConfigurationError, match=EXIT_WITH_PARENT):
        exit_with_parent_if_asked()
