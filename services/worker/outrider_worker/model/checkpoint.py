"""Reading tensors of a safetensors checkpoint, one at a time.

Knows: single and sharded safetensors files, names and shapes. Does not know: architectures.
Never reads pickles: a folder without safetensors is an error.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from outrider_worker.model.config import ModelError

_INDEX = "model.safetensors.index.json"
_LISTED = 8
"""How many names an error message lists before it only counts."""


class Checkpoint:
    """The tensors of a folder in the Hugging Face layout; memory-mapped, read on demand."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file_of: dict[str, Any] = {}
        for path in _files(folder):
            handle = _open(path)
            for name in handle.keys():  # noqa: SIM118 (a safetensors handle is no mapping)
                self._file_of[name] = handle

    def __enter__(self) -> Checkpoint:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._file_of.clear()

    def check(self, expected: Mapping[str, tuple[int, ...]], ignored: Iterable[str] = ()) -> None:
        """Compare names and shapes with what a model needs.

        ignored: endings of names that may be there without being used.
        Raises ModelError listing everything missing, surplus and of the wrong shape.
        """
        found = self._file_of.keys()
        missing = sorted(expected.keys() - found)
        surplus = sorted(n for n in found - expected.keys() if not n.endswith(tuple(ignored)))
        shapes = {n: self._shape(n) for n in sorted(expected.keys() & found)}
        misshaped = [
            f"{n} is {shape}, expected {expected[n]}"
            for n, shape in shapes.items()
            if shape != expected[n]
        ]
        faults = _fault("missing", missing) + _fault("surplus", surplus)
        faults += _fault("wrong shape", misshaped)
        if faults:
            raise ModelError(f"{self._folder} does not fit its config.json: " + "; ".join(faults))

    def tensor(self, name: str, dtype: torch.dtype) -> Tensor:
        """One tensor, converted to `dtype`."""
        tensor: Tensor = self._file_of[name].get_tensor(name)
        return tensor.to(dtype)

    def _shape(self, name: str) -> tuple[int, ...]:
        return tuple(self._file_of[name].get_slice(name).get_shape())


def _files(folder: Path) -> list[Path]:
    index = folder / _INDEX
    if not index.is_file():
        single = folder / "model.safetensors"
        if not single.is_file():
            raise ModelError(f"{folder} holds no safetensors weights")
        return [single]
    try:
        names = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
    except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
        raise ModelError(f"{index} cannot be read: {error}") from error
    # Names only: an index must not reach outside its folder.
    return [folder / Path(str(name)).name for name in sorted(names)]


def _open(path: Path) -> Any:
    try:
        return safe_open(path, framework="pt")
    except (OSError, SafetensorError) as error:
        raise ModelError(f"{path} cannot be read: {error}") from error


def _fault(kind: str, names: list[str]) -> list[str]:
    if not names:
        return []
    more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    return [f"{kind}: {', '.join(names[:_LISTED])}{more}"]
