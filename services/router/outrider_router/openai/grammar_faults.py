"""What a worker finds wrong in a grammar that the router wrote, in the client's words.

Such a message tells a line of a grammar that the client has never seen. Each line was made of one
field of the request at most, so that the field can be named instead.
"""

import re
from collections.abc import Mapping

# As workers begin it, with the place that their library puts before its reason.
_PLACED = re.compile(r"invalid lark: (?:at )?(\d+)\(\d+\): ")
_SCHEMA = "failed to compile JSON schema: "
# The library shows the lines around the place behind its reason.
_EXCERPT = re.compile(r"\n +\d+ \| .*", re.DOTALL)


def in_fields(message: str, lines: Mapping[int, str]) -> tuple[str, str] | None:
    """The reason and the field at fault; None if the message does not tell which one it is.

    Args:
        message: the worker's.
        lines: the fields that lines of the grammar were made of, counted from 1.
    """
    placed = _PLACED.match(message)
    field = lines.get(int(placed.group(1))) if placed else None
    if placed is None or field is None:
        return None
    reason = _EXCERPT.sub("", message[placed.end() :]).removeprefix(_SCHEMA).strip()
    return f"{field}: {reason}", field
