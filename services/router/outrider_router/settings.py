"""The router's settings, from the environment (`OUTRIDER_ROUTER_*`, and the common ones)."""

from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, SecretStr, model_validator
from pydantic_settings import NoDecode

from outrider_router.access.keys import (
    SAFE_KEY_CHARACTERS,
    KeyPolicy,
    policies_of_file,
    policy_of_entry,
)
from outrider_router.openai.caps import (
    DEFAULT_CAPS,
    MAX_GRAMMAR_BYTES,
    MAX_LOGIT_BIASES,
    MAX_PREDICTION_TOKENS,
    Caps,
)
from outrider_router.types import ReportLevel
from outrider_runtime.settings import (
    ConfigurationError,
    ServiceSettings,
    comma_separated,
    require_secret_beyond_loopback,
    settings_config,
)


def _has_port(address: str) -> str:
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or int(port) >= 1 << 16:
        raise ValueError(f"{address!r} is not host:port with a port up to 65535")
    return address


Address = Annotated[str, AfterValidator(_has_port)]


class RouterSettings(ServiceSettings):
    """One frozen object per process."""

    model_config = settings_config("OUTRIDER_ROUTER_")

    host: str = Field("127.0.0.1", description="Address to listen on.")
    port: int = Field(8000, ge=0, le=65535, description="HTTP port; 0 takes a free one.")
    workers: Annotated[tuple[Address, ...], NoDecode, BeforeValidator(comma_separated)] = Field(
        (),
        description="Workers as host:port, separated by commas; dns:NAME:PORT stands for all "
        "addresses of a name, which is looked up again and again.",
    )
    affinity_slack: float = Field(
        0.15, ge=0, description="How much fuller a worker that knows the prompt may be, 0 to 1."
    )
    most_attempts: int = Field(
        3, ge=1, description="Workers that one choice may be sent to, the first included."
    )
    resume_wait_s: float = Field(
        1.5, ge=0, description="Wait of a begun answer for a worker, where none is ready."
    )
    api_keys: Annotated[tuple[SecretStr, ...], NoDecode, BeforeValidator(comma_separated)] = Field(
        (),
        description="Keys that clients may present, or sha256:HEX of them, separated by commas; "
        "none, here and in the file: no key is needed.",
    )
    api_keys_file: Path | None = Field(
        None,
        description="JSON file of hashed keys with their limits, read again when it changes; see "
        "docs/operations.md.",
    )
    http_tls_cert_file: Path | None = Field(
        None, description="Certificate for HTTPS; with it and its key, plain HTTP is not answered."
    )
    http_tls_key_file: Path | None = Field(None, description="Its private key.")
    http_names: Annotated[tuple[str, ...], NoDecode, BeforeValidator(comma_separated)] = Field(
        (), description="Names, beside addresses and localhost, that keyless clients may call."
    )
    max_in_flight: int = Field(256, ge=1, description="Choices in flight at most.")
    max_prompt_tokens_in_flight: int = Field(
        1_000_000, ge=1, description="Prompt tokens of all requests in flight at most."
    )
    max_waiting: int = Field(64, ge=0, description="Requests in line for a place at most.")
    wait_limit_s: float = Field(30.0, gt=0, description="Time that a request may stand in line.")
    max_choices: int = Field(
        16,
        ge=1,
        le=128,
        description="Choices that a request may ask for; never more than may be in flight.",
    )
    max_messages: int = Field(
        DEFAULT_CAPS.messages, ge=1, description="Messages of a conversation at most."
    )
    max_tools: int = Field(DEFAULT_CAPS.tools, ge=0, description="Tools of a request at most.")
    max_stops: int = Field(
        DEFAULT_CAPS.stops, ge=0, le=256, description="Stop strings of a request at most."
    )
    max_stop_characters: int = Field(
        DEFAULT_CAPS.stop_characters, ge=1, le=65_536, description="Length of a stop string."
    )
    max_logit_biases: int = Field(
        DEFAULT_CAPS.logit_biases,
        ge=0,
        le=MAX_LOGIT_BIASES,
        description="Tokens that a request may bias.",
    )
    max_grammar_bytes: int = Field(
        DEFAULT_CAPS.grammar_bytes,
        ge=0,
        le=MAX_GRAMMAR_BYTES,
        description="Size of a schema, pattern or grammar that an answer is held to.",
    )
    max_prediction_tokens: int = Field(
        DEFAULT_CAPS.prediction_tokens,
        ge=0,
        le=MAX_PREDICTION_TOKENS,
        description="Length of a predicted output.",
    )
    max_body_bytes: int = Field(4 * 1024 * 1024, ge=1, description="Size of a request body.")
    max_json_values: int = Field(
        DEFAULT_CAPS.json_values,
        ge=1,
        description="Values of a request body, a prompt's token ids among them.",
    )
    max_header_bytes: int = Field(
        64 * 1024, ge=1, description="Size of a request's line and headers."
    )
    body_limit_s: float = Field(60.0, gt=0, description="Time for a request's body to arrive.")
    request_limit_s: float = Field(600.0, gt=0, description="Time for a whole request.")
    write_limit_s: float = Field(
        30.0, gt=0, description="Time that a client may take to accept one write."
    )
    ping_interval_s: float = Field(
        15.0, gt=0, description="Silence in a stream after which a comment keeps it alive."
    )
    speculation_report: ReportLevel = Field(
        ReportLevel.NONE,
        description="What answers tell about speculation unless a header asks for another level: "
        "none, summary, detailed, tokens.",
    )
    chat_page: bool = Field(True, description="Serve /chat, a page to try the models with.")
    drain_limit_s: float = Field(
        8.0, ge=0, description="Time that running requests get after SIGTERM."
    )
    metrics_alias: Literal["none", "vllm"] = Field(
        "none", description="Show the series under another server's names too."
    )
    text_threads: int = Field(2, ge=1, description="Threads for templates and tokenising.")
    control_tokens_in_content: bool = Field(
        False,
        description="Encode control tokens written in messages as such: clients can forge turns.",
    )

    @model_validator(mode="after")
    def _most_choices_fit(self) -> Self:
        """Left to its default, the number gives way: see `Gate.most_choices`."""
        if "max_choices" in self.model_fields_set and self.max_choices > self.max_in_flight:
            raise ValueError(
                f"OUTRIDER_ROUTER_MAX_CHOICES ({self.max_choices}) must not be more than "
                f"OUTRIDER_ROUTER_MAX_IN_FLIGHT ({self.max_in_flight})"
            )
        return self

    @property
    def caps(self) -> Caps:
        """How much one request may hold."""
        return Caps(
            messages=self.max_messages,
            tools=self.max_tools,
            stops=self.max_stops,
            stop_characters=self.max_stop_characters,
            logit_biases=self.max_logit_biases,
            grammar_bytes=self.max_grammar_bytes,
            prediction_tokens=self.max_prediction_tokens,
            json_values=self.max_json_values,
        )

    @property
    def needs_key(self) -> bool:
        """Whether clients must show a key; a file without one lets nobody in."""
        return bool(self.api_keys or self.api_keys_file)

    def require_safe(self) -> None:
        """Raise `ConfigurationError` for a router that anybody could reach without a key."""
        keys = "".join(policy.sha256 for policy in self.key_policies())
        require_secret_beyond_loopback(self.host, keys, "OUTRIDER_ROUTER_API_KEYS")

    def https(self) -> dict[str, Any]:
        """What the HTTP server needs for TLS; empty without.

        Raises:
            ConfigurationError: one of the two files is missing.
        """
        cert, key = self.http_tls_cert_file, self.http_tls_key_file
        if cert is None and key is None:
            return {}
        if cert is None or key is None or not (cert.is_file() and key.is_file()):
            raise ConfigurationError(
                "HTTPS needs the files of OUTRIDER_ROUTER_HTTP_TLS_CERT_FILE and _HTTP_TLS_KEY_FILE"
            )
        return {"ssl_certfile": str(cert), "ssl_keyfile": str(key)}

    def key_policies(self) -> list[KeyPolicy]:
        """The keys of both settings.

        Raises:
            ConfigurationError: one of them, or the file, is not in order.
        """
        entries = [key.get_secret_value() for key in self.api_keys]
        plain = [policy_of_entry(entry, number) for number, entry in enumerate(entries, 1)]
        return plain + (policies_of_file(self.api_keys_file) if self.api_keys_file else [])

    def short_api_keys(self) -> list[int]:
        """Numbers of the keys in the environment that are too short to be safe, from 1."""
        entries = enumerate((key.get_secret_value() for key in self.api_keys), 1)
        return [number for number, entry in entries if len(entry) < SAFE_KEY_CHARACTERS]
