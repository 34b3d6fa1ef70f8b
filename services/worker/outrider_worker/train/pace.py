"""How often a long stage says how far it is.

Knows: time between lines. Does not know: their words, where they go.
"""

from __future__ import annotations

import time
from collections.abc import Callable

LINE_EVERY_S = 10.0
Say = Callable[[str], None]


def paced(
    say: Say, every_s: float = LINE_EVERY_S, now_s: Callable[[], float] = time.monotonic
) -> Say:
    """Lets a line through where none was said for so long: for steps of unknown pace."""
    latest_s = now_s()

    def say_seldom(line: str) -> None:
        nonlocal latest_s
        if now_s() - latest_s >= every_s:
            latest_s = now_s()
            say(line)

    return say_seldom
