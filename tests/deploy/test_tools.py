"""The deployment as the platform's own tools judge it; what lacks its tool is skipped and says so.

`OUTRIDER_TEST_TOOLS` names a folder to look for tools in first.
"""

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

pytestmark = [pytest.mark.deploy, pytest.mark.timeout(600)]

ROOT = Path(__file__).resolve().parents[2]
COMPONENTS = ROOT / "deploy/kubernetes/components"
KUBERNETES_VERSIONS = ("1.29", "1.33")
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
    "keda": ("overlays/gpu", ("monitoring", "autoscaling-keda")),
}


def tool(name: str) -> str:
    path = os.pathsep.join((os.environ.get("OUTRIDER_TEST_TOOLS", ""), os.environ["PATH"]))
    found = shutil.which(name, path=path)
    if not found:
        pytest.skip(f"{name} is not installed")
    return found


def run(*command: str, **environment: str) -> str:
    """What the command printed; the test fails with it where the command fails."""
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, **environment}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_prometheus_accepts_the_configuration(tmp_path: Path) -> None:
    promtool = tool("promtool")
    shutil.copytree(ROOT / "deploy/prometheus/rules", tmp_path / "rules")
    text = (ROOT / "deploy/prometheus/prometheus.yml").read_text()
    (tmp_path / "prometheus.yml").write_text(text.replace("/etc/prometheus/", ""))
    assert "SUCCESS" in run(promtool, "check", "config", str(tmp_path / "prometheus.yml"))


@pytest.mark.parametrize("name", ["recording", "alerts"])
def test_rules_do_what_they_should(name: str) -> None:
    assert "SUCCESS" in run(
        tool("promtool"), "test", "rules", f"deploy/prometheus/tests/{name}_test.yml"
    )


@pytest.mark.parametrize("name", COMPOSE_FILES)
def test_compose_accepts_the_files(name: str) -> None:
    docker = tool("docker")
    if subprocess.run([docker, "compose", "version"], capture_output=True).returncode != 0:
        pytest.skip("the docker command has no compose plug-in (version 2)")
    files = [part for file in COMPOSE_FILES[name] for part in ("-f", file)]
    shown = run(docker, "compose", *files, "config", OUTRIDER_MODEL="/models/model")
    services = yaml.safe_load(shown)["services"]
    assert {"secrets", "valkey", "planner", "worker-1", "router", "prometheus"} <= set(services)
    assert ("grafana" in services) == (name != "offline")
    if name == "gpu":
        reserved = services["worker-1"]["deploy"]["resources"]["reservations"]["devices"]
        assert reserved[0]["capabilities"] == ["gpu"]
        assert services["worker-1"]["build"]["target"] == "cuda"


@pytest.mark.parametrize(
    "path", sorted((ROOT / "deploy/docker").glob("*.Dockerfile")), ids=lambda p: p.stem
)
def test_hadolint_finds_nothing(path: Path) -> None:
    assert run(tool("hadolint"), str(path)) == ""


@pytest.fixture(params=COMBINATIONS)
def rendered(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, list[dict[str, Any]]]:
    """What kustomize makes of an overlay with more components: a file and its objects."""
    overlay, components = COMBINATIONS[request.param]
    kustomization = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": [os.path.relpath(ROOT / "deploy/kubernetes" / overlay, tmp_path.resolve())],
        "components": [
            os.path.relpath(COMPONENTS / name, tmp_path.resolve()) for name in components
        ],
    }
    (tmp_path / "kustomization.yaml").write_text(yaml.safe_dump(kustomization))
    text = run(tool("kubectl"), "kustomize", str(tmp_path))
    out = tmp_path / "all.yaml"
    out.write_text(text)
    return out, list(yaml.safe_load_all(text))


def test_objects_fit_the_schemas(rendered: tuple[Path, list[dict[str, Any]]]) -> None:
    validate = tool("kubernetes-validate")
    path, objects = rendered
    known = [each for each in objects if each["apiVersion"] not in EXTENSIONS]
    for version in KUBERNETES_VERSIONS:
        done = subprocess.run(
            [validate, "--strict", "-k", version, str(path)], capture_output=True, text=True
        )
        text = done.stdout + done.stderr
        assert done.returncode == 0, text
        # A gap in the schemas is only a warning there: what passed is counted.
        assert len(re.findall(r"(?i)passed", text)) == len(known), text


def test_every_reference_is_met(rendered: tuple[Path, list[dict[str, Any]]]) -> None:
    """After kustomize has renamed: configuration, claims and scaling targets are there."""
    _, objects = rendered
    there = {(each["kind"], each["metadata"]["name"]) for each in objects}
    for each in objects:
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
