"""The planner's settings, read from ``OUTRIDER_PLANNER_…``.

Knows names, defaults and bounds. Anything that cannot work is refused here, with words.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, SecretStr, field_validator, model_validator
from pydantic_settings import NoDecode, SettingsConfigDict

from outrider_planner.core.events import PlannerConfig
from outrider_planner.core.policies import UnknownPolicyError, parse
from outrider_planner.core.settings import SettingsError
from outrider_planner.core.types import Objective
from outrider_planner.plugins import installed_policies
from outrider_planner.store.base import LogLimits
from outrider_planner.store.redis_client import check_url
from outrider_runtime.settings import ServiceSettings, comma_separated, settings_config


class PlannerSettings(ServiceSettings):
    """Everything that can be set from outside."""

    # A refused URL may hold a password: messages name the setting, not what was given.
    model_config = SettingsConfigDict(
        **settings_config("OUTRIDER_PLANNER_"), hide_input_in_errors=True
    )

    grpc_host: str = "127.0.0.1"
    grpc_port: int = Field(7070, ge=0, le=65535)
    http_host: str = "127.0.0.1"
    http_port: int = Field(7071, ge=0, le=65535)
    store: Literal["memory", "redis"] = "memory"
    redis_url: SecretStr = SecretStr("redis://127.0.0.1:6379/0")
    policy: str = Field(
        "two_stage",
        description="two_stage, lightspec, dspark, table:…, static:K, off, or an installed one.",
    )
    objective: Objective = Objective.THROUGHPUT
    latency_bound_s: float | None = Field(
        None, description="Longest time between a request's tokens, for the objective latency."
    )
    decision_log: str = Field(
        "auto",
        description="off, store (a Redis stream), a file, or auto: store with Redis, else off.",
    )
    decision_log_entries: int = Field(
        20_000, ge=1000, le=10_000_000, description="How many entries the Redis stream keeps."
    )
    decision_log_mib: int = Field(
        64, ge=1, le=65_536, description="How large the Redis stream may grow, in MiB."
    )
    http_names: Annotated[frozenset[str], NoDecode, BeforeValidator(comma_separated)] = Field(
        frozenset(),
        description="Names, separated by commas, that HTTP clients call this host by, beside"
        " addresses.",
    )
    page: bool = Field(True, description="Whether the HTTP port serves the live page.")
    report_interval_ms: int = Field(250, ge=100, le=1000)
    validity_ms: int = Field(5000, ge=1000, le=600_000)
    grace_ms: int = Field(5000, ge=0, le=600_000)
    drain_limit_s: float = Field(2.0, ge=0, description="How long SIGTERM waits for streams.")

    @field_validator("policy")
    @classmethod
    def _known_policy(cls, value: str) -> str:
        try:
            parse(value, installed_policies())
        except UnknownPolicyError as error:
            raise ValueError(str(error)) from error
        return value.strip()

    @field_validator("redis_url")
    @classmethod
    def _redis_url(cls, value: SecretStr) -> SecretStr:
        try:
            check_url(value.get_secret_value())
        except ValueError as error:
            raise ValueError(
                "must look like redis://host:6379/0, rediss://…, unix://… or "
                "redis+sentinel://host:26379,host:26379/service"
            ) from error
        return value

    @model_validator(mode="after")
    def _possible(self) -> PlannerSettings:
        if self.decision_log == "store" and self.store != "redis":
            raise ValueError(
                "OUTRIDER_PLANNER_DECISION_LOG: store needs OUTRIDER_PLANNER_STORE=redis"
            )
        try:
            self.planner_config().default_settings()
        except SettingsError as error:
            named = f"OUTRIDER_PLANNER_OBJECTIVE: {error} (OUTRIDER_PLANNER_LATENCY_BOUND_S)"
            raise ValueError(named) from error
        return self

    @property
    def logs_to_store(self) -> bool:
        """Whether decisions go to the store's stream."""
        return self.store == "redis" and self.decision_log in ("auto", "store")

    @property
    def log_limits(self) -> LogLimits:
        """How much of the store's stream is kept."""
        return LogLimits(self.decision_log_entries, self.decision_log_mib << 20)

    @property
    def log_file(self) -> Path | None:
        """The file that decisions go to, if any."""
        return None if self.decision_log in ("auto", "off", "store") else Path(self.decision_log)

    def planner_config(self) -> PlannerConfig:
        """The core's part of these settings."""
        return PlannerConfig(
            policy=parse(self.policy, installed_policies()),
            objective=self.objective,
            latency_bound_s=self.latency_bound_s,
            parse=lambda name: parse(name, installed_policies()),
            report_interval_ms=self.report_interval_ms,
            validity_ms=self.validity_ms,
            grace_ms=self.grace_ms,
        )
