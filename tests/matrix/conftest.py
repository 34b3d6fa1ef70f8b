"""The full matrix runs for long: it is collected only where `-m matrix` asks for it."""

import pytest


def pytest_ignore_collect(config: pytest.Config) -> bool | None:
    return None if "matrix" in config.getoption("markexpr") else True
