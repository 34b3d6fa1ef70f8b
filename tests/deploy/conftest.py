"""What wants more than Python is looked at only where `-m` names its marker.

`deploy` wants the platform's tools (`make check-deploy`); `live` wants Prometheus and minutes,
`containers` a container engine and built images, `index` the package index (`make test-deploy` runs
all four).
"""

from pathlib import Path

import pytest

HERE = Path(__file__).parent
WANTED_BY = {
    HERE / "test_tools.py": "deploy",
    HERE / "test_live_metrics.py": "live",
    HERE / "containers": "containers",
    HERE / "test_gpu_packages.py": "index",
}


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    marker = WANTED_BY.get(collection_path)
    return True if marker and marker not in config.getoption("markexpr") else None
