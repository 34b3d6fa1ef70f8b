"""Counts what an object keeps: the sizes of all containers below it, by path."""

from collections import Counter, deque
from collections.abc import Iterator, Mapping, Set
from typing import Any

_OURS = ("outrider_worker.", "tests.")


def census(root: object) -> Counter[str]:
    """Entries of every list, dict, set and deque that is reached from `root` through our objects.

    Containers of one place ("cache._by_page[].children") are counted together. Tensors, functions
    and objects of libraries are not looked into.
    """
    sizes: Counter[str] = Counter()
    seen: set[int] = set()
    left: deque[tuple[str, object]] = deque([("", root)])
    while left:
        path, each = left.popleft()
        if id(each) in seen:
            continue
        seen.add(id(each))
        if isinstance(each, Mapping | Set | list | tuple | deque):
            sizes[path] += len(each)
        left.extend(_below(path, each))
    return sizes


def _below(path: str, each: object) -> Iterator[tuple[str, object]]:
    if isinstance(each, Mapping):
        for key, value in each.items():
            yield f"{path}.keys", key
            yield f"{path}[]", value
    elif isinstance(each, Set | list | tuple | deque):
        for value in each:
            yield f"{path}[]", value
    elif type(each).__module__.startswith(_OURS):
        for name, value in _attributes(each):
            yield f"{path}.{name}", value


def _attributes(each: object) -> Iterator[tuple[str, Any]]:
    yield from getattr(each, "__dict__", {}).items()
    for kind in type(each).__mro__:
        for name in getattr(kind, "__slots__", ()):
            if hasattr(each, name):
                yield name, getattr(each, name)
