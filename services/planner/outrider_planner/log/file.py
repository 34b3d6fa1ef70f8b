"""A decision log in files: one that grows, and older ones beside it with a number.

Knows rotation: ``decisions.jsonl`` is the newest, ``decisions.jsonl.1`` the one before it. Files
are readable by their owner only: prompts are never in them, but names of models and classes are.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

MOST_FILE_BYTES = 32 << 20
OLD_FILES = 3


class FileSink:
    """Appends to a file that an earlier process may have begun."""

    def __init__(self, path: Path, most_bytes: int = MOST_FILE_BYTES, old: int = OLD_FILES) -> None:
        self._path = path
        self._most_bytes = most_bytes
        self._old = old
        self._begun = False

    async def write(self, lines: Sequence[str]) -> bool:
        """Appends lines in a thread; True where they filled a file and a new one begins."""
        return await asyncio.to_thread(self._write, lines)

    def lost(self) -> int:
        """What was written stays, until its file is rotated away."""
        return 0

    async def close(self) -> None:
        """Every write closed its file."""

    def _write(self, lines: Sequence[str]) -> bool:
        if not self._begun:
            self._begin()
        with os.fdopen(self._opened(), "a", encoding="utf-8") as file:
            file.writelines(f"{line}\n" for line in lines)
            full = file.tell() >= self._most_bytes
        if full:
            self._rotate()
        return full

    def _begin(self) -> None:
        """Makes the folder, and ends the half line that a killed process may have left."""
        self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        descriptor = self._opened()
        try:
            if not _ends_a_line(self._path):
                os.write(descriptor, b"\n")
        finally:
            os.close(descriptor)
        self._begun = True

    def _rotate(self) -> None:
        for number in range(self._old, 0, -1):
            younger = _numbered(self._path, number - 1)
            if younger.exists():
                younger.replace(_numbered(self._path, number))

    def _opened(self) -> int:
        return os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)


def read_lines(path: Path) -> Iterator[str]:
    """The lines of a log, its older files first.

    Raises:
        OSError: there is no such file.
    """
    number = 0
    while _numbered(path, number + 1).exists():
        number += 1
    for piece in range(number, -1, -1):
        with _numbered(path, piece).open(encoding="utf-8") as file:
            yield from (line for line in file if line.strip())


def _ends_a_line(path: Path) -> bool:
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(size - 1, 0))
        return file.read(1) in (b"", b"\n")


def _numbered(path: Path, number: int) -> Path:
    return path.with_name(f"{path.name}.{number}") if number else path
