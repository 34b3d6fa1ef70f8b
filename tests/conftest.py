"""What all tests share: one thread per process, no network, hypothesis' settings, a real stack."""

import os
from pathlib import Path

# Before anything imports torch: threads of several processes on few cores only wait for each other.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("NO_PROXY", "127.0.0.1,localhost")
# Before anything imports triton: without a GPU its kernels run in the interpreter.
if not Path("/dev/nvidiactl").exists():
    os.environ.setdefault("TRITON_INTERPRET", "1")

# Before anything imports numba: workers with a cache folder of their own still share kernels.
os.environ.setdefault("NUMBA_CACHE_DIR", str(Path.home() / ".cache" / "outrider" / "kernels"))

from collections.abc import Generator, Iterator
from importlib import import_module
from pkgutil import iter_modules
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from xdist.scheduler.loadscope import LoadScopeScheduling

from tests.support.processes import Process, Stack

settings.register_profile(
    "outrider", deadline=None, max_examples=50, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("outrider")

_RUN_MODELS = ("worker", "drafters", "matrix", "e2e", "soak")
"""Parts of the names of tests that may run a model."""


@pytest.fixture(scope="session")
def demo_stack() -> Iterator[Stack]:
    """A running `outrider up` with the demo model, shared by tests that leave it as it is."""
    with Stack("--threads", "1") as stack:
        yield stack


class _FilesTogether(LoadScopeScheduling):  # type: ignore[misc]
    """How tests are shared out with `-n 2`: a file stays together, and whole stacks run one after
    the other, since each wants the machine for itself. The matrix of laws is one file,
    too long for one process.
    """

    def _split_scope(self, nodeid: str) -> str:
        path = nodeid.partition("::")[0]
        if path.startswith("tests/matrix/"):
            return nodeid
        return "e2e" if path.startswith("tests/e2e/") else path


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> _FilesTogether:
    return _FilesTogether(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest first, so that nothing long is left over at the end of a shared-out run."""
    items.sort(key=lambda item: 0 if "tests/e2e/" in item.nodeid else 1)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Kernels are compiled before the first test's time runs, where some test may want them: on a
    machine that never did, and is busy, that takes longer than a test may."""
    wanted = any(part in item.nodeid for item in session.items for part in _RUN_MODELS)
    if wanted and not session.config.option.collectonly:
        from outrider_worker import kernels

        if kernels.have_kernels():
            for module in iter_modules(kernels.__path__, "outrider_worker.kernels."):
                import_module(module.name)


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
