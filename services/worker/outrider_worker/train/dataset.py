"""A training set on disk: texts that the target wrote, with its features of every position.

    dataset.json              what all of it has in common
    shard-00000.tokens.npy    [T] int32, the texts one after the other
    shard-00000.features.npy  [T, m·d] float16; of each text's last token zeros, it was never run
    shard-00000.json          the texts: where each one is and what it is; written last

A shard is there whole or not at all. Arrays are mapped, never read as a whole.

Knows: files. Does not know: how texts are made or what is trained on them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from outrider_worker.train.files import whole_file

FORMAT = 2
_HEAD = "dataset.json"


class DatasetError(Exception):
    """A training set cannot be used; the message says why."""


@dataclass(frozen=True)
class DatasetSpec:
    """What a training set was made from: one with another spec is another one."""

    target: str
    """Digest of the target's files"""
    boundaries: tuple[int, ...]
    hidden_size: int
    seed: int
    prompts: str
    """Digest of the prompts and how they were answered"""


@dataclass(frozen=True)
class TextInfo:
    """One text of a shard."""

    start: int
    tokens: int
    prompt_tokens: int
    family: str
    held_out: bool
    temperature: float
    seed: int
    """Of its draws, where the temperature is not 0"""

    @property
    def answer_tokens(self) -> int:
        return self.tokens - self.prompt_tokens


@dataclass(frozen=True)
class Text:
    """A text with its arrays."""

    info: TextInfo
    token_ids: NDArray[np.int32]
    """[T]"""
    features: NDArray[np.float16]
    """[T, m·d], mapped"""


class Dataset:
    """A folder of shards. Raises DatasetError where the folder holds something else."""

    def __init__(self, folder: Path, spec: DatasetSpec) -> None:
        """Open the training set of `spec` in `folder`, or begin one."""
        self.folder, self.spec = folder, spec
        folder.mkdir(parents=True, exist_ok=True)
        found, wanted = _read_json(folder / _HEAD), {"format": FORMAT, **_plain(spec)}
        if found is None:
            _write_json(folder / _HEAD, wanted)
        elif found != wanted:
            differ = sorted(k for k in {*found, *wanted} if found.get(k) != wanted.get(k))
            raise DatasetError(
                f"{folder} holds another training set: {', '.join(differ)} differ; give another "
                "folder or remove this one"
            )

    def has(self, shard: int) -> bool:
        """Whether it has been written."""
        return self._path(shard, ".json").is_file()

    def write(self, shard: int, texts: Sequence[Text]) -> None:
        """A whole shard; the places in `texts` are worked out anew."""
        starts = np.cumsum([0, *(text.info.tokens for text in texts)])
        _save(self._path(shard, ".tokens.npy"), np.concatenate([t.token_ids for t in texts]))
        _save(self._path(shard, ".features.npy"), np.concatenate([t.features for t in texts]))
        infos = [
            {**asdict(text.info), "start": int(start)}
            for text, start in zip(texts, starts[:-1], strict=True)
        ]
        _write_json(self._path(shard, ".json"), infos)

    def shards(self) -> list[int]:
        """Those that are there."""
        return sorted(int(p.stem.split("-")[1]) for p in self.folder.glob("shard-*.json"))

    def infos(self, shard: int) -> list[TextInfo]:
        """Of a shard's texts."""
        return [TextInfo(**info) for info in _read_json(self._path(shard, ".json")) or []]

    def texts(self, held_out: bool) -> Iterator[Text]:
        """All texts that may be trained on, or all that may not."""
        for shard in self.shards():
            tokens = np.load(self._path(shard, ".tokens.npy"), mmap_mode="r")
            features = np.load(self._path(shard, ".features.npy"), mmap_mode="r")
            for info in self.infos(shard):
                where = slice(info.start, info.start + info.tokens)
                if info.held_out is held_out:
                    yield Text(info, tokens[where], features[where])

    def _path(self, shard: int, ending: str) -> Path:
        return self.folder / f"shard-{shard:05d}{ending}"


def _plain(spec: DatasetSpec) -> dict[str, Any]:
    return {**asdict(spec), "boundaries": list(spec.boundaries)}


def _save(path: Path, array: NDArray[Any]) -> None:
    with whole_file(path) as beside, beside.open("wb") as file:
        np.save(file, array)


def _write_json(path: Path, value: Sequence[Any] | Mapping[str, Any]) -> None:
    with whole_file(path) as beside:
        beside.write_text(json.dumps(value), encoding="utf-8")


def _read_json(path: Path) -> Any:
    if not path.is_file():
        return None
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise DatasetError(f"{path} cannot be read: {error}") from error
