"""The user's cache folder: what is expensive to make and can be made again.

Knows: where the folder is, and how processes that start together make a thing once. Does not know:
what is kept there.
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from io import TextIOWrapper
from pathlib import Path

from outrider_runtime.logs import get_logger

_log = get_logger(__name__)


def user_cache() -> Path:
    """`outrider` under XDG_CACHE_HOME, or under ~/.cache."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "outrider"


@contextmanager
def one_at_a_time(thing: Path) -> Iterator[None]:
    """Within it no other process looks for `thing` or makes it; whoever comes later waits.

    The lock is the kernel's, on a file beside `thing` that stays: it holds between containers that
    share a volume, and a process that dies lets go of it. A folder that cannot be written or locked
    is no error: what is kept in the cache appears by renaming, so at worst it is made twice.
    The lock is not re-entrant.
    """
    with ExitStack() as until_made:
        with suppress(OSError):
            lock = until_made.enter_context(_lock_file(thing))
            _wait_for(lock, thing)
        yield


def _lock_file(thing: Path) -> TextIOWrapper:
    thing.parent.mkdir(parents=True, exist_ok=True)
    return thing.with_name(f".{thing.name}.lock").open("w")


def _wait_for(lock: TextIOWrapper, thing: Path) -> None:
    """Until it is ours; closing the file gives it back."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        _log.info("waiting_for_another_process", thing=str(thing))
        fcntl.flock(lock, fcntl.LOCK_EX)
