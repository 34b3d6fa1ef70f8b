"""How deep a value of JSON is nested. Pure.

Whatever looks through values by calling itself ends in a fault of the interpreter where they are
deeper than its stack, long after they were read without one. So depth is bounded as they come in.
"""

from collections.abc import Iterable
from typing import Any

MAX_DEPTH = 128
"""More than any schema or argument needs."""
_NESTS = (dict, list)


def is_too_deep(value: Any) -> bool:
    """Whether lists and objects are nested further than `MAX_DEPTH`."""
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [inner for outer in level for inner in _inside(outer) if isinstance(inner, _NESTS)]
        if not level:
            return False
    return True


def _inside(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()
