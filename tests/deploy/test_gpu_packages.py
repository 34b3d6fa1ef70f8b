"""The packages of the worker's image for GPUs, as the package index has them."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

pytestmark = [pytest.mark.index, pytest.mark.timeout(600)]

ROOT = Path(__file__).resolve().parents[2]
DOCKER = ROOT / "deploy/docker"


def resolved(torch: str, *options: str) -> dict[str, str]:
    """What pip would install for the image, version by name; nothing is fetched but metadata."""
    requirements = subprocess.run(
        [sys.executable, DOCKER / "requirements.py", "worker", "gpu"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--dry-run", "--ignore-installed"]
    pins = ("--constraint", str(DOCKER / "constraints.txt"))
    done = subprocess.run(
        [*pip, "--report", "-", *pins, *options, torch, *requirements],
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert done.returncode == 0, done.stderr
    found: list[dict[str, Any]] = json.loads(done.stdout)["install"]
    metadata = (each["metadata"] for each in found)
    return {canonicalize_name(each["name"]): each["version"] for each in metadata}


def test_the_build_of_torch_for_gpus_fits_the_pins() -> None:
    """From the package index, or from OUTRIDER_CUDA_TORCH_INDEX_URL where that is set."""
    pins = {
        str(canonicalize_name(pin.name)): str(pin.specifier)[2:]
        for pin in map(Requirement, _lines(DOCKER / "constraints.txt"))
    }
    index = os.environ.get("OUTRIDER_CUDA_TORCH_INDEX_URL")
    version = pins["torch"]
    # An index for one kind of GPU marks its builds: 2.13.0+cu130.
    # Three equals signs take no build that was made for CPUs and lies on this machine.
    torch = f"torch=={version}" if index else f"torch==={version}"
    found = resolved(torch, *(("--extra-index-url", index) if index else ()))
    assert {name for name in found if name.startswith("nvidia-")}, "no libraries of CUDA"
    assert found["triton"]
    beyond = {name: found[name] for name in found.keys() & pins.keys() if found[name] != pins[name]}
    assert beyond.keys() <= {"torch"}


def _lines(path: Path) -> list[str]:
    return [line for line in path.read_text().splitlines() if line and not line.startswith("#")]
