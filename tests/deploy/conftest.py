"""What wants tools of the platform runs where `-m deploy` asks for it (`make test-deploy`)."""

import pytest


def pytest_ignore_collect(collection_path: object, config: pytest.Config) -> bool | None:
    wanted = "deploy" in config.getoption("markexpr")
    return True if str(collection_path).endswith("test_tools.py") and not wanted else None
