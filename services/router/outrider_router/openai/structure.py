"""Answers of a prescribed form: every field that asks for one, as one grammar.

Schemas and patterns are passed on; the worker compiles them, and says what is wrong with them.
"""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from outrider_router.openai.caps import Caps
from outrider_router.openai.errors import invalid, unsupported
from outrider_router.openai.schema import GenerationBody
from outrider_router.text.depth import MAX_DEPTH, is_too_deep
from outrider_router.types import GrammarKind

_MAX_CHOICES = 256
_ANY_OBJECT = '{"type":"object"}'
# What has a meaning in patterns.
_SYNTAX = re.compile(r"[\\.+*?()|\[\]{}^$]")


@dataclass(frozen=True)
class Structure:
    """The form, and the field that asked for it."""

    kind: GrammarKind
    text: str
    param: str


def structure_of(body: GenerationBody, caps: Caps) -> Structure | None:
    """The form that the answer must have; None for free text.

    Raises:
        ApiError: 400, naming the field: malformed, too long, or two fields ask for a form.
    """
    found = [
        structure
        for name, read in _FIELDS.items()
        if (value := getattr(body, name)) is not None
        and (structure := read(value, name)) is not None
    ]
    if len(found) > 1:
        names = " and ".join(structure.param for structure in found)
        raise invalid(f"only one of {names} may prescribe the answer's form", found[1].param)
    if found and len(found[0].text.encode()) > caps.grammar_bytes:
        param = found[0].param
        raise invalid(f"{param} is longer than {caps.grammar_bytes} bytes", param)
    return found[0] if found else None


def _response_format(value: Any, param: str) -> Structure | None:
    if not isinstance(value, Mapping):
        raise invalid(f"{param} must be an object", param)
    match value.get("type"):
        case "text":
            return None
        case "json_object":
            return Structure(GrammarKind.JSON_SCHEMA, _ANY_OBJECT, param)
        case "json_schema":
            return _wrapped_schema(value.get("json_schema"), param)
        case "regex":
            return _regex(value.get("pattern"), f"{param}.pattern")
        case "grammar":
            return _grammar(value.get("grammar"), f"{param}.grammar")
        case _:
            kinds = "text, json_object, json_schema, regex, grammar"
            raise invalid(f"{param}.type must be one of {kinds}", f"{param}.type")


def _wrapped_schema(value: Any, param: str) -> Structure:
    place = f"{param}.json_schema"
    if not isinstance(value, Mapping):
        raise invalid(f"{place} must be an object", place)
    if not isinstance(value.get("name", ""), str):
        raise invalid(f"{place}.name must be a string", f"{place}.name")
    if not isinstance(value.get("strict"), bool | None):
        raise invalid(f"{place}.strict must be true or false", f"{place}.strict")
    if value.get("schema") is None:
        raise invalid(f"{place}.schema is required", f"{place}.schema")
    # Held to its schema whether or not it is strict: that can only make the answer better.
    return _schema(value["schema"], f"{place}.schema")


def _schema(value: Any, param: str) -> Structure:
    """A JSON schema as an object, as its text, or as true, which any JSON fits."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError) as error:
            raise invalid(f"{param} is not valid JSON: {error}", param) from error
        if is_too_deep(value):
            raise invalid(f"{param} is nested deeper than {MAX_DEPTH} levels", param)
    if value is False:
        raise invalid(f"{param} is false, which no answer fits", param)
    if not isinstance(value, Mapping | bool):
        raise invalid(f"{param} must be a JSON schema", param)
    # The workers' library takes its options from a schema, and so wants an object.
    schema = {} if value is True else value
    return Structure(GrammarKind.JSON_SCHEMA, json.dumps(schema, ensure_ascii=False), param)


def _regex(value: Any, param: str) -> Structure:
    pattern = _text(value, param)
    backslashes = len(pattern) - len(pattern.rstrip("\\"))
    if backslashes % 2:
        raise invalid(f"{param} ends with a backslash that escapes nothing", param)
    return Structure(GrammarKind.REGEX, pattern, param)


def _grammar(value: Any, param: str) -> Structure:
    return Structure(GrammarKind.LARK, _text(value, param), param)


def _choice(value: Any, param: str) -> Structure:
    texts = isinstance(value, list) and all(isinstance(one, str) and one for one in value)
    if not texts or not 0 < len(value) <= _MAX_CHOICES:
        raise invalid(f"{param} must be a list of 1 to {_MAX_CHOICES} strings", param)
    # A pattern, unlike a grammar, can be joined with thinking and tool calls.
    one_of = "|".join(_SYNTAX.sub(r"\\\g<0>", one) for one in value)
    return Structure(GrammarKind.REGEX, one_of, param)


def _text(value: Any, param: str) -> str:
    if not isinstance(value, str) or not value:
        raise invalid(f"{param} must be a string that is not empty", param)
    return value


def _structured_outputs(value: Any, param: str) -> Structure | None:
    """vLLM's object: one of its keys says what is wanted."""
    if not isinstance(value, Mapping):
        raise invalid(f"{param} must be an object", param)
    wanted = {key: item for key, item in value.items() if item not in (None, False)}
    forms = [key for key in _STRUCTURED if key in wanted]
    if "structural_tag" in wanted:
        raise unsupported(f"{param}.structural_tag")
    if not forms and not wanted:
        return None
    if len(forms) != 1:
        raise invalid(f"{param} must hold exactly one of {', '.join(_STRUCTURED)}", param)
    return _STRUCTURED[forms[0]](wanted[forms[0]], f"{param}.{forms[0]}")


def _any_object(_value: Any, param: str) -> Structure:
    return Structure(GrammarKind.JSON_SCHEMA, _ANY_OBJECT, param)


_STRUCTURED: Mapping[str, Callable[[Any, str], Structure]] = {
    "json": _schema,
    "regex": _regex,
    "choice": _choice,
    "grammar": _grammar,
    "json_object": _any_object,
}
_FIELDS: Mapping[str, Callable[[Any, str], Structure | None]] = {
    "response_format": _response_format,
    "structured_outputs": _structured_outputs,
    "guided_json": _schema,
    "guided_regex": _regex,
    "guided_choice": _choice,
    "guided_grammar": _grammar,
    "json_schema": _schema,
    "regex": _regex,
    "ebnf": _grammar,
}
