"""Settings that cannot work, told one to a line: the variable, what is wrong, what is allowed.

Variables that set nothing, though somebody meant them to, are told as well, but refuse no start.

Knows how the settings classes name their variables and how pydantic describes a fault. Does not
know any service's settings.
"""

import os
import sys
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Any, TypeVar

from pydantic import AliasChoices, SecretStr, ValidationError
from pydantic_settings import SettingsError
from structlog.stdlib import BoundLogger

from outrider_runtime.settings import SECRETS_DIR, ConfigurationError, ServiceSettings

BAD_SETTINGS = 2
"""The exit status of a service whose settings cannot work."""
_COMMON = "OUTRIDER_"
_SERVICES = ("OUTRIDER_PLANNER_", "OUTRIDER_ROUTER_", "OUTRIDER_WORKER_")
_LIKE, _ALMOST = 0.6, 0.8
"""Likeness of names, 0 to 1: worth telling, and hardly anything but a typing error."""
Settings = TypeVar("Settings", bound=ServiceSettings)


def read_settings(kind: type[Settings]) -> Settings:
    """A service's settings from its environment.

    Raises:
        ConfigurationError: with a line for each fault; no line shows a secret.
    """
    try:
        return kind()
    except ValidationError as error:
        faults = error.errors(include_url=False)
        raise ConfigurationError("\n".join(_line(kind, fault) for fault in faults)) from None
    except SettingsError as error:
        raise ConfigurationError(str(error)) from error


def refused(service: str, error: Exception) -> int:
    """Says on stderr why a service does not start, a line for each fault; the exit status."""
    for line in str(error).splitlines():
        print(f"outrider {service}: {line}", file=sys.stderr)
    return BAD_SETTINGS


def warn_of_unknown(kind: type[ServiceSettings], log: BoundLogger) -> None:
    """Log a warning for each variable of the environment that a typing error may have made."""
    for variable, nearest in unknown_variables(kind, os.environ).items():
        log.warning("unknown_setting", variable=variable, nearest=nearest)


def unknown_variables(
    kind: type[ServiceSettings], variables: Iterable[str]
) -> dict[str, str | None]:
    """Those that set nothing and were meant to, each with the known name that is most like it.

    That is, all that begin like the service's own, and of others those that are almost the name of
    a common setting: much else begins with `OUTRIDER_`, as other services' settings do.
    """
    prefix = str(kind.model_config["env_prefix"])
    known = {SECRETS_DIR, *(variable_of(kind, field) for field in kind.model_fields)}
    names = {_last_part(name, prefix): name for name in known}
    common = {part: name for part, name in names.items() if not name.startswith(prefix)}
    unknown = {}
    for given in sorted(variables):
        name = given.upper()
        if name.partition("__")[0] in known:
            continue
        if name.startswith(prefix):
            unknown[given] = _nearest(_last_part(name, prefix), names, _LIKE)
        elif name.startswith(_COMMON) and not name.startswith(_SERVICES):
            nearest = _nearest(_last_part(name, prefix), common, _ALMOST)
            unknown |= {given: nearest} if nearest else {}
    return unknown


def _last_part(variable: str, prefix: str) -> str:
    """What stands behind the service's prefix, or behind the common one."""
    return variable.removeprefix(prefix).removeprefix(_COMMON)


def _nearest(part: str, names: Mapping[str, str], likeness: float) -> str | None:
    """The variable whose last part is most like this one, if any is so much like it (0 to 1)."""
    found = get_close_matches(part, names, 1, likeness)
    return names[found[0]] if found else None


def variable_of(kind: type[ServiceSettings], field: str) -> str:
    """The environment variable that sets a field."""
    info = kind.model_fields.get(field)
    alias = info.validation_alias if info else None
    if isinstance(alias, AliasChoices):
        return str(alias.choices[-1])
    return f"{kind.model_config.get('env_prefix', '')}{field}".upper()


def _line(kind: type[ServiceSettings], fault: Mapping[str, Any]) -> str:
    if not fault["loc"]:  # about several settings together: the message names them
        return _message(fault)
    field = str(fault["loc"][0])
    known = kind.model_fields.get(field)
    said = f"{variable_of(kind, field)}: {_message(fault)}"
    if fault["type"] == "value_error" or (known and _is_secret(known.annotation)):
        return said
    return f"{said}, not {fault['input']!r}"


def _message(fault: Mapping[str, Any]) -> str:
    """What pydantic says of a fault, without what it says of itself."""
    words = str(fault["msg"]).removeprefix("Value error, ")
    return words.replace("Input should be", "must be").partition(", unable to")[0]


def _is_secret(annotation: Any) -> bool:
    return SecretStr.__name__ in str(annotation)
