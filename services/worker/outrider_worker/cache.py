"""The user's cache folder: what is expensive to make and can be made again."""

import os
from pathlib import Path


def user_cache() -> Path:
    """`outrider` under XDG_CACHE_HOME, or under ~/.cache."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "outrider"
