"""The Dockerfiles and what they install, read as text and compared with the distribution."""

import re
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).resolve().parents[2]
DOCKER = ROOT / "deploy/docker"
PYTHONS: tuple[dict[str, str], ...] = ({}, {"python_full_version": "3.11.0"})
OURS = ("router", "planner", "worker")
# torch's build for GPUs brings its own versions of these.
WITH_TORCH = re.compile(r"nvidia-|cuda-|triton$")


def stages(name: str) -> list[str]:
    """The text of each stage, the last one last."""
    text = (DOCKER / f"{name}.Dockerfile").read_text()
    return re.split(r"^(?=FROM )", text, flags=re.MULTILINE)[1:]


def constraints() -> dict[str, Version]:
    lines = (DOCKER / "constraints.txt").read_text().splitlines()
    pins = [Requirement(line) for line in lines if line and not line.startswith("#")]
    assert all(len(pin.specifier) == 1 and str(pin.specifier).startswith("==") for pin in pins)
    return {canonicalize_name(pin.name): Version(str(pin.specifier)[2:]) for pin in pins}


def closure(name: str, extras: frozenset[str], seen: dict[str, set[str]]) -> None:
    """Adds what a package requires, with its extras, to `seen`."""
    key = canonicalize_name(name)
    if extras <= seen.get(key, set()) and key in seen:
        return
    seen.setdefault(key, set()).update(extras)
    try:
        required = distribution(name).requires or ()
    except PackageNotFoundError:
        return
    for requirement in map(Requirement, required):
        if applies(requirement, extras):
            closure(requirement.name, frozenset(requirement.extras), seen)


def applies(requirement: Requirement, extras: frozenset[str]) -> bool:
    """Whether it is asked for, with any extra, by the oldest Python that serves or by this one."""
    marker = requirement.marker
    return marker is None or any(
        marker.evaluate({"extra": extra, **python}) for extra in ("", *extras) for python in PYTHONS
    )


def test_every_package_of_the_images_is_pinned() -> None:
    needed: dict[str, set[str]] = {}
    closure("outrider", frozenset(OURS), needed)
    missing = needed.keys() - constraints().keys() - {"outrider"}
    assert {name for name in missing if not WITH_TORCH.match(name)} == set()


def test_pins_satisfy_the_distribution() -> None:
    pins = constraints()
    wrong = [
        str(requirement)
        for requirement in map(Requirement, distribution("outrider").requires or ())
        if (pin := pins.get(canonicalize_name(requirement.name)))
        and not requirement.specifier.contains(pin)
    ]
    assert wrong == []


@pytest.mark.parametrize("extra", OURS)
def test_requirements_are_those_of_the_extra(extra: str) -> None:
    script = DOCKER / "requirements.py"
    done = subprocess.run(
        [sys.executable, script, extra], cwd=ROOT, capture_output=True, text=True, check=True
    )
    printed = {canonicalize_name(Requirement(line).name) for line in done.stdout.splitlines()}
    assert "grpcio" in printed
    assert "torch" not in printed
    assert ("redis" in printed) == (extra == "planner")
    assert ("jinja2" in printed) == (extra == "router")
    assert ("safetensors" in printed) == (extra == "worker")


@pytest.mark.parametrize("name", OURS)
def test_the_last_stage_is_lean_and_not_root(name: str) -> None:
    final = [stage for stage in stages(name) if stage.startswith("FROM ${BASE_IMAGE}")][-1]
    assert "USER 10001:10001" in final
    assert "HEALTHCHECK" in final
    assert re.search(
        r'CMD \["/venv/bin/python", "-m", "outrider_runtime.probe", "(http|grpc)://', final
    )
    assert "org.opencontainers.image.licenses" in final
    for stage in [final, *(s for s in stages(name) if s.startswith("FROM worker "))]:
        assert "apt-get" not in stage
        assert "pip" not in re.sub(r"pip's", "", stage)
        assert "gcc" not in stage


@pytest.mark.parametrize("path", sorted(DOCKER.glob("*.Dockerfile")), ids=lambda p: p.stem)
def test_bases_and_indexes_are_arguments_and_no_host_is_named(path: Path) -> None:
    text = path.read_text()
    froms = re.findall(r"^FROM (\S+)", text, re.MULTILINE)
    names = set(re.findall(r"^FROM \S+ AS (\S+)", text, re.MULTILINE))
    assert set(froms) <= {"${BASE_IMAGE}", *names}
    defaults = re.findall(r"^ARG BASE_IMAGE=(\S+)", text, re.MULTILINE)
    assert len(defaults) == 1
    assert "/" not in defaults[0]
    assert "http" not in re.sub(r"http://127\.0\.0\.1|HTTP", "", text)


@pytest.mark.parametrize("name", OURS)
def test_what_is_copied_is_let_into_the_build(name: str) -> None:
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    let_in = [line[1:] for line in ignored if line.startswith("!")]
    text = (DOCKER / f"{name}.Dockerfile").read_text()
    sources = [
        source
        for line in re.findall(r"^COPY (?!--from)(.+)$", text, re.MULTILINE)
        for source in line.split()[:-1]
    ]
    assert sources
    assert [s for s in sources if not any(s == f or s.startswith(f"{f}/") for f in let_in)] == []
    assert [s for s in sources if not (ROOT / s).exists()] == []
