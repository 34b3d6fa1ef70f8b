"""`tools` and `tool_choice`: checked, and turned into what to render, to read and to prescribe."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from outrider_router.openai.errors import invalid, unsupported
from outrider_router.openai.schema import ChatBody
from outrider_router.text.tool_grammar import ToolSchema

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,128}")
_ANY_ARGUMENTS: Mapping[str, Any] = {"type": "object"}
# What a function takes that declares no parameters.
_NO_ARGUMENTS: Mapping[str, Any] = {
    "type": "object",
    "properties": {},
    "additionalProperties": False,
}


@dataclass(frozen=True)
class ToolUse:
    """What a request wants of tools.

    Attributes:
        rendered: the tools as templates expect them.
        schemas: those the model may call.
        mode: whether it may call, must call, or must call the one that was named.
        many: whether it may call more than one at once.
    """

    rendered: tuple[Mapping[str, Any], ...]
    schemas: tuple[ToolSchema, ...]
    mode: Literal["auto", "required", "named"]
    many: bool

    @property
    def prescribed(self) -> bool:
        """True if the answer must be calls."""
        return self.mode != "auto"


def tool_use_of(body: ChatBody) -> ToolUse | None:
    """The request's tools; None if there are none or they are not to be used.

    Raises:
        ApiError: 400, naming the field.
    """
    tools = _tools(body.tools)
    choice = _choice(body.tool_choice)
    mode = choice.mode
    if not tools:
        if mode in ("required", "named"):
            raise invalid("tool_choice needs tools", "tool_choice")
        return None
    if mode == "none":
        return None
    allowed = _allowed(tools, choice.names)
    schemas = tuple(_schema_of(tools[at], f"tools[{at}]") for at in allowed)
    many = body.parallel_tool_calls is not False and mode != "named"
    # Where calls are prescribed, a grammar holds the model to those allowed and the prompt can stay
    # the same whichever they are. Elsewhere nothing does, so the model must not see the others.
    rendered = tuple(tools[at] for at in allowed) if mode == "auto" else tools
    return ToolUse(rendered, schemas, mode, many)


def rendered_tools(value: Any) -> tuple[Mapping[str, Any], ...] | None:
    """Tools as templates expect them, None for none.

    Raises:
        ApiError: 400, naming the place at fault.
    """
    return _tools(value) or None


def _tools(value: Any) -> tuple[Mapping[str, Any], ...]:
    if value is None:
        return ()
    if not isinstance(value, list):
        raise invalid("tools must be a list", "tools")
    tools = tuple(_tool(tool, f"tools[{at}]") for at, tool in enumerate(value))
    names = [tool["function"]["name"] for tool in tools]
    if len(set(names)) < len(names):
        raise invalid("two tools have the same name", "tools")
    return tools


def _tool(tool: Any, place: str) -> Mapping[str, Any]:
    if not isinstance(tool, Mapping):
        raise invalid(f"{place} must be an object", place)
    if tool.get("type") != "function":
        raise unsupported(f"{place}.type", "other than 'function' is not supported")
    function = tool.get("function")
    if not isinstance(function, Mapping):
        raise invalid(f"{place}.function must be an object", f"{place}.function")
    _check_function(function, f"{place}.function")
    kept = {key: item for key, item in function.items() if item is not None and key != "strict"}
    return {"type": "function", "function": kept}


def _check_function(function: Mapping[str, Any], place: str) -> None:
    name = function.get("name")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        text = f"{place}.name must have 1 to 128 letters, digits, dots, dashes or underscores"
        raise invalid(text, f"{place}.name")
    if not isinstance(function.get("description"), str | None):
        raise invalid(f"{place}.description must be a string", f"{place}.description")
    if not isinstance(function.get("parameters"), Mapping | None):
        raise invalid(f"{place}.parameters must be a JSON schema", f"{place}.parameters")


def _schema_of(tool: Mapping[str, Any], place: str) -> ToolSchema:
    function = tool["function"]
    parameters = function.get("parameters", _NO_ARGUMENTS)
    param = f"{place}.function.parameters"
    return ToolSchema(function["name"], parameters or _ANY_ARGUMENTS, param)


@dataclass(frozen=True)
class _Choice:
    """What `tool_choice` says; `names` are the tools that may be called, None for all."""

    mode: Literal["none", "auto", "required", "named"]
    names: tuple[str, ...] | None = None


def _choice(value: Any) -> _Choice:
    match value:
        case None:
            return _Choice("auto")
        case "none" | "auto" | "required":
            return _Choice(value)
        case {"type": "function", "function": {"name": str(name)}}:
            return _Choice("named", (name,))
        case {"type": "function"}:
            raise invalid("tool_choice.function.name is required", "tool_choice")
        case {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": list(tools)}}:
            return _allowed_choice(mode, tools)
        case {"type": "allowed_tools"}:
            raise invalid("tool_choice.allowed_tools must hold mode and tools", "tool_choice")
        case {"type": str()}:
            raise unsupported("tool_choice", "of this type is not supported")
        case _:
            raise invalid(
                "tool_choice must be none, auto, required, a named function or allowed_tools",
                "tool_choice",
            )


def _allowed_choice(mode: Any, tools: list[Any]) -> _Choice:
    place = "tool_choice.allowed_tools"
    if mode not in ("auto", "required"):
        raise invalid(f"{place}.mode must be auto or required", "tool_choice")
    names = []
    for tool in tools:
        match tool:
            case {"type": "function", "function": {"name": str(name)}}:
                names.append(name)
            case _:
                text = f"{place}.tools must be functions with their names"
                raise invalid(text, "tool_choice")
    if not names:
        raise invalid(f"{place}.tools must name a tool", "tool_choice")
    return _Choice(mode, tuple(names))


def _allowed(tools: Sequence[Mapping[str, Any]], names: Sequence[str] | None) -> list[int]:
    """Places of the tools of these names, in the order of `tools`; all of them for None."""
    places = {tool["function"]["name"]: at for at, tool in enumerate(tools)}
    for name in names or ():
        if name not in places:
            raise invalid(f"tool_choice names {name!r}, which is not among tools", "tool_choice")
    return sorted({places[name] for name in (places if names is None else names)})
