"""Server-sent events: one `data:` line each, and moulds for those that are a text in a frame."""

import json
from collections.abc import Mapping
from json.encoder import encode_basestring
from typing import Any

from outrider_router.generation import Delta
from outrider_router.openai.frame import Frame
from outrider_router.text.parts import Content, Part, Reasoning

DONE = b"data: [DONE]\n\n"
PING = b": ping\n\n"
_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
# What stands for the text in a mould. Only the last one counts, so names may hold it too.
_MARK = "\0"

Mould = tuple[str, str]


def event(value: Mapping[str, Any]) -> bytes:
    """One event."""
    return f"data: {_encode(value)}\n\n".encode()


class EventWriter:
    """Writes one answer's deltas as events.

    Nearly all of them carry a piece of text and nothing else. Such an event is cast: what stands
    before and behind the text is encoded once for each choice.

    Args:
        frame: what stands around the choices.
    """

    def __init__(self, frame: Frame) -> None:
        self._frame = frame
        self._moulds: dict[tuple[int, type[Part]], Mould | None] = {}
        self._casts = not frame.tells_tokens and frame.with_reasoning

    def of(self, delta: Delta) -> bytes:
        """The events of one delta, which may be none."""
        if self._casts and delta.ending is None and len(delta.parts) == 1:
            [part] = delta.parts
            mould = self._mould(delta.place, part)
            if mould is not None and isinstance(part, Content | Reasoning):
                return f"{mould[0]}{encode_basestring(part.text)}{mould[1]}".encode()
        frame = self._frame
        return b"".join(event(frame.chunk([choice])) for choice in frame.delta(delta))

    def _mould(self, index: int, part: Part) -> Mould | None:
        key = index, type(part)
        if key not in self._moulds:
            self._moulds[key] = self._new_mould(index, part)
        return self._moulds[key]

    def _new_mould(self, index: int, part: Part) -> Mould | None:
        """None where more than a text is said, or nothing."""
        if not isinstance(part, Content | Reasoning):
            return None
        choice = self._frame.writer.delta(index, type(part)(_MARK), self._frame.call_ids)
        chunk = event(self._frame.chunk([choice])).decode()
        head, mark, tail = chunk.rpartition(encode_basestring(_MARK))
        return (head, tail) if mark else None
