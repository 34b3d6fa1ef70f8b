"""The import rules of docs/architecture.md, and that they are not empty words."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import grimp
import pytest

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(sys.executable).parent
PLACES = ("services/router", "services/planner", "services/worker", "lib", "cli")
SERVICES = ("outrider_router", "outrider_planner", "outrider_worker")


def test_import_contracts_hold() -> None:
    done = lint_imports()
    assert done.returncode == 0, done.stdout + done.stderr
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    assert f"Contracts: {len(contracts['contracts'])} kept, 0 broken" in done.stdout


def test_every_folder_of_code_is_a_package() -> None:
    """A folder without `__init__.py` can be imported, and the contracts cannot see into it."""
    folders = {
        path.parent for place in PLACES for path in (ROOT / place).glob("outrider_*/**/*.py")
    }
    assert [str(folder) for folder in folders if not (folder / "__init__.py").exists()] == []


def test_a_contract_that_does_not_hold_is_found(tmp_path: Path) -> None:
    """The worker does import torch; a rule against it must break, or all rules are vacuous."""
    rules = tmp_path / "rules.toml"
    rules.write_text(
        """
[tool.importlinter]
root_packages = ["outrider_worker"]
include_external_packages = true

[[tool.importlinter.contracts]]
name = "No torch in the worker"
type = "forbidden"
source_modules = ["outrider_worker"]
forbidden_modules = ["torch"]
"""
    )
    done = lint_imports(str(rules))
    assert done.returncode == 1
    assert "0 kept, 1 broken" in done.stdout


def lint_imports(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [str(BIN / "lint-imports"), "--no-logo", "--no-cache", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True)


def test_every_module_of_the_library_serves_at_least_two_services() -> None:
    graph = grimp.build_graph("outrider_runtime", *SERVICES, cache_dir=None)
    library = {module for module in graph.modules if module.startswith("outrider_runtime.")}
    services = {
        module: {user.split(".")[0] for user in users(graph, module)} & set(SERVICES)
        for module in library
    }
    for service in SERVICES:
        # What containers run beside the service serves it, too.
        name = service.removeprefix("outrider_")
        image = (ROOT / f"deploy/docker/{name}.Dockerfile").read_text()
        for module in re.findall(r'"-m", "(outrider_runtime\.\w+)"', image):
            services[module].add(service)
    assert {module: names for module, names in services.items() if len(names) < 2} == {}


def users(graph: grimp.ImportGraph, module: str) -> set[str]:
    """Who imports a module, or modules of the library that are made of it."""
    return graph.find_downstream_modules(module)


@pytest.mark.parametrize("name", ["torch", "fastapi", "redis"])
def test_the_library_brings_no_service_s_packages(name: str) -> None:
    graph = grimp.build_graph("outrider_runtime", include_external_packages=True, cache_dir=None)
    assert name not in graph.modules
