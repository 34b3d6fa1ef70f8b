"""Programs of the platform for tests; with `OUTRIDER_TEST_STRICT` a missing one is a failure."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NoReturn

import pytest

ROOT = Path(__file__).resolve().parents[2]


def lack(what: str) -> NoReturn:
    """Skip the test, or fail it where nothing may be skipped."""
    if os.environ.get("OUTRIDER_TEST_STRICT"):
        pytest.fail(f"{what} is not installed")
    pytest.skip(f"{what} is not installed")


def tool(name: str) -> str:
    path = os.pathsep.join((os.path.dirname(sys.executable), os.environ["PATH"]))
    return shutil.which(name, path=path) or lack(name)


def run(*command: str, **environment: str) -> str:
    """What the command printed; the test fails with it where the command fails."""
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, **environment}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
