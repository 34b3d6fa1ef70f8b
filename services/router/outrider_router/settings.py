"""The router's settings, from the environment (`OUTRIDER_ROUTER_*`, and the common ones)."""

from typing import Annotated, Any

from pydantic import AliasChoices, BeforeValidator, Field, SecretStr
from pydantic_settings import NoDecode

from outrider_runtime.settings import (
    ServiceSettings,
    require_secret_beyond_loopback,
    settings_config,
)


def _split(value: Any) -> Any:
    """`a, b` as a tuple; other values are left to the validation."""
    if isinstance(value, str):
        return tuple(part.strip() for part in value.split(",") if part.strip())
    return value


Address = Annotated[str, Field(pattern=r"^\S+:\d{1,5}$")]


class RouterSettings(ServiceSettings):
    """One frozen object per process."""

    model_config = settings_config("OUTRIDER_ROUTER_")

    host: str = Field("127.0.0.1", description="Address to listen on.")
    port: int = Field(8000, ge=0, le=65535, description="HTTP port; 0 takes a free one.")
    workers: Annotated[tuple[Address, ...], NoDecode, BeforeValidator(_split)] = Field(
        (), description="Workers as host:port, separated by commas."
    )
    api_keys: Annotated[tuple[SecretStr, ...], NoDecode, BeforeValidator(_split)] = Field(
        (), description="Keys that clients may present, separated by commas; none: no key needed."
    )
    max_in_flight: int = Field(256, ge=1, description="Choices in flight at most.")
    max_prompt_tokens_in_flight: int = Field(
        1_000_000, ge=1, description="Prompt tokens of all requests in flight at most."
    )
    max_choices: int = Field(16, ge=1, description="Choices that one request may ask for.")
    max_body_bytes: int = Field(4 * 1024 * 1024, ge=1, description="Size of a request body.")
    request_limit_s: float = Field(600.0, gt=0, description="Time for a whole request.")
    write_limit_s: float = Field(
        30.0, gt=0, description="Time that a client may take to accept one write."
    )
    drain_limit_s: float = Field(
        8.0, ge=0, description="Time that running requests get after SIGTERM."
    )
    text_threads: int = Field(2, ge=1, description="Threads for templates and tokenising.")
    control_tokens_in_content: bool = Field(
        False,
        description="Encode control tokens written in messages as such: clients can forge turns.",
    )

    def require_safe(self) -> None:
        """Raise `ConfigurationError` for a router that anybody could reach without a key."""
        keys = "".join(key.get_secret_value() for key in self.api_keys)
        require_secret_beyond_loopback(self.host, keys, "OUTRIDER_ROUTER_API_KEYS")


def environment_name(field: str) -> str:
    """The variable that sets a field, for messages."""
    info = RouterSettings.model_fields.get(field)
    alias = info.validation_alias if info else None
    if isinstance(alias, AliasChoices):
        return str(alias.choices[-1])
    return f"OUTRIDER_ROUTER_{field}".upper()
