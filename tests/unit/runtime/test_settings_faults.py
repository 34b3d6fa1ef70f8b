"""Every service says in one line what is wrong with a setting, and what is allowed."""

import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from outrider_planner.settings import PlannerSettings
from outrider_router.settings import RouterSettings
from outrider_runtime.settings import ConfigurationError, ServiceSettings
from outrider_runtime.settings_faults import (
    read_settings,
    refused,
    unknown_variables,
    variable_of,
)
from outrider_worker.settings import WorkerSettings
from tests.support.settings_names import SETTINGS, variables

ROOT = Path(__file__).resolve().parents[3]
CASES = [
    (WorkerSettings, "OUTRIDER_WORKER_VERIFIER", "foo", "must be 'sampler_match', 'rejection' or"),
    (WorkerSettings, "OUTRIDER_WORKER_DRAFTER", "ngram,ngram", "ngram is named twice"),
    (WorkerSettings, "OUTRIDER_WORKER_DRAFTER", "", "'none' stands for no drafter"),
    (WorkerSettings, "OUTRIDER_WORKER_DRAFTER", "none,ngram", "'none' stands alone"),
    (WorkerSettings, "OUTRIDER_WORKER_DEVICE", "tpu", "must be 'auto', 'cpu', 'cuda' or 'cuda:N'"),
    (WorkerSettings, "OUTRIDER_WORKER_PORT", "x", "must be a valid integer, not 'x'"),
    (WorkerSettings, "OUTRIDER_WORKER_GUARD", "perhaps", "must be a valid boolean, not 'perhaps'"),
    (WorkerSettings, "OUTRIDER_WORKER_PLANNER", "foo", "'foo' is not host:port"),
    (WorkerSettings, "OUTRIDER_WORKER_MAX_ROWS", "8", "OUTRIDER_WORKER_MAX_RUNNING (32) at least"),
    (PlannerSettings, "OUTRIDER_PLANNER_POLICY", "foo", "known are two_stage"),
    (PlannerSettings, "OUTRIDER_PLANNER_STORE", "foo", "must be 'memory' or 'redis', not 'foo'"),
    (PlannerSettings, "OUTRIDER_PLANNER_GRPC_PORT", "70000", "must be less than or equal to 65535"),
    (PlannerSettings, "OUTRIDER_PLANNER_HTTP_NAMES", "[a", "begins like a JSON list"),
    (PlannerSettings, "OUTRIDER_PLANNER_DECISION_LOG", "store", "needs OUTRIDER_PLANNER_STORE"),
    (PlannerSettings, "OUTRIDER_PLANNER_OBJECTIVE", "latency", "needs latency_bound_s"),
    (PlannerSettings, "OUTRIDER_PLANNER_REDIS_URL", "http://:hush@h", "must look like redis://"),
    (RouterSettings, "OUTRIDER_ROUTER_WORKERS", "here:7080,foo", "'foo' is not host:port"),
    (RouterSettings, "OUTRIDER_ROUTER_WORKERS", "h:70000", "'h:70000' is not host:port"),
    (RouterSettings, "OUTRIDER_ROUTER_WORKERS", "[::1],h:1", "'[::1]' is not host:port"),
    (RouterSettings, "OUTRIDER_ROUTER_API_KEYS", '["hush-1", "hush-2\'', "begins like a JSON"),
    (RouterSettings, "OUTRIDER_ROUTER_API_KEYS", "[hush-1:2, hush-2]", "begins like a JSON list"),
    (RouterSettings, "OUTRIDER_ROUTER_API_KEYS", '[["hush"]]', "must be"),
    (RouterSettings, "OUTRIDER_ROUTER_SPECULATION_REPORT", "all", "must be 'none', 'summary',"),
    (RouterSettings, "OUTRIDER_TRACE_ENDPOINT", "ftp://x", "must be http:// or https:// with"),
    (WorkerSettings, "OUTRIDER_TRACE_ENDPOINT", "127.0.0.1:4317", "must be http:// or https://"),
    (PlannerSettings, "OUTRIDER_TRACE_ENDPOINT", "http://", "with a host and a port"),
    (RouterSettings, "OUTRIDER_LOG_LEVEL", "loud", "must be 'debug', 'info', 'warning' or 'error'"),
]


@pytest.mark.parametrize(("kind", "variable", "value", "words"), CASES)
def test_a_wrong_setting_is_one_line_that_says_what_is_allowed(
    kind: type[ServiceSettings],
    variable: str,
    value: str,
    words: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(ConfigurationError) as told:
        read_settings(kind)
    (line,) = str(told.value).splitlines()
    assert line.startswith(f"{variable}: ")
    assert words in line
    assert "pydantic" not in line
    assert "hush" not in line


def test_all_that_is_wrong_is_told_at_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OUTRIDER_WORKER_PORT", "x")
    monkeypatch.setenv("OUTRIDER_WORKER_CONTEXT", "1")
    with pytest.raises(ConfigurationError) as told:
        read_settings(WorkerSettings)
    assert refused("worker", told.value) == 2
    assert capsys.readouterr().err.splitlines() == [
        "outrider worker: OUTRIDER_WORKER_PORT: must be a valid integer, not 'x'",
        "outrider worker: OUTRIDER_WORKER_CONTEXT: must be greater than or equal to 16, not '1'",
    ]


@pytest.mark.parametrize("service", ["worker", "planner", "router"])
def test_the_service_itself_ends_with_that_line_and_exit_code_2(
    service: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OUTRIDER_LOG_FORMAT", "poetry")
    assert import_module(f"outrider_{service}.__main__").main() == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert (
        line
        == f"outrider {service}: OUTRIDER_LOG_FORMAT: must be 'json' or 'console', not 'poetry'"
    )


def test_lists_are_separated_by_commas_or_are_json(monkeypatch: pytest.MonkeyPatch) -> None:
    for text in ("planner, planner.svc", '["planner", "planner.svc"]'):
        monkeypatch.setenv("OUTRIDER_PLANNER_HTTP_NAMES", text)
        monkeypatch.setenv("OUTRIDER_ROUTER_HTTP_NAMES", text)
        assert read_settings(PlannerSettings).http_names == {"planner", "planner.svc"}
        assert read_settings(RouterSettings).http_names == ("planner", "planner.svc")


@pytest.mark.parametrize(
    ("text", "workers"),
    [
        ("[::1]:7080", ("[::1]:7080",)),
        (" [2001:db8::1]:7080, [fe80::2%eth0]:7081", ("[2001:db8::1]:7080", "[fe80::2%eth0]:7081")),
        ('["[::1]:7080", "h:1"]', ("[::1]:7080", "h:1")),
    ],
)
def test_addresses_in_brackets_are_no_json_list(
    text: str, workers: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OUTRIDER_ROUTER_WORKERS", text)
    assert read_settings(RouterSettings).workers == workers


def test_variables_are_named_as_they_are_set() -> None:
    assert variable_of(WorkerSettings, "max_draft") == "OUTRIDER_WORKER_MAX_DRAFT"
    assert variable_of(RouterSettings, "log_level") == "OUTRIDER_LOG_LEVEL"


def test_a_worker_open_to_others_is_refused_before_anything_is_loaded() -> None:
    asked = {"OUTRIDER_WORKER_HOST": "0.0.0.0", "OUTRIDER_WORKER_MODEL": "/no/such/model"}
    done = subprocess.run(
        [sys.executable, "-m", "outrider_worker"], env=asked, capture_output=True, text=True
    )
    assert done.returncode == 2
    assert "OUTRIDER_TOKEN is not set" in done.stderr
    assert done.stdout == ""


def test_variables_that_set_nothing_are_told_with_the_name_that_was_meant() -> None:
    given = [
        "OUTRIDER_ROUTER_MAX_INFLIGHT",
        "OUTRIDER_ROUTER_MAX_IN_FLIGHT",
        "outrider_router_port",
        "OUTRIDER_ROUTER_XYZ",
        "OUTRIDER_WORKER_MAX_ROW",
        "OUTRIDER_TOKEN",
        "PATH",
    ]
    assert unknown_variables(RouterSettings, given) == {
        "OUTRIDER_ROUTER_MAX_INFLIGHT": "OUTRIDER_ROUTER_MAX_IN_FLIGHT",
        "OUTRIDER_ROUTER_XYZ": None,
    }
    nearest = {"OUTRIDER_WORKER_MAX_ROW": "OUTRIDER_WORKER_MAX_ROWS"}
    assert unknown_variables(WorkerSettings, given) == nearest


@pytest.mark.parametrize("kind", SETTINGS.values())
def test_the_name_that_was_meant_is_one_that_exists(kind: type[ServiceSettings]) -> None:
    prefix = kind.model_config["env_prefix"]
    meant = {
        f"{prefix}LOG_LEVEL": "OUTRIDER_LOG_LEVEL",
        f"{prefix}TRACE_ENDPOINT": "OUTRIDER_TRACE_ENDPOINT",
        f"{prefix}TOKEN": "OUTRIDER_TOKEN",
        f"{prefix}SECRETS_DIR": "OUTRIDER_SECRETS_DIR",
        "OUTRIDER_LOGLEVEL": "OUTRIDER_LOG_LEVEL",
        "outrider_tokens": "OUTRIDER_TOKEN",
        "OUTRIDER_SECRET_DIR": "OUTRIDER_SECRETS_DIR",
    }
    assert unknown_variables(kind, meant) == meant


@pytest.mark.parametrize("service", SETTINGS)
def test_what_others_read_is_not_told(service: str) -> None:
    """Other services, compose and the tools of this repository have variables of their own."""
    files = [ROOT / ".env.example", *(ROOT / "deploy").rglob("*.yml"), ROOT / "Makefile"]
    text = "".join(file.read_text() for file in [*files, *(ROOT / "cli").rglob("*.py")])
    found = set(re.findall(r"OUTRIDER_[A-Z_]+[A-Z]", text)) | variables("worker")
    assert len(found) > 60
    assert unknown_variables(SETTINGS[service], found) == {}


@pytest.mark.parametrize(
    ("kind", "variable"),
    [(WorkerSettings, "OUTRIDER_WORKER_PORT"), (PlannerSettings, "OUTRIDER_PLANNER_HTTP_PORT")],
)
def test_no_setting_is_unknown(kind: type[ServiceSettings], variable: str) -> None:
    every = {variable_of(kind, field) for field in kind.model_fields}
    assert variable in every
    assert unknown_variables(kind, every) == {}


def test_short_keys_are_told_by_their_number(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = ["k" * 16, "short", "sha256:" + "0" * 64]
    monkeypatch.setenv("OUTRIDER_ROUTER_API_KEYS", ",".join(keys))
    assert read_settings(RouterSettings).short_api_keys() == [2]
