"""Reading tensors of a safetensors checkpoint, one at a time.

Knows: single and sharded safetensors files, names, shapes, how numbers are stored.
Does not know: architectures. Never reads pickles: a folder without safetensors is an error.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from outrider_worker.model.config import Fp8Blocks, ModelError
from outrider_worker.model.fp8 import dequantise, scale_name, scale_shape

_INDEX = "model.safetensors.index.json"
_LISTED = 8
"""How many names an error message lists before it only counts."""

_FP8 = "F8_E4M3"
_PLAIN = ("F32", "F16", "BF16", "F64")

Shape = tuple[int, ...]


class Checkpoint:
    """The tensors of a folder in the Hugging Face layout; memory-mapped, read on demand.

    quantisation: how FP8 weights are scaled; None where the checkpoint may hold none.
    """

    def __init__(self, folder: Path, quantisation: Fp8Blocks | None = None) -> None:
        self._folder = folder
        self._quantisation = quantisation
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

    @property
    def names(self) -> Iterable[str]:
        """Of all tensors."""
        return self._file_of.keys()

    def check(
        self,
        expected: Mapping[str, Shape],
        may_be_unused: Callable[[str], bool] = lambda name: False,
    ) -> None:
        """Compare names, shapes and kinds of numbers with what a model needs.

        Raises ModelError listing everything missing, surplus, of the wrong shape, and stored in
        a way that is not supported.
        """
        needed = {**expected, **dict(self._scales(expected))}
        found, wanted = self._file_of.keys(), needed.keys()
        both = sorted(wanted & found)
        faults = [
            *_fault("missing", sorted(wanted - found)),
            *_fault("surplus", sorted(n for n in found - wanted if not may_be_unused(n))),
            *_fault("wrong shape", self._misshaped(both, needed)),
            *_fault(
                "stored in an unknown way",
                [f"{n} is {self._kind(n)}" for n in both if not self._known(n)],
            ),
        ]
        if faults:
            raise ModelError(f"{self._folder} does not fit its config.json: " + "; ".join(faults))

    def tensor(self, name: str, dtype: torch.dtype) -> Tensor:
        """One tensor, converted to `dtype`; FP8 weights are dequantised."""
        stored = self._read(name)
        if self._quantisation and self._kind(name) == _FP8:
            return dequantise(stored, self._read(scale_name(name)), self._quantisation, dtype)
        return stored.to(dtype)

    def _scales(self, expected: Mapping[str, Shape]) -> Iterator[tuple[str, Shape]]:
        """The scales that the FP8 weights among `expected` need."""
        if self._quantisation is None:
            return
        for name, shape in expected.items():
            if name in self._file_of and self._kind(name) == _FP8 and len(shape) == 2:
                yield scale_name(name), scale_shape(shape, self._quantisation)

    def _misshaped(self, names: Iterable[str], expected: Mapping[str, Shape]) -> list[str]:
        shapes = ((name, self._shape(name)) for name in names)
        return [
            f"{name} is {shape}, expected {expected[name]}"
            for name, shape in shapes
            if shape != expected[name]
        ]

    def _known(self, name: str) -> bool:
        """Whether numbers stored like these can be read."""
        scaled = self._quantisation is not None and len(self._shape(name)) == 2
        kind = self._kind(name)
        return kind in _PLAIN or (kind == _FP8 and scaled)

    def _read(self, name: str) -> Tensor:
        tensor: Tensor = self._file_of[name].get_tensor(name)
        return tensor

    def _shape(self, name: str) -> Shape:
        return tuple(self._file_of[name].get_slice(name).get_shape())

    def _kind(self, name: str) -> str:
        """As safetensors calls it: "F32", "BF16", …"""
        return str(self._file_of[name].get_slice(name).get_dtype())


def _files(folder: Path) -> list[Path]:
    index = folder / _INDEX
    if not index.is_file():
        return [_only_file(folder)]
    try:
        names = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
    except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
        raise ModelError(f"{index} cannot be read: {error}") from error
    # Names only: an index must not reach outside its folder.
    return [folder / Path(str(name)).name for name in sorted(names)]


def _only_file(folder: Path) -> Path:
    """The usual one; exports of a part of a model call theirs otherwise."""
    usual = folder / "model.safetensors"
    found = [usual] if usual.is_file() else sorted(folder.glob("*.safetensors"))
    if not found:
        raise ModelError(f"{folder} holds no safetensors weights")
    if len(found) > 1:
        raise ModelError(f"{folder} holds {len(found)} safetensors files and no {_INDEX}")
    return found[0]


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
