"""The deployment as the platform's own tools judge it; what lacks its tool is skipped."""

import importlib.util
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.deploy import kubernetes_schemas
from tests.deploy.tools import ROOT, lack, run, tool

pytestmark = [pytest.mark.deploy, pytest.mark.timeout(600)]

COMPONENTS = ROOT / "deploy/kubernetes/components"
OLDEST_KUBERNETES = "1.29"
# Objects that extensions define: no schema comes with Kubernetes.
EXTENSIONS = ("monitoring.coreos.com/v1", "keda.sh/v1alpha1")
COMPOSE_FILES = {
    "stack": ("docker-compose.yml",),
    "gpu": ("docker-compose.yml", "deploy/compose/gpu.yml"),
    "offline": ("docker-compose.yml", "deploy/compose/offline.yml"),
}
# Every component at least once; those that exclude each other apart.
COMBINATIONS = {
    "cpu": ("overlays/cpu", ()),
    "gpu": ("overlays/gpu", ()),
    "hub": ("overlays/cpu", ("monitoring", "autoscaling", "external-store", "model-hub")),
    "keda": ("overlays/gpu", ("monitoring", "autoscaling-keda", "tls")),
}


def test_prometheus_accepts_the_configuration(tmp_path: Path) -> None:
    promtool = tool("promtool")
    shutil.copytree(ROOT / "deploy/prometheus/rules", tmp_path / "rules")
    text = (ROOT / "deploy/prometheus/prometheus.yml").read_text()
    (tmp_path / "prometheus.yml").write_text(text.replace("/etc/prometheus/", ""))
    for workers in (ROOT / "deploy/prometheus/workers").iterdir():
        shutil.copy(workers, tmp_path / "workers.yml")
        shown = run(promtool, "check", "config", str(tmp_path / "prometheus.yml"))
        assert "SUCCESS" in shown
        assert "WARNING" not in shown


@pytest.mark.parametrize("name", ["recording", "alerts"])
def test_rules_do_what_they_should(name: str) -> None:
    assert "SUCCESS" in run(
        tool("promtool"), "test", "rules", f"deploy/prometheus/tests/{name}_test.yml"
    )


def compose(name: str, *options: str, **environment: str) -> dict[str, Any]:
    """The services as compose reads them."""
    docker = tool("docker")
    if subprocess.run([docker, "compose", "version"], capture_output=True).returncode != 0:
        lack("the docker command's plug-in compose (version 2)")
    files = [part for file in COMPOSE_FILES[name] for part in ("-f", file)]
    shown = run(docker, "compose", *files, *options, "config", **environment)
    services: dict[str, Any] = yaml.safe_load(shown)["services"]
    return services


@pytest.mark.parametrize("name", COMPOSE_FILES)
def test_compose_accepts_the_files(name: str) -> None:
    services = compose(name, OUTRIDER_MODEL="/models/model")
    assert {"secrets", "valkey", "planner", "worker-1", "router", "prometheus"} <= set(services)
    assert ("grafana" in services) == (name != "offline")
    assert ("worker-2" in services) == (name != "gpu")
    assert "load" not in services
    assert "load" in compose(name, "--profile", "load", OUTRIDER_MODEL="/models/model")


def test_each_worker_on_gpus_has_one_of_its_own() -> None:
    workers = "worker-1:7080,worker-2:7080"
    services = compose(
        *("gpu", "--profile", "two-gpus"),
        OUTRIDER_MODEL="/models/model",
        OUTRIDER_GPU_WORKERS=workers,
    )
    for name, device in (("worker-1", "0"), ("worker-2", "1")):
        (reserved,) = services[name]["deploy"]["resources"]["reservations"]["devices"]
        assert reserved["capabilities"] == ["gpu"]
        assert reserved["device_ids"] == [device]
        assert services[name]["build"]["target"] == "cuda"
        assert services[name]["environment"]["OUTRIDER_WORKER_MODEL"] == "/models/model"
    assert services["router"]["environment"]["OUTRIDER_ROUTER_WORKERS"] == workers


def test_on_gpus_a_model_must_be_named() -> None:
    compose("gpu", OUTRIDER_MODEL="/models/model")
    with pytest.raises(AssertionError, match="OUTRIDER_MODEL"):
        compose("gpu", OUTRIDER_MODEL="")


@pytest.mark.parametrize(("workers", "file"), [("", "1.yml"), ("worker-1:1,worker-2:1", "1-2.yml")])
def test_prometheus_misses_no_worker_that_is_not_there(workers: str, file: str) -> None:
    services = compose("gpu", OUTRIDER_MODEL="/models/model", OUTRIDER_GPU_WORKERS=workers)
    (source,) = (
        mount["source"]
        for mount in services["prometheus"]["volumes"]
        if mount["target"] == "/etc/prometheus/workers.yml"
    )
    assert source == str(ROOT / "deploy/prometheus/workers" / file)


@pytest.mark.parametrize(
    "path", sorted((ROOT / "deploy/docker").glob("*.Dockerfile")), ids=lambda p: p.stem
)
def test_hadolint_finds_nothing(path: Path) -> None:
    assert run(tool("hadolint"), str(path)) == ""


@pytest.fixture(scope="module", params=COMBINATIONS)
def rendered(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> list[dict[str, Any]]:
    """The objects that kustomize makes of an overlay with more components."""
    overlay, components = COMBINATIONS[request.param]
    folder = tmp_path_factory.mktemp(request.param).resolve()
    kustomization = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": [os.path.relpath(ROOT / "deploy/kubernetes" / overlay, folder)],
        "components": [os.path.relpath(COMPONENTS / name, folder) for name in components],
    }
    (folder / "kustomization.yaml").write_text(yaml.safe_dump(kustomization))
    return list(yaml.safe_load_all(run(tool("kubectl"), "kustomize", str(folder))))


def test_objects_fit_every_schema(rendered: list[dict[str, Any]]) -> None:
    if importlib.util.find_spec("kubernetes_validate") is None:
        lack("kubernetes-validate")
    known = [each for each in rendered if each["apiVersion"] not in EXTENSIONS]
    assert {"Deployment", "StatefulSet", "Service", "NetworkPolicy"} <= {x["kind"] for x in known}
    versions = kubernetes_schemas.versions()
    served = versions[versions.index(OLDEST_KUBERNETES) :]
    assert "1.33" in served
    wrong = {version: kubernetes_schemas.errors(known, version) for version in served}
    assert {version: found for version, found in wrong.items() if found} == {}


def test_the_loader_of_models_fits_every_schema() -> None:
    if importlib.util.find_spec("kubernetes_validate") is None:
        lack("kubernetes-validate")
    loader = yaml.safe_load((COMPONENTS / "model-volume/loader.yaml").read_text())
    for version in kubernetes_schemas.versions():
        assert kubernetes_schemas.errors([loader], version) == []


def test_with_tls_every_probe_asks_by_it(rendered: list[dict[str, Any]]) -> None:
    """Kubernetes itself cannot, so that no pod would ever be ready."""
    maps = {each["metadata"]["name"]: each for each in rendered if each["kind"] == "ConfigMap"}
    for each in rendered:
        if each["kind"] not in ("Deployment", "StatefulSet"):
            continue
        (container,) = each["spec"]["template"]["spec"]["containers"]
        sources = [source["configMapRef"]["name"] for source in container.get("envFrom", ())]
        by_tls = any("OUTRIDER_TLS_CA_FILE" in maps[source]["data"] for source in sources)
        own = [kind for kind in ("startup", "readiness") if "grpc" in container[f"{kind}Probe"]]
        served = each["metadata"]["name"] in ("planner", "worker")
        assert bool(own) is (served and not by_tls)
        for kind in ("startup", "readiness") if served and by_tls else ():
            *command, url = container[f"{kind}Probe"]["exec"]["command"]
            assert command == ["python", "-m", "outrider_runtime.probe"]
            ports = {port["name"]: port["containerPort"] for port in container["ports"]}
            assert url == f"grpc://127.0.0.1:{ports['grpc']}"


def test_schemas_find_every_error() -> None:
    if importlib.util.find_spec("kubernetes_validate") is None:
        lack("kubernetes-validate")
    container = {"name": 1, "imag": "x"}
    spec = {"selector": {}, "replicas": "two", "template": {"spec": {"containers": [container]}}}
    wrong = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "a"}, "spec": spec}
    found = kubernetes_schemas.errors([wrong], "1.33")
    assert len(found) == 3
    assert any("Deployment/a: spec.replicas" in each for each in found)


def test_every_reference_is_met(rendered: list[dict[str, Any]]) -> None:
    """After kustomize has renamed: configuration, claims and scaling targets are there."""
    there = {(each["kind"], each["metadata"]["name"]) for each in rendered}
    for each in rendered:
        if each["kind"] in ("Deployment", "StatefulSet"):
            spec = each["spec"]["template"]["spec"]
            for container in (*spec.get("initContainers", ()), *spec["containers"]):
                assert ":" in container["image"]
                for source in container.get("envFrom", ()):
                    if "configMapRef" in source:
                        assert ("ConfigMap", source["configMapRef"]["name"]) in there
            for volume in spec["volumes"]:
                if claim := volume.get("persistentVolumeClaim"):
                    assert ("PersistentVolumeClaim", claim["claimName"]) in there
        if each["kind"] in ("HorizontalPodAutoscaler", "ScaledObject"):
            target = each["spec"]["scaleTargetRef"]
            assert (target["kind"], target["name"]) in there
