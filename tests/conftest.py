"""What all tests share: one thread per process, no network, hypothesis' settings, a real stack."""

import os

# Before anything imports torch: threads of several processes on few cores only wait for each other.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("NO_PROXY", "127.0.0.1,localhost")

from collections.abc import Generator, Iterator

import pytest
from hypothesis import HealthCheck, settings

from tests.support.processes import Process, Stack

settings.register_profile(
    "outrider", deadline=None, max_examples=50, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("outrider")


@pytest.fixture(scope="session")
def demo_stack() -> Iterator[Stack]:
    """A running `outrider up` with the demo model, shared by tests that leave it as it is."""
    with Stack("--threads", "1") as stack:
        yield stack


@pytest.hookimpl(tryfirst=True)  # before the groups are read
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Groups for runs with several processes (`-n 2 --dist loadgroup`): whole stacks run one after
    the other, since each wants the machine for itself; of other tests a file stays together.
    """
    for item in items:
        whole_stack = item.get_closest_marker("e2e") or "demo_stack" in getattr(
            item, "fixturenames", ()
        )
        item.add_marker(pytest.mark.xdist_group("e2e" if whole_stack else str(item.path)))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A failing test shows the logs of the processes it was given."""
    report = yield
    if report.failed and isinstance(item, pytest.Function):
        given = [each for each in item.funcargs.values() if isinstance(each, Process)]
        report.sections.extend(("process", each.shown_log()) for each in given)
    return report
