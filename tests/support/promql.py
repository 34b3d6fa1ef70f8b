"""Which metrics and labels a PromQL expression names; not a parser, and no judge of its syntax."""

import re
from dataclasses import dataclass

_STRINGS = re.compile(r'"(?:[^"\\]|\\.)*"')
_MATCHERS = re.compile(r"\{([^}]*)\}")
_LABEL = re.compile(r"([a-zA-Z_]\w*)\s*(?:=~|!~|!=|=)")
_GROUPING = re.compile(r"\b(?:by|without|on|ignoring|group_left|group_right)\s*\(([^)]*)\)")
_RANGE = re.compile(r"\[[^\]]*\]")
_NAME = re.compile(r"(?<![\w.:])([a-zA-Z_:][\w:]*)(?!\s*\()(?![\w:])")
_WORDS = {"and", "or", "unless", "offset", "bool"}


@dataclass(frozen=True)
class Names:
    """What an expression refers to."""

    metrics: frozenset[str]
    labels: frozenset[str]


def names(expr: str) -> Names:
    """Every metric and every label of an expression; Grafana's variables stand in strings."""
    bare = _STRINGS.sub('""', expr)
    labels = {label for group in _MATCHERS.findall(bare) for label in _LABEL.findall(group)}
    bare = _MATCHERS.sub("", bare)
    for group in _GROUPING.findall(bare):
        labels |= {part.strip() for part in group.split(",") if part.strip()}
    bare = _RANGE.sub("", _GROUPING.sub(" ", bare))
    return Names(frozenset(set(_NAME.findall(bare)) - _WORDS), frozenset(labels))
