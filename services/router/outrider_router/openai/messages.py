"""Chat messages: what is accepted from each role, and the form templates expect."""

from collections.abc import Sequence
from typing import Any

from outrider_router.openai.errors import invalid, unsupported

_ROLES = ("system", "developer", "user", "assistant", "tool")
# Kept for templates that use them; everything else in a message is left out.
_KEPT_TEXTS = ("name", "tool_call_id")
_OTHER_PARTS = ("image_url", "input_audio", "file", "refusal")
_MAX_NAME_CHARS = 256


def template_messages(messages: Sequence[Any]) -> list[dict[str, Any]]:
    """Messages as templates expect them: content as one string, `developer` as `system`.

    Raises:
        ApiError: 400, naming the message and field at fault.
    """
    return [_message(message, f"messages[{at}]") for at, message in enumerate(messages)]


def _message(message: Any, place: str) -> dict[str, Any]:
    if not isinstance(message, dict):
        raise invalid(f"{place} must be an object", place)
    role = message.get("role")
    if role not in _ROLES:
        raise invalid(f"{place}.role must be one of {', '.join(_ROLES)}", f"{place}.role")
    for name in ("tool_calls", "function_call", "audio"):
        if message.get(name):
            raise unsupported(f"{place}.{name}")
    # Templates know no developer; models treat what it says as the system's word.
    result = {"role": "system" if role == "developer" else role}
    result["content"] = text_of(message.get("content"), f"{place}.content")
    for name in _KEPT_TEXTS:
        if (value := message.get(name)) is not None:
            result[name] = _short_text(value, f"{place}.{name}")
    reasoning = message.get("reasoning_content") or message.get("reasoning")
    if isinstance(reasoning, str) and role == "assistant":
        result["reasoning_content"] = reasoning
    return result


def text_of(content: Any, place: str) -> str:
    """The text of a field called `content`; parts are joined.

    Raises:
        ApiError: 400, naming the place.
    """
    if isinstance(content, str):
        return content
    if content is None:
        raise invalid(f"{place} is required", place)
    if not isinstance(content, list) or not content:
        raise invalid(f"{place} must be a string or a list of text parts", place)
    return "".join(_part(part, f"{place}[{at}]") for at, part in enumerate(content))


def _part(part: Any, place: str) -> str:
    if not isinstance(part, dict):
        raise invalid(f"{place} must be an object", place)
    kind = part.get("type")
    if kind in _OTHER_PARTS:
        raise unsupported(f"{place}.type", f"{kind!r} is not supported")
    if kind != "text":
        raise invalid(f"{place}.type must be 'text'", f"{place}.type")
    text = part.get("text")
    if not isinstance(text, str):
        raise invalid(f"{place}.text must be a string", f"{place}.text")
    return text


def _short_text(value: Any, place: str) -> str:
    if not isinstance(value, str) or len(value) > _MAX_NAME_CHARS:
        raise invalid(f"{place} must be a string of at most {_MAX_NAME_CHARS} characters", place)
    return value
