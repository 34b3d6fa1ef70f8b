"""What all services' settings share: a frozen object read from the environment, shown masked.

A service subclasses `ServiceSettings` with its own prefix; the token that authenticates services to
one another is common to all (`OUTRIDER_TOKEN`). Where containers mount secrets as files,
`OUTRIDER_SECRETS_DIR` names their folders, with `:` between: a file is called as its variable, in
small letters, and the variable wins where both are there.
"""

import ipaddress
import json
import os
import re
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, AliasChoices, Field, SecretStr
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SecretsSettingsSource,
    SettingsConfigDict,
)

SECRETS_DIR = "OUTRIDER_SECRETS_DIR"
# An address in brackets; in a JSON list a quotation mark stands before the first colon.
_IPV6 = re.compile(r'\[[\da-fA-F]*:[^"\]]*\]')


class ConfigurationError(Exception):
    """Settings under which a service must not start; the message says what to change."""


def _is_collector(url: str) -> str:
    """What the exporter can use; of other schemes, or none, it says nothing and sends nothing."""
    parts = urlsplit(url)
    if url and not (parts.scheme in ("http", "https") and parts.hostname):
        raise ValueError(f"must be http:// or https:// with a host and a port, not {url!r}")
    return url


class ServiceSettings(BaseSettings):
    """Common settings; subclasses set `model_config = settings_config("OUTRIDER_<SERVICE>_")`."""

    log_level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", validation_alias=AliasChoices("log_level", "OUTRIDER_LOG_LEVEL")
    )
    log_format: Literal["json", "console"] = Field(
        default="json", validation_alias=AliasChoices("log_format", "OUTRIDER_LOG_FORMAT")
    )
    token: SecretStr | None = Field(
        default=None,
        validation_alias=AliasChoices("token", "OUTRIDER_TOKEN"),
        description="Shared secret that every gRPC call between services carries.",
    )

    trace_endpoint: Annotated[str, AfterValidator(_is_collector)] = Field(
        default="",
        validation_alias=AliasChoices("trace_endpoint", "OUTRIDER_TRACE_ENDPOINT"),
        description="Collector of OpenTelemetry traces (OTLP over gRPC); empty: none are kept.",
    )
    tls_ca_file: Path | None = Field(
        default=None,
        validation_alias=AliasChoices("tls_ca_file", "OUTRIDER_TLS_CA_FILE"),
        description="Authority of all services' certificates; set: gRPC between them uses TLS.",
    )
    tls_cert_file: Path | None = Field(
        default=None,
        validation_alias=AliasChoices("tls_cert_file", "OUTRIDER_TLS_CERT_FILE"),
        description="This service's certificate for gRPC, shown as a server and as a client.",
    )
    tls_key_file: Path | None = Field(
        default=None,
        validation_alias=AliasChoices("tls_key_file", "OUTRIDER_TLS_KEY_FILE"),
        description="Private key of that certificate.",
    )
    tls_server_name: str = Field(
        default="",
        validation_alias=AliasChoices("tls_server_name", "OUTRIDER_TLS_SERVER_NAME"),
        description="Name in the servers' certificates, where it is not the one in the address.",
    )

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Arguments, then variables, then files of the folders that are asked for."""
        secrets = SecretsSettingsSource(settings_cls, secrets_dir=_secrets_folders())
        return init_settings, env_settings, secrets

    def masked(self) -> str:
        """What differs from the defaults, as one line of JSON for the log, secrets hidden."""
        return json.dumps(self.model_dump(mode="json", exclude_defaults=True), sort_keys=True)

    @property
    def token_text(self) -> str | None:
        """The token in clear, for the gRPC factories only."""
        return self.token.get_secret_value() if self.token else None


def _secrets_folders() -> list[str | Path] | None:
    """The folders that hold secrets as files.

    Raises:
        ConfigurationError: one of them is not there; a service would start without its secrets.
    """
    folders = [part for part in os.environ.get(SECRETS_DIR, "").split(":") if part]
    for folder in folders:
        if not Path(folder).is_dir():
            raise ConfigurationError(f"{SECRETS_DIR} names {folder}, which is no folder")
    return list(folders) or None


def settings_config(env_prefix: str) -> SettingsConfigDict:
    """The configuration every service's settings class uses."""
    return SettingsConfigDict(
        env_prefix=env_prefix,
        env_nested_delimiter="__",
        frozen=True,
        extra="forbid",
        populate_by_name=True,
    )


def comma_separated(value: Any) -> Any:
    """`a, b`, or a JSON list of texts, as a tuple; other values are left to the validation.

    For fields annotated with `NoDecode` and `BeforeValidator(comma_separated)`.

    Raises:
        ValueError: what begins like a JSON list is neither one nor an IPv6 address in brackets. The
            value is not told: it may be secret.
    """
    if not isinstance(value, str):
        return value
    if value.lstrip().startswith("[") and not _IPV6.match(value.lstrip()):
        try:
            return tuple(json.loads(value))
        except ValueError:
            raise ValueError("begins like a JSON list and is none") from None
    return tuple(part.strip() for part in value.split(",") if part.strip())


def is_loopback(host: str) -> bool:
    """True for localhost and the loopback ranges; names are not resolved."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def require_secret_beyond_loopback(host: str, secret: str | None, name: str) -> None:
    """Raise `ConfigurationError` for a server that others could reach without a secret."""
    if not secret and not is_loopback(host):
        raise ConfigurationError(
            f"refusing to listen on {host}: it is beyond loopback and {name} is not set"
        )
