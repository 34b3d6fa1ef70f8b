"""Files that are there whole or not at all, however a run ends.

Knows: that. Does not know: what is in them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """Where to write what becomes `path` when all is written."""
    beside = path.with_name(f"{path.name}.part")
    yield beside
    beside.replace(path)
