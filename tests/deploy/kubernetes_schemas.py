"""Objects compared with the schemas of a version of Kubernetes: every error, not the first alone.

The schemas are those that the package kubernetes-validate brings; its strict ones allow no unknown
field. Knows nothing of objects that extensions define.
"""

import importlib.resources
import json
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any

import jsonschema_rs


def versions() -> list[str]:
    """All that schemas are there for, oldest first: `["1.25", …]`."""
    names = {folder.name for folder in _schemas().iterdir()}
    found = {tuple(map(int, name[1:].split("-")[0].split(".")[:2])) for name in names}
    return [f"{major}.{minor}" for major, minor in sorted(found)]


def errors(objects: Iterable[Mapping[str, Any]], version: str) -> list[str]:
    """What is wrong: `Kind/name: a.b.0: message`."""
    return [
        f"{each['kind']}/{each['metadata']['name']}: {'.'.join(map(str, error.instance_path))}: "
        f"{error.message}"
        for each in objects
        for error in _validator(each["apiVersion"], each["kind"], version).iter_errors(each)
    ]


@cache
def _validator(api_version: str, kind: str, version: str) -> jsonschema_rs.Draft202012Validator:
    group, _, number = api_version.rpartition("/")
    parts = [kind.lower(), *([group.split(".")[0]] if group else []), number]
    schema = json.loads((_folder(version) / f"{'-'.join(parts)}.json").read_text())
    return jsonschema_rs.Draft202012Validator(schema, registry=_definitions(version))


@cache
def _definitions(version: str) -> jsonschema_rs.Registry:
    contents = json.loads((_folder(version) / "_definitions.json").read_text())
    return jsonschema_rs.Registry([(contents["$id"], contents)])


def _folder(version: str) -> Any:
    return _schemas() / f"v{version}.0-local-strict"


def _schemas() -> Any:
    return importlib.resources.files("kubernetes_validate") / "kubernetes-json-schema"
