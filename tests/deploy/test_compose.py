"""The compose stack, read as text: what each service may do, see and reach."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.settings_names import OF_LIBRARIES, variables

ROOT = Path(__file__).resolve().parents[2]
OVERLAYS = sorted((ROOT / "deploy/compose").glob("*.yml"))
ENVIRONMENT = (ROOT / ".env.example").read_text()
_VARIABLE = re.compile(r"\$\{([A-Z_]+)(?::([-?])([^}]*))?\}")
# Who runs as the image says, and not as root there.
IMAGE_CHOOSES_USER = {"planner", "worker-1", "worker-2", "router", "grafana"}


def load(path: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load(path.read_text())
    return loaded


STACK = load(ROOT / "docker-compose.yml")
SERVICES: Mapping[str, Mapping[str, Any]] = STACK["services"]


@pytest.mark.parametrize("name", SERVICES)
def test_every_service_is_confined(name: str) -> None:
    service = SERVICES[name]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service["mem_limit"]
    assert service["pids_limit"]
    assert "user" in service or name in IMAGE_CHOOSES_USER
    assert "privileged" not in service
    assert "max-size" in service["logging"]["options"]


def test_only_router_and_grafana_are_published_and_only_on_loopback() -> None:
    published = {name: service["ports"] for name, service in SERVICES.items() if "ports" in service}
    assert published.keys() == {"router", "grafana"}
    assert all(port.startswith("127.0.0.1:") for ports in published.values() for port in ports)
    for path in OVERLAYS:
        assert not [name for name, each in load(path)["services"].items() if "ports" in each]


def test_a_network_per_trust_zone() -> None:
    members = {
        network: {name for name, each in SERVICES.items() if network in each.get("networks", ())}
        for network in STACK["networks"]
    }
    workers = {"worker-1", "worker-2"}
    assert members == {
        "edge": {"router", "load"},
        "serving": {"router", "prometheus", *workers},
        "planning": {"planner", "prometheus", *workers},
        "store": {"planner", "valkey"},
        "dashboards": {"grafana", "prometheus"},
        "lookout": {"grafana"},
    }
    open_ones = {name for name, each in STACK["networks"].items() if not each.get("internal")}
    assert open_ones == {"edge", "lookout"}
    assert SERVICES["secrets"]["network_mode"] == "none"


def test_secrets_are_mounted_where_they_are_needed() -> None:
    seen = {
        zone: {
            name
            for name, each in SERVICES.items()
            if any(str(v).startswith(f"secrets-{zone}:") for v in each.get("volumes", ()))
        }
        - {"secrets"}
        for zone in ("services", "clients", "store", "grafana")
    }
    assert seen == {
        "services": {"router", "planner", "worker-1", "worker-2"},
        "clients": {"router", "load"},
        "store": {"planner", "valkey"},
        "grafana": {"grafana"},
    }
    for name in seen["services"]:
        folders = SERVICES[name]["environment"]["OUTRIDER_SECRETS_DIR"].split(":")
        mounted = {str(v).split(":")[1] for v in SERVICES[name]["volumes"]}
        assert set(folders) <= mounted


@pytest.mark.parametrize("path", [ROOT / "docker-compose.yml", *OVERLAYS], ids=lambda p: p.stem)
def test_settings_exist(path: Path) -> None:
    for name, service in load(path)["services"].items():
        kind = name.partition("-")[0]
        if kind in ("router", "planner", "worker"):
            given = set(service.get("environment", {}))
            assert given - variables(kind) - OF_LIBRARIES == set()


def test_start_order_is_by_health() -> None:
    for name, service in SERVICES.items():
        for other, wait in service.get("depends_on", {}).items():
            finishes = other == "secrets"
            condition = "service_completed_successfully" if finishes else "service_healthy"
            assert wait["condition"] == condition, name
            assert finishes or has_health_check(other), other


def has_health_check(name: str) -> bool:
    """In the service, or in the Dockerfile it is built from."""
    service = SERVICES[name]
    if "healthcheck" in service:
        return not service["healthcheck"].get("disable")
    return "HEALTHCHECK" in (ROOT / service["build"]["dockerfile"]).read_text()


def test_addresses_are_services_and_ports_are_theirs() -> None:
    router = SERVICES["router"]["environment"]["OUTRIDER_ROUTER_WORKERS"].split(",")
    assert router == ["worker-1:7080", "worker-2:7080"]
    assert SERVICES["worker-1"]["environment"]["OUTRIDER_WORKER_PLANNER"] == "planner:7070"
    prometheus = load(ROOT / "deploy/prometheus/prometheus.yml")
    named = {
        target.partition(":")[0]
        for job in prometheus["scrape_configs"]
        for config in job.get("static_configs", ())
        for target in config["targets"]
    }
    assert named <= SERVICES.keys()


@pytest.mark.parametrize("workers", ["worker-1:7080", "worker-1:7080,worker-2:7080"])
def test_prometheus_looks_for_the_workers_that_the_router_has(workers: str) -> None:
    """In the stack, which has two, and on GPUs, where a variable names both."""
    mount = load(ROOT / "deploy/compose/gpu.yml")["services"]["prometheus"]["volumes"][0]
    given = "-2" if "," in workers else ""
    source = re.sub(r"\$\{OUTRIDER_GPU_WORKERS:\+(-2)\}", given, mount).partition(":")[0]
    (group,) = yaml.safe_load((ROOT / source).read_text())
    assert [t.partition(":")[0] for t in group["targets"]] == [
        w.partition(":")[0] for w in workers.split(",")
    ]
    if given:
        mounted = SERVICES["prometheus"]["volumes"]
        assert f"{source}:/etc/prometheus/workers.yml:ro" in mounted


@pytest.mark.parametrize("path", [ROOT / "docker-compose.yml", *OVERLAYS], ids=lambda p: p.stem)
def test_mounted_and_built_files_exist(path: Path) -> None:
    for service in load(path)["services"].values():
        sources = [str(v).partition(":")[0] for v in service.get("volumes", ())]
        missing = [s for s in sources if re.match(r"\./[^$]*$", s) and not (ROOT / s).exists()]
        assert missing == []
        build = service.get("build", {})
        assert (ROOT / build.get("dockerfile", "docker-compose.yml")).is_file()


def test_every_variable_is_in_the_example_with_its_default() -> None:
    shown = dict(re.findall(r"^#([A-Z_]+)=(.*)$", ENVIRONMENT, re.MULTILINE))
    used = _VARIABLE.findall((ROOT / "docker-compose.yml").read_text())
    defaults = {name: default for name, _, default in used}
    assert {name: shown.get(name) for name in defaults} == defaults
    in_overlays = {match[0] for path in OVERLAYS for match in _VARIABLE.findall(path.read_text())}
    assert set(shown) == set(defaults) | in_overlays
    assert not re.search(r"^[A-Z_]+=", ENVIRONMENT, re.MULTILINE)


def test_the_store_answers_beyond_loopback_and_asks_who_it_is() -> None:
    """Without its protected mode, which lets nobody in where the default user has no password."""
    command = [str(part) for part in SERVICES["valkey"]["command"]]
    options = dict(zip(command[1::2], command[2::2], strict=True))
    assert options["--protected-mode"] == "no"
    assert options["--aclfile"] == "/run/secrets/store/users.acl"


def test_streams_may_end_before_a_container_is_killed() -> None:
    for name, setting in (
        ("router", "OUTRIDER_ROUTER_DRAIN_LIMIT_S"),
        ("worker-1", "OUTRIDER_WORKER_DRAIN_LIMIT_S"),
    ):
        service = SERVICES[name]
        drain_s = float(service["environment"][setting])
        assert float(service["stop_grace_period"].removesuffix("s")) >= drain_s + 5
