"""Writing weights as safetensors shards of bounded size.

Knows: the file names and index of the Hugging Face layout. Does not know: where weights come from.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file

SHARD_BYTES = 1 << 30
"""Memory that waiting tensors may take, and so about the size of a shard."""


class ShardWriter:
    """Collects tensors and writes a shard whenever enough have come together."""

    def __init__(self, folder: Path, shard_bytes: int = SHARD_BYTES) -> None:
        self._folder = folder
        self._shard_bytes = shard_bytes
        self._waiting: dict[str, NDArray[np.float32]] = {}
        self._waiting_bytes = 0
        self._total_bytes = 0
        self._shards: list[list[str]] = []

    def add(self, name: str, values: NDArray[np.float32]) -> None:
        """Take one tensor."""
        if self._waiting and self._waiting_bytes + values.nbytes > self._shard_bytes:
            self._flush()
        self._waiting[name] = values
        self._waiting_bytes += values.nbytes
        self._total_bytes += values.nbytes

    def close(self) -> None:
        """Write what waits, and give all shards their final names."""
        self._flush()
        count = len(self._shards)
        if count == 1:
            self._part(0).rename(self._folder / "model.safetensors")
            return
        weight_map: dict[str, str] = {}
        for number, names in enumerate(self._shards):
            file = f"model-{number + 1:05}-of-{count:05}.safetensors"
            self._part(number).rename(self._folder / file)
            weight_map.update(dict.fromkeys(names, file))
        index = {"metadata": {"total_size": self._total_bytes}, "weight_map": weight_map}
        path = self._folder / "model.safetensors.index.json"
        path.write_text(json.dumps(index, indent=2), encoding="utf-8")

    def _flush(self) -> None:
        if self._waiting:
            save_file(self._waiting, self._part(len(self._shards)), metadata={"format": "pt"})
            self._shards.append(list(self._waiting))
            self._waiting, self._waiting_bytes = {}, 0

    def _part(self, number: int) -> Path:
        return self._folder / f"part-{number:05}.safetensors"
