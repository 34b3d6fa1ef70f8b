"""Settings: defaults, bounds, and servers that must not start."""

import pytest
from pydantic import ValidationError

from outrider_planner.assembly import start
from outrider_planner.core.policies.static import StaticPolicy
from outrider_planner.settings import PlannerSettings
from outrider_runtime.settings import ConfigurationError


def test_defaults_are_those_documented(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OUTRIDER_TOKEN", raising=False)
    settings = PlannerSettings()
    assert (settings.grpc_host, settings.grpc_port) == ("127.0.0.1", 7070)
    assert (settings.http_host, settings.http_port) == ("127.0.0.1", 7071)
    assert (settings.store, settings.policy) == ("memory", "two_stage")
    config = settings.planner_config()
    assert (config.report_interval_ms, config.validity_ms, config.grace_ms) == (250, 5000, 5000)


def test_the_environment_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OUTRIDER_PLANNER_POLICY", "static:4")
    monkeypatch.setenv("OUTRIDER_PLANNER_REDIS_URL", "redis://:secret@example.invalid:1/0")
    settings = PlannerSettings()
    assert settings.planner_config().policy == StaticPolicy(4)
    assert "secret" not in settings.masked()


@pytest.mark.parametrize(
    "wrong",
    [
        {"policy": "fastest"},
        {"report_interval_ms": 50},
        {"report_interval_ms": 5000},
        {"store": "file"},
        {"grpc_port": 70_000},
        {"objective": "latency"},
    ],
)
def test_what_cannot_work_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        PlannerSettings(**wrong)  # type: ignore[arg-type]


def test_unknown_policies_are_answered_with_those_known() -> None:
    with pytest.raises(ValidationError, match="two_stage, static:K, off"):
        PlannerSettings(policy="fastest")


@pytest.mark.parametrize("side", ["grpc_host", "http_host"])
async def test_beyond_loopback_without_a_token_nothing_starts(
    side: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OUTRIDER_TOKEN", raising=False)
    settings = PlannerSettings(**{side: "0.0.0.0", "grpc_port": 0, "http_port": 0})  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="OUTRIDER_TOKEN"):
        await start(settings)
