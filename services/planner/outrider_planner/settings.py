"""The planner's settings, read from ``OUTRIDER_PLANNER_…``.

Knows names, defaults and bounds. Anything that cannot work is refused here, with words.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field, SecretStr, field_validator
from pydantic_settings import SettingsConfigDict

from outrider_planner.core.events import PlannerConfig
from outrider_planner.core.policies import UnknownPolicyError, parse
from outrider_planner.core.types import Objective
from outrider_planner.plugins import installed_policies
from outrider_planner.store.redis_client import check_url
from outrider_runtime.settings import ServiceSettings, settings_config


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
        "two_stage", description="two_stage, static:K, off, or one of an installed package."
    )
    objective: Objective = Objective.THROUGHPUT
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
                "must look like redis://host:6379/0, rediss://… or unix://…"
            ) from error
        return value

    def planner_config(self) -> PlannerConfig:
        """The core's part of these settings."""
        return PlannerConfig(
            policy=parse(self.policy, installed_policies()),
            objective=self.objective,
            report_interval_ms=self.report_interval_ms,
            validity_ms=self.validity_ms,
            grace_ms=self.grace_ms,
        )
