"""The Kubernetes objects, read as text: names, ports, probes, limits, and who may reach whom."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest
import yaml

from deploy.generate.exported import exported_series
from outrider_planner.http import create_app as create_planner
from outrider_planner.settings import PlannerSettings
from outrider_router.app import build_state
from outrider_router.app import create_app as create_router
from outrider_router.settings import RouterSettings
from tests.support.promql import names
from tests.support.settings_names import OF_LIBRARIES, variables

KUBERNETES = Path(__file__).resolve().parents[2] / "deploy/kubernetes"
COMPONENT = "app.kubernetes.io/component"
SERVICES = ("router", "planner", "worker")
WORKLOADS = (*SERVICES, "valkey")
PRE_STOP_S = 5

Object = Mapping[str, Any]


def objects(folder: str) -> Iterator[Object]:
    for path in sorted((KUBERNETES / folder).glob("*.yaml")):
        if path.name not in ("kustomization.yaml", "adapter-rules.yaml"):
            yield from yaml.safe_load_all(path.read_text())


BASE = list(objects("base"))
POLICIES = {each["metadata"]["name"]: each for each in objects("components/networkpolicy")}


def one(kind: str, name: str) -> Object:
    (found,) = (x for x in BASE if x["kind"] == kind and x["metadata"]["name"] == name)
    return found


def workload(name: str) -> Object:
    return one("StatefulSet" if name == "worker" else "Deployment", name)


def pod(name: str) -> Object:
    spec: Object = workload(name)["spec"]["template"]["spec"]
    return spec


def container(name: str) -> Object:
    (only,) = pod(name)["containers"]
    return only  # type: ignore[no-any-return]


def config(name: str) -> dict[str, str]:
    lines = (KUBERNETES / f"base/config/{name}.env").read_text().splitlines()
    pairs = [line.partition("=") for line in lines if line and not line.startswith("#")]
    return {key: value for key, _, value in pairs}


def kustomization(folder: str) -> Object:
    loaded: Object = yaml.safe_load((KUBERNETES / folder / "kustomization.yaml").read_text())
    return loaded


@pytest.mark.parametrize("name", WORKLOADS)
def test_selectors_find_their_pods(name: str) -> None:
    labels = {COMPONENT: name}
    assert workload(name)["spec"]["selector"]["matchLabels"] == labels
    assert workload(name)["spec"]["template"]["metadata"]["labels"] == labels
    assert one("Service", name)["spec"]["selector"] == labels
    if name != "valkey":
        assert one("PodDisruptionBudget", name)["spec"]["selector"]["matchLabels"] == labels
        (spread,) = pod(name)["topologySpreadConstraints"]
        assert spread["labelSelector"]["matchLabels"][COMPONENT] == name


@pytest.mark.parametrize("name", WORKLOADS)
def test_ports_go_by_name(name: str) -> None:
    named = {port["name"]: port["containerPort"] for port in container(name)["ports"]}
    for port in one("Service", name)["spec"]["ports"]:
        assert port["targetPort"] in named
    for probe in probes(name):
        if "httpGet" in probe:
            assert probe["httpGet"]["port"] in named
        elif "grpc" in probe:
            assert probe["grpc"]["port"] == named["grpc"]


def probes(name: str) -> list[Object]:
    return [container(name)[f"{kind}Probe"] for kind in ("startup", "liveness", "readiness")]


def test_probes_ask_what_the_services_answer() -> None:
    paths = {
        name: {p["httpGet"]["path"] for p in probes(name) if "httpGet" in p} for name in SERVICES
    }
    assert paths == {
        "router": {"/health", "/ready"},
        "planner": {"/health"},
        "worker": {"/metrics"},
    }
    ready = container("router")["readinessProbe"]
    assert ready["httpGet"]["path"] == "/ready"
    assert container("worker")["startupProbe"]["failureThreshold"] * 5 >= 600


def test_probed_paths_are_routes() -> None:
    router = create_router(build_state(RouterSettings(workers=("worker:7080",))))
    planner = create_planner(MagicMock(), page=False)
    for name, app in (("router", router), ("planner", planner)):
        routes = {getattr(route, "path", None) for route in app.routes}
        asked = {probe["httpGet"]["path"] for probe in probes(name) if "httpGet" in probe}
        assert asked
        assert asked <= routes


@pytest.mark.parametrize("name", WORKLOADS)
def test_pods_meet_the_restricted_standard(name: str) -> None:
    of_pod, of_container = pod(name)["securityContext"], container(name)["securityContext"]
    assert of_pod["runAsNonRoot"] is True
    assert of_pod["seccompProfile"] == {"type": "RuntimeDefault"}
    assert of_container["allowPrivilegeEscalation"] is False
    assert of_container["readOnlyRootFilesystem"] is True
    assert of_container["capabilities"] == {"drop": ["ALL"]}
    assert pod(name)["automountServiceAccountToken"] is False
    assert one("ServiceAccount", pod(name)["serviceAccountName"])
    limits, requests = (container(name)["resources"][key] for key in ("limits", "requests"))
    assert limits["memory"] == requests["memory"]
    assert "cpu" in requests
    assert "cpu" not in limits


@pytest.mark.parametrize("name", WORKLOADS)
def test_mounts_have_volumes(name: str) -> None:
    claims = workload(name)["spec"].get("volumeClaimTemplates", ())
    volumes = {v["name"] for v in pod(name)["volumes"]} | {c["metadata"]["name"] for c in claims}
    assert {mount["name"] for mount in container(name)["volumeMounts"]} == volumes


@pytest.mark.parametrize("name", SERVICES)
def test_settings_exist_and_are_accepted(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    given = config(name)
    assert given.keys() - variables(name) == set()
    mounted = {mount["mountPath"] for mount in container(name)["volumeMounts"]}
    assert set(given.pop("OUTRIDER_SECRETS_DIR").split(":")) <= mounted
    for key, value in given.items():
        monkeypatch.setenv(key, value)
    if name == "router":
        assert RouterSettings().port == container(name)["ports"][0]["containerPort"]
    if name == "planner":
        assert PlannerSettings().http_names == {"planner"}


@pytest.mark.parametrize("folder", ["overlays/cpu", "overlays/gpu"])
def test_overlays_set_what_exists(folder: str) -> None:
    merged = list(kustomization(folder).get("configMapGenerator", ()))
    for component in kustomization(folder)["components"]:
        merged += kustomization(f"{folder}/{component}").get("configMapGenerator", ())
    assert merged
    for each in merged:
        keys = {literal.partition("=")[0] for literal in each["literals"]}
        assert keys - variables(each["name"]) - OF_LIBRARIES == set()


def test_no_request_outlives_those_who_wait_for_it() -> None:
    request_s = float(config("router")["OUTRIDER_ROUTER_REQUEST_LIMIT_S"])
    for name, setting in (
        ("router", "OUTRIDER_ROUTER_DRAIN_LIMIT_S"),
        ("worker", "OUTRIDER_WORKER_DRAIN_LIMIT_S"),
    ):
        drain_s = float(config(name)[setting])
        assert request_s <= drain_s
        assert pod(name)["terminationGracePeriodSeconds"] >= PRE_STOP_S + drain_s + 10
    for name in SERVICES:
        waits = container(name)["lifecycle"]["preStop"]["exec"]["command"]
        assert waits == ["python", "-c", f"import time; time.sleep({PRE_STOP_S})"]


def test_routers_and_workers_find_others_by_headless_names() -> None:
    """One name for all workers, and one for all planners, however many there are."""
    for setting, scheme in (
        (config("router")["OUTRIDER_ROUTER_WORKERS"], "dns:"),
        (config("worker")["OUTRIDER_WORKER_PLANNER"], ""),
    ):
        assert setting.startswith(scheme)
        name, _, port = setting.removeprefix(scheme).partition(":")
        service = one("Service", name)["spec"]
        assert service["clusterIP"] == "None"
        assert int(port) in {each["port"] for each in service["ports"]}


def test_the_store_is_started_as_in_compose() -> None:
    compose = yaml.safe_load((KUBERNETES.parents[1] / "docker-compose.yml").read_text())
    assert container("valkey")["command"] == compose["services"]["valkey"]["command"]


@pytest.mark.parametrize("folder", ["components/autoscaling", "components/autoscaling-keda"])
def test_who_is_scaled_has_no_fixed_number(folder: str) -> None:
    scaled = {x["spec"]["scaleTargetRef"]["name"] for x in objects(folder)}
    freed = {each["target"]["name"] for each in kustomization(folder)["patches"]}
    assert "worker" in scaled
    assert freed == scaled


def test_autoscalers_ask_for_what_is_exported() -> None:
    """Waiting requests and head-room, by KEDA as by Kubernetes' own; the adapter knows both."""
    known = exported_series().keys()
    scaled = {x["metadata"]["name"]: x["spec"] for x in objects("components/autoscaling-keda")}
    triggers = [trigger["metadata"] for trigger in scaled["worker"]["triggers"]]
    queries = [trigger["query"] for trigger in triggers]
    asked = frozenset().union(*(names(query).metrics for query in queries))
    assert asked == {"outrider_worker_requests_waiting", "outrider_planner_headroom_ratio"}
    assert asked <= known
    namespace = kustomization("base")["namespace"]
    for trigger in triggers:
        assert f'{{namespace="{namespace}"}}' in trigger["query"]
        assert trigger["ignoreNullValues"] == "false", "no data would be no load"
    adapter = yaml.safe_load((KUBERNETES / "components/autoscaling/adapter-rules.yaml").read_text())
    series = {
        each["seriesQuery"].partition("{")[0]: each.get("name", {}).get("as")
        for each in (*adapter["rules"], *adapter["externalRules"])
    }
    assert series.keys() == asked
    worker = next(x for x in objects("components/autoscaling") if x["metadata"]["name"] == "worker")
    pods, external = worker["spec"]["metrics"]
    assert pods["pods"]["metric"]["name"] in series
    assert external["external"]["metric"]["name"] in series.values()


def test_both_kinds_of_autoscaling_scale_alike() -> None:
    own = {x["metadata"]["name"]: x["spec"] for x in objects("components/autoscaling")}
    keda = {x["metadata"]["name"]: x["spec"] for x in objects("components/autoscaling-keda")}
    assert own.keys() == keda.keys() == {"worker", "router"}
    for name, spec in own.items():
        other = keda[name]
        limits = (other["minReplicaCount"], other["maxReplicaCount"])
        assert (spec["minReplicas"], spec["maxReplicas"]) == limits
        assert spec["behavior"] == other["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]


def edges(direction: str, peer: str) -> set[tuple[str, str, int]]:
    """(from, to, port) of the policies between our pods, as seen from one side."""
    found = set()
    for policy in POLICIES.values():
        own = policy["spec"]["podSelector"].get("matchLabels", {}).get(COMPONENT)
        for rule in policy["spec"].get(direction, ()):
            for side in rule.get(peer, ()):
                other = side.get("podSelector", {}).get("matchLabels", {}).get(COMPONENT)
                if other:
                    ends = (own, other) if direction == "egress" else (other, own)
                    found |= {(*ends, port["port"]) for port in rule["ports"]}
    return found


def test_policies_allow_every_edge_and_no_more() -> None:
    """From both sides: who is called, by the services' own settings, and nobody else."""
    wanted = {
        ("router", "worker", int(config("router")["OUTRIDER_ROUTER_WORKERS"].rpartition(":")[2])),
        ("worker", "planner", int(config("worker")["OUTRIDER_WORKER_PLANNER"].rpartition(":")[2])),
        ("planner", "valkey", container("valkey")["ports"][0]["containerPort"]),
    }
    assert edges("egress", "to") == wanted
    assert edges("ingress", "from") == wanted
    assert POLICIES["nothing-unless-allowed"]["spec"]["podSelector"] == {}


def test_the_way_to_the_hub_cuts_no_other_way_of_a_worker() -> None:
    """Where it is the only policy, what it does not allow is refused."""
    (hub,) = (x for x in objects("components/model-hub") if x["kind"] == "NetworkPolicy")
    needed = [*POLICIES["names"]["spec"]["egress"], *POLICIES["worker"]["spec"]["egress"]]
    assert [rule for rule in needed if rule not in hub["spec"]["egress"]] == []


def test_scrapes_are_let_in_where_monitors_look() -> None:
    for monitor in objects("components/monitoring"):
        name = monitor["spec"]["selector"]["matchLabels"][COMPONENT]
        (endpoint,) = monitor["spec"]["endpoints"]
        (service_port,) = (
            port
            for port in one("Service", name)["spec"]["ports"]
            if port["name"] == endpoint["port"]
        )
        named = {port["name"]: port["containerPort"] for port in container(name)["ports"]}
        allowed = {
            port["port"]
            for rule in POLICIES[name]["spec"]["ingress"]
            if all("namespaceSelector" in side for side in rule.get("from", ()))
            for port in rule["ports"]
        }
        assert named[service_port["targetPort"]] in allowed
