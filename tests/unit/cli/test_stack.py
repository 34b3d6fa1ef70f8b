"""From flags to processes: settings, ports, and what is refused before anything starts."""

import os
import socket
from pathlib import Path

import pytest

from outrider_cli.errors import CommandError
from outrider_cli.options import StackOptions, default_decision_log, is_hub_id, local_model
from outrider_cli.probes import require_free_ports
from outrider_cli.stack import build_stack


def test_the_token_travels_by_environment_alone() -> None:
    stack = build_stack(StackOptions(workers=2), "demo", "a-secret")
    assert stack.common["OUTRIDER_TOKEN"] == "a-secret"
    assert "a-secret" not in repr(stack)
    assert all("a-secret" not in child.environment.values() for child in stack.children)


def test_workers_take_ports_one_after_the_other_and_the_router_knows_them() -> None:
    stack = build_stack(
        StackOptions(workers=3, worker_port=9000, worker_metrics_port=9100), "m", ""
    )
    assert [worker.environment["OUTRIDER_WORKER_PORT"] for worker in stack.workers] == [
        *("9000", "9001", "9002")
    ]
    assert stack.workers[2].environment["OUTRIDER_WORKER_METRICS_PORT"] == "9102"
    assert stack.router.environment["OUTRIDER_ROUTER_WORKERS"] == (
        "127.0.0.1:9000,127.0.0.1:9001,127.0.0.1:9002"
    )


def test_only_the_router_leaves_loopback() -> None:
    stack = build_stack(StackOptions(host="0.0.0.0"), "m", "t")
    assert stack.router.environment["OUTRIDER_ROUTER_HOST"] == "0.0.0.0"
    assert stack.planner.environment["OUTRIDER_PLANNER_GRPC_HOST"] == "127.0.0.1"
    assert stack.workers[0].environment["OUTRIDER_WORKER_HOST"] == "127.0.0.1"


def test_stops_router_first_and_planner_last() -> None:
    order = build_stack(StackOptions(workers=2), "m", "t").stop_order
    assert [[child.name for child in group] for group in order] == [
        ["router"],
        ["worker-0", "worker-1"],
        ["planner"],
    ]


def test_cores_are_shared_out_to_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    assert StackOptions(workers=3).threads_per_worker == 2
    assert StackOptions(workers=16).threads_per_worker == 1
    assert StackOptions(workers=3, threads=5).threads_per_worker == 5


@pytest.mark.parametrize("policy", ["two_stage", "off", "static:0", "static:12"])
def test_known_policies_pass(policy: str) -> None:
    assert StackOptions(policy=policy).policy == policy


@pytest.mark.parametrize("policy", ["", "static", "static:", "static:x", "static:-1", "on"])
def test_unknown_policies_are_refused(policy: str) -> None:
    with pytest.raises(CommandError, match="unknown policy"):
        StackOptions(policy=policy)


def test_a_taken_port_is_named_with_its_flag() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        number = taken.getsockname()[1]
        stack = build_stack(StackOptions(planner_http_port=number), "m", "t")
        with pytest.raises(CommandError, match=f"port {number} .planner.*--planner-http-port"):
            require_free_ports([stack.planner])


def test_one_port_for_two_is_refused() -> None:
    stack = build_stack(StackOptions(port=40001, planner_port=40001), "m", "t")
    with pytest.raises(CommandError, match="40001 is asked for twice, by planner and router"):
        require_free_ports([stack.planner, stack.router])


def test_local_models(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (tmp_path / "weights.gguf").touch()
    (tmp_path / "weights.bin").touch()
    with pytest.raises(CommandError, match=r"no config\.json"):
        local_model(str(folder))
    (folder / "config.json").touch()
    assert local_model(str(folder)) == folder
    assert local_model(str(tmp_path / "weights.gguf")) == tmp_path / "weights.gguf"
    with pytest.raises(CommandError, match=r"\.gguf"):
        local_model(str(tmp_path / "weights.bin"))
    with pytest.raises(CommandError, match="unknown model"):
        local_model(str(tmp_path / "absent"))


def test_hub_ids_are_no_local_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert is_hub_id("organisation/name-1.0")
    assert not is_hub_id("demo")
    assert not is_hub_id("/abs/olute/path")
    (tmp_path / "organisation" / "name-1.0").mkdir(parents=True)
    assert not is_hub_id("organisation/name-1.0")


def test_decisions_are_logged_among_a_user_s_state(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", "/state")
    options = StackOptions(decision_log=default_decision_log())
    environment = build_stack(options, "model", "token").planner.environment
    assert environment["OUTRIDER_PLANNER_DECISION_LOG"] == "/state/outrider/decisions.jsonl"


@pytest.mark.parametrize("policy", ["two_stage", "lightspec", "dspark", "table:1=4,8=0"])
def test_policies_of_the_planner_can_be_asked_for(policy: str) -> None:
    environment = build_stack(StackOptions(policy=policy), "model", "token").planner.environment
    assert environment["OUTRIDER_PLANNER_POLICY"] == policy
