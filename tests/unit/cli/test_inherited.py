"""The token as services find it: the variable, or its file where secrets are mounted."""

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from outrider_cli import main
from outrider_cli.errors import CommandError
from outrider_cli.inherited import inherited_token


@pytest.fixture(autouse=True)
def _no_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OUTRIDER_TOKEN", raising=False)
    monkeypatch.delenv("OUTRIDER_SECRETS_DIR", raising=False)


@pytest.fixture
def mounted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "outrider_token").write_text("of the file\n")
    monkeypatch.setenv("OUTRIDER_SECRETS_DIR", str(tmp_path))
    return tmp_path


def test_there_need_not_be_one() -> None:
    assert inherited_token() is None


@pytest.mark.usefixtures("mounted")
def test_the_variable_wins_over_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    assert inherited_token() == "of the file"
    monkeypatch.setenv("OUTRIDER_TOKEN", "of the variable")
    assert inherited_token() == "of the variable"


@pytest.mark.usefixtures("mounted")
def test_explain_presents_it(monkeypatch: pytest.MonkeyPatch) -> None:
    presented: list[Any] = []

    def explanation(_url: str, token: str | None, *_asked: Any) -> dict[str, Any]:
        presented.append(token)
        return {}

    monkeypatch.setattr(main, "explanation", explanation)
    assert CliRunner().invoke(main.app, ["explain", "--json"]).exit_code == 0
    assert presented == ["of the file"]


def test_a_folder_that_is_not_there_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OUTRIDER_SECRETS_DIR", "/no/such/folder")
    with pytest.raises(CommandError, match="/no/such/folder, which is no folder"):
        inherited_token()
