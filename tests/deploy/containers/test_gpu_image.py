"""The worker's image for GPUs, as far as it can be judged without one."""

import json
import subprocess

import pytest

from tests.deploy.containers.stack import ContainerStack

pytestmark = [pytest.mark.containers, pytest.mark.timeout(600)]

# Built by scripts/test-deploy.sh.
IMAGE = "outrider-worker:test-cuda"
GLUE = "from triton.backends.nvidia.driver import CudaUtils; CudaUtils()"


def run_in_image(stack: ContainerStack, *command: str) -> "subprocess.CompletedProcess[str]":
    """As the stack runs it: nothing can be written but the cache, a volume, and /tmp."""
    hardened = ("--read-only", "--cap-drop=ALL", "--tmpfs=/tmp")
    # A folder without a driver, so that Triton does not look for one of the machine.
    no_driver = "--env=TRITON_LIBCUDA_PATH=/nowhere"
    return subprocess.run(
        ["docker", "run", "--rm", *hardened, no_driver, "--entrypoint", *command],
        capture_output=True,
        text=True,
        env=stack.environment,
        timeout=120,
    )


def test_triton_finds_its_glue_compiled_and_lacks_nothing_but_the_driver(
    stack: ContainerStack,
) -> None:
    done = run_in_image(stack, "python", IMAGE, "-c", GLUE)
    assert done.stderr.strip().endswith(
        "libcuda.so.1: cannot open shared object file: No such file or directory"
    )


def test_no_compiler_is_in_it_and_it_asks_for_a_gpu(stack: ContainerStack) -> None:
    done = run_in_image(stack, "sh", IMAGE, "-c", "command -v gcc clang ld as || id -u")
    assert done.stdout.split() == ["10001"]
    (image,) = json.loads(stack.docker("image", "inspect", IMAGE))
    assert "OUTRIDER_WORKER_DEVICE=cuda" in image["Config"]["Env"]
    assert "NVIDIA_DRIVER_CAPABILITIES=compute,utility" in image["Config"]["Env"]
