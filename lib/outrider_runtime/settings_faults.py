"""Settings that cannot work, told one to a line: the variable, what is wrong, what is allowed.

Variables that begin like a service's own and set nothing are told as well, but refuse no start.

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

from outrider_runtime.settings import ConfigurationError, ServiceSettings

BAD_SETTINGS = 2
"""The exit status of a service whose settings cannot work."""
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
        log.warning("unknown setting", variable=variable, nearest=nearest)


def unknown_variables(
    kind: type[ServiceSettings], variables: Iterable[str]
) -> dict[str, str | None]:
    """Those that begin like the service's own and set nothing, with the known name most like it."""
    prefix = str(kind.model_config["env_prefix"])
    own = {variable_of(kind, field).removeprefix(prefix) for field in kind.model_fields}
    given = {name: name.upper().removeprefix(prefix) for name in sorted(variables)}
    unknown = {
        name: rest
        for name, rest in given.items()
        if name.upper().startswith(prefix) and rest.partition("__")[0] not in own
    }
    likely = {name: get_close_matches(rest, own, 1) for name, rest in unknown.items()}
    return {name: f"{prefix}{found[0]}" if found else None for name, found in likely.items()}


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
