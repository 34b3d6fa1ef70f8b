"""The API described: request bodies, answers and errors for `/openapi.json`, and a page to read.

The page loads nothing from anywhere, so it works on machines without a way out.
"""

from collections.abc import Iterator, Mapping
from html import escape
from typing import Any

from pydantic import BaseModel

_STRING, _NUMBER = {"type": "string"}, {"type": "integer"}
_USAGE = {
    "type": "object",
    "required": ["prompt_tokens", "completion_tokens", "total_tokens"],
    "properties": dict.fromkeys(("prompt_tokens", "completion_tokens", "total_tokens"), _NUMBER),
}
ERROR = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": _STRING,
                "type": _STRING,
                "param": {"type": ["string", "null"]},
                "code": {"type": ["string", "null"]},
            },
        }
    },
}
"""Every error's body."""
_MODEL = {
    "type": "object",
    "required": ["id", "object", "created", "owned_by"],
    "properties": {
        "id": _STRING,
        "object": {"const": "model"},
        "created": _NUMBER,
        "owned_by": _STRING,
        "max_model_len": _NUMBER,
        "speculation": {
            "type": "object",
            "required": ["drafters", "max_draft", "prediction"],
            "properties": {
                "drafters": {"type": "array", "items": _STRING},
                "max_draft": _NUMBER,
                "prediction": {"type": "boolean"},
            },
        },
    },
}
_LISTED = {"object": {"const": "list"}, "data": {"type": "array", "items": _MODEL}}
ANSWERS: Mapping[str, Mapping[str, Any]] = {
    "models": {"type": "object", "required": ["object", "data"], "properties": _LISTED},
    "model": _MODEL,
    "tokens": {
        "type": "object",
        "required": ["count", "max_model_len", "tokens"],
        "properties": {
            "count": _NUMBER,
            "max_model_len": _NUMBER,
            "tokens": {"type": "array", "items": _NUMBER},
        },
    },
    "text": {"type": "object", "required": ["prompt"], "properties": {"prompt": _STRING}},
    "state": {"type": "object", "additionalProperties": _STRING},
}
"""Schemas of whole answers other than generated ones."""


def generated(object_name: str) -> Mapping[str, Any]:
    """The schema of a generated answer."""
    return {
        "type": "object",
        "required": ["id", "object", "created", "model", "choices", "usage"],
        "properties": {
            "id": _STRING,
            "object": {"const": object_name},
            "created": _NUMBER,
            "model": _STRING,
            "choices": {"type": "array", "items": {"type": "object"}},
            "usage": _USAGE,
        },
    }


def takes(body: type[BaseModel]) -> dict[str, Any]:
    """The request body's schema; routes read the body themselves."""
    schema = body.model_json_schema()
    inlined = _inline(schema, schema.pop("$defs", {}))
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": inlined}}}}


def gives(answer: Mapping[str, Any], streams: bool = False) -> dict[int | str, dict[str, Any]]:
    """What a route answers: on success, and with an error of any status."""
    good: dict[str, Any] = {"application/json": {"schema": answer}}
    if streams:
        good["text/event-stream"] = {"schema": _STRING}
    return {
        200: {"description": "Success", "content": good},
        "default": {
            "description": "Error",
            "content": {"application/json": {"schema": ERROR}},
        },
    }


def _inline(schema: Any, definitions: Mapping[str, Any]) -> Any:
    """The schema with references replaced by what they name."""
    if isinstance(schema, list):
        return [_inline(item, definitions) for item in schema]
    if not isinstance(schema, dict):
        return schema
    if "$ref" in schema:
        return _inline(definitions[schema["$ref"].rpartition("/")[2]], definitions)
    return {key: _inline(value, definitions) for key, value in schema.items()}


def page(description: Mapping[str, Any]) -> str:
    """The description as a page of HTML."""
    title = escape(f"{description['info']['title']} {description['info']['version']}")
    routes = "".join(_routes(description["paths"]))
    style = "body{font:16px/1.5 sans-serif;max-width:60em;margin:2em auto;padding:0 1em}"
    style += "td{padding:0 1em 0 0;vertical-align:top}code{font-size:90%}"
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title>'
        f"<style>{style}</style><h1>{title}</h1>"
        f'<p>In full: <a href="openapi.json">openapi.json</a></p>{routes}</html>'
    )


def _routes(paths: Mapping[str, Any]) -> Iterator[str]:
    for path, methods in paths.items():
        for method, route in methods.items():
            yield f"<h2><code>{method.upper()} {escape(path)}</code></h2>"
            yield f"<p>{escape(route.get('description', route['summary']))}</p>"
            content = route.get("requestBody", {}).get("content", {})
            for body in content.values():
                yield f"<table>{''.join(_fields(body['schema']))}</table>"


def _fields(schema: Mapping[str, Any]) -> Iterator[str]:
    required = schema.get("required", ())
    for name, field in schema.get("properties", {}).items():
        needed = "required" if name in required else ""
        yield f"<tr><td><code>{escape(name)}</code><td>{escape(_kind(field))}<td>{needed}</tr>"


def _kind(field: Mapping[str, Any]) -> str:
    """A field's types in words."""
    options = field.get("anyOf", (field,))
    kinds = [str(option.get("type", "any")) for option in options if option.get("type") != "null"]
    return " or ".join(dict.fromkeys(kinds))
