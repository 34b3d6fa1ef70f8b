"""Settings: defaults, bounds, and servers that must not start."""

import asyncio
import sys
from pathlib import Path

import pytest
from pydantic import ValidationError

import outrider_planner.__main__ as entry
from outrider_planner.assembly import PlannerProcess, log_opener, start
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


@pytest.mark.parametrize("url", ["nonsense", "http://:hunter2@example.invalid", "redis://h:x"])
def test_redis_urls_that_cannot_work_are_refused_without_their_secrets(url: str) -> None:
    with pytest.raises(ValidationError, match="redis_url") as refused:
        PlannerSettings(redis_url=url)
    assert "redis://host:6379/0" in str(refused.value)
    assert "hunter2" not in str(refused.value)


def test_policies_of_installed_packages_are_found_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A real distribution on the path, imported only when its policy is asked for."""
    about = tmp_path / "outside-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: outside\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[outrider.policies]\ncautious = outside_policy:make\n")
    (tmp_path / "outside_policy.py").write_text(
        "from outrider_planner.core.policies.static import StaticPolicy\n"
        "def make(argument):\n"
        "    return StaticPolicy(int(argument))\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    PlannerSettings(policy="off").planner_config()
    assert "outside_policy" not in sys.modules
    assert PlannerSettings(policy="cautious:1").planner_config().policy == StaticPolicy(1)
    with pytest.raises(ValidationError, match="off, cautious"):
        PlannerSettings(policy="fastest")
    sys.modules.pop("outside_policy")


async def test_only_a_failed_start_is_a_matter_of_settings(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An OSError while starting is told in one line; a later one is a fault and is raised."""
    settings = PlannerSettings(grpc_port=0, http_port=0)

    async def taken(_settings: PlannerSettings) -> PlannerProcess:
        raise OSError("the port is taken")

    monkeypatch.setattr(entry, "start", taken)
    assert await entry._serve(settings) == 2
    assert "the port is taken" in capsys.readouterr().err

    class Failing(PlannerProcess):
        async def stop(self) -> None:
            await super().stop()
            raise OSError("late")

    async def starting(given: PlannerSettings) -> PlannerProcess:
        made = await start(given)
        return Failing(made.service, made.grpc, made.http, made.drain_limit_s)

    stop = asyncio.Event()
    stop.set()
    monkeypatch.setattr(entry, "start", starting)
    monkeypatch.setattr(entry, "stop_event", lambda: stop)
    with pytest.raises(OSError, match="late"):
        await entry._serve(settings)


def test_unknown_policies_are_answered_with_those_known() -> None:
    with pytest.raises(ValidationError, match=r"known are two_stage, .*static:K, off"):
        PlannerSettings(policy="fastest")


@pytest.mark.parametrize("side", ["grpc_host", "http_host"])
async def test_beyond_loopback_without_a_token_nothing_starts(
    side: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OUTRIDER_TOKEN", raising=False)
    settings = PlannerSettings(**{side: "0.0.0.0", "grpc_port": 0, "http_port": 0})  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="OUTRIDER_TOKEN"):
        await start(settings)


def test_the_decision_log_goes_where_the_settings_say() -> None:
    assert log_opener(PlannerSettings()) is None
    assert log_opener(PlannerSettings(store="redis", decision_log="off")) is None
    in_file, in_store = PlannerSettings(decision_log="a.jsonl"), PlannerSettings(store="redis")
    assert (in_file.log_file, in_file.logs_to_store) == (Path("a.jsonl"), False)
    assert (in_store.log_file, in_store.logs_to_store) == (None, True)
    with pytest.raises(ValidationError, match="store needs OUTRIDER_PLANNER_STORE=redis"):
        PlannerSettings(decision_log="store")


def test_names_come_as_a_list(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OUTRIDER_PLANNER_HTTP_NAMES", '["planner", "planner.example"]')
    assert PlannerSettings().http_names == {"planner", "planner.example"}
