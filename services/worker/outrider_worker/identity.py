"""What makes measured costs and learned acceptance comparable between workers."""

import hashlib
import json
import platform
from dataclasses import asdict, dataclass
from pathlib import Path

from outrider_runtime import __version__

_HEAD_BYTES = 1 << 20


@dataclass(frozen=True)
class EngineIdentity:
    """Everything a cost table depends on."""

    model: str
    model_digest: str
    drafters: tuple[str, ...]
    device: str
    dtype: str
    row_ladder: tuple[int, ...]
    cpu_threads: int
    own_kernels: bool = False
    """Whether the CPU runs Outrider's kernels instead of torch's operations."""
    engine_version: str = __version__
    tensor_parallel: int = 1
    quantisation: str = "none"

    @property
    def digest(self) -> str:
        """A short name for this combination; equal only where all of it is."""
        text = json.dumps(asdict(self), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:24]


def model_digest(folder: Path) -> str:
    """A hash over the configuration and the tensors' names, types, shapes and sizes.

    Weights themselves are not read: that would take longer than loading them.
    """
    config = folder / "config.json"
    digest = hashlib.sha256(config.read_bytes() if config.exists() else b"")
    for file in sorted(folder.glob("*.safetensors")):
        with file.open("rb") as stream:
            header_bytes = int.from_bytes(stream.read(8), "little")
            digest.update(stream.read(header_bytes))
        digest.update(str(file.stat().st_size).encode())
    return digest.hexdigest()[:24]


def file_digest(file: Path) -> str:
    """The same of a single file: its first bytes, which describe what is in it, and its size."""
    with file.open("rb") as stream:
        digest = hashlib.sha256(stream.read(_HEAD_BYTES))
    digest.update(str(file.stat().st_size).encode())
    return digest.hexdigest()[:24]


def cpu_name() -> str:
    """The processor's model name, as far as the system tells it."""
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
