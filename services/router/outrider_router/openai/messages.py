"""Chat messages: what is accepted from each role, and the form templates expect."""

from collections.abc import Mapping, Sequence
from typing import Any

from outrider_router.openai.errors import invalid, unsupported
from outrider_router.text.template import RESERVED_NAMES

_ROLES = ("system", "developer", "user", "assistant", "tool")
# Kept for templates that use them; everything else in a message is left out.
_KEPT_TEXTS = ("name", "tool_call_id")
_OTHER_PARTS = ("image_url", "input_audio", "file", "refusal")
_MAX_NAME_CHARS = 256
_MAX_CALLS = 128


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
    for name in ("function_call", "audio"):
        if message.get(name):
            raise unsupported(f"{place}.{name}")
    # Templates know no developer; models treat what it says as the system's word.
    result: dict[str, Any] = {"role": "system" if role == "developer" else role}
    calls = message.get("tool_calls") if role == "assistant" else None
    content = message.get("content")
    # What only calls tools has no text, and templates print a null.
    result["content"] = "" if calls and content is None else text_of(content, f"{place}.content")
    if calls:
        result["tool_calls"] = _tool_calls(calls, f"{place}.tool_calls")
    for name in _KEPT_TEXTS:
        if (value := message.get(name)) is not None:
            result[name] = _short_text(value, f"{place}.{name}")
    reasoning = message.get("reasoning_content") or message.get("reasoning")
    if isinstance(reasoning, str) and role == "assistant":
        result["reasoning_content"] = reasoning
    return result


def template_variables(
    given: Mapping[str, Any] | None, reasoning_effort: str | None = None
) -> dict[str, Any]:
    """What a request gives the template besides messages and tools.

    `reasoning_effort` is one of them: templates read it by its name, and those that can only think
    or not read `enable_thinking`. What `chat_template_kwargs` says wins.

    Raises:
        ApiError: 400 for a name that is not the client's to set.
    """
    given = given or {}
    for name in given:
        if name in RESERVED_NAMES:
            param = "chat_template_kwargs"
            raise invalid(f"{param} may not set {name!r}", param)
    effort: dict[str, Any] = {}
    if reasoning_effort is not None:
        effort = {"reasoning_effort": reasoning_effort}
    if reasoning_effort == "none":
        effort["enable_thinking"] = False
    return {**effort, **given}


def _tool_calls(calls: Any, place: str) -> list[dict[str, Any]]:
    """Earlier calls, with their arguments as the JSON text they came in."""
    if not isinstance(calls, list) or len(calls) > _MAX_CALLS:
        raise invalid(f"{place} must be a list of at most {_MAX_CALLS} calls", place)
    return [_tool_call(call, f"{place}[{at}]") for at, call in enumerate(calls)]


def _tool_call(call: Any, place: str) -> dict[str, Any]:
    match call:
        case {"function": {"name": str(name), "arguments": str(arguments)}}:
            function = {"name": _short_text(name, f"{place}.function.name"), "arguments": arguments}
            call_id = _short_text(call.get("id") or "", f"{place}.id")
            return {"id": call_id, "type": "function", "function": function}
        case _:
            text = f"{place} must have a function with name and arguments, both strings"
            raise invalid(text, place)


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
