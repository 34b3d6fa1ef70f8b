"""`outrider explain` and `outrider replay` as a person at a terminal meets them."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from outrider_cli import explain
from outrider_cli.main import app
from outrider_planner.core.events import PlannerConfig
from outrider_planner.core.explain import explain as explained
from outrider_planner.core.planner import Planner
from outrider_planner.core.views import explanation
from outrider_planner.log.file import FileSink
from outrider_planner.log.journal import LogJournal
from outrider_planner.log.recorder import RecordedPlanner
from tests.unit.planner.builders import World, make_hello

RUNNER = CliRunner()


def answer(**hello: Any) -> dict[str, Any]:
    """What a planner says of one worker at work, as its side port sends it."""
    planner = Planner(PlannerConfig())
    world = World(planner, make_hello(**hello), 0.8, 2)
    world.run(64)
    decision = planner.workers["worker-1"].decision
    assert decision is not None
    found = explained(planner.basis["worker-1"], decision)
    sent: dict[str, Any] = json.loads(
        json.dumps(explanation(planner, "worker-1", found, world.now_s))
    )
    return sent


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A decision log that a planner wrote while a worker ran."""
    path = tmp_path_factory.mktemp("log") / "decisions.jsonl"

    async def written() -> None:
        journal = LogJournal(FileSink(path), "planner-a")
        World(RecordedPlanner(PlannerConfig(), journal), make_hello(), 0.8, 2).run(64)
        await journal.stop()

    asyncio.run(written())
    return path


def test_an_explanation_is_readable() -> None:
    text = explain.render(answer())
    lines = text.splitlines()
    assert lines[0].startswith("demo, worker worker-1 (busy), n=2")
    header = next(line for line in lines if "tokens/s" in line and "vs off" in line)
    table = lines[lines.index(header) + 1 :]
    assert [line.split()[0] for line in table[:3]] == ["chosen", "rival", "rival"]
    assert "cost table: measured" in text
    assert "latest rounds: accepted" in text


def test_an_explanation_without_costs_says_so() -> None:
    text = explain.render(answer(cost_table=None))
    assert "nothing has a price" in text
    assert "cost table: none" in text


def test_explain_asks_the_only_deployment(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def fetch(_url: str, path: str, _token: str | None) -> dict[str, Any]:
        asked.append(path)
        return {"deployments": [{"deployment": "demo"}]} if len(asked) == 1 else answer()

    monkeypatch.setattr(explain, "fetch_json", fetch)
    done = RUNNER.invoke(app, ["explain", "--n", "2"])
    assert done.exit_code == 0
    assert asked == ["/v1/deployments", "/v1/deployments/demo/explain?n=2"]
    assert "chosen" in done.output


@pytest.mark.parametrize(
    ("url", "words"),
    [("127.0.0.1:1", "no planner answers"), ("ftp://planner", "no address of a planner")],
)
def test_explain_says_what_is_wrong(url: str, words: str) -> None:
    done = RUNNER.invoke(app, ["explain", "demo", "--url", url])
    assert done.exit_code == 2
    assert words in done.output
    assert "--url" in done.output


def test_replay_finds_the_same_integers_and_compares(log: Path) -> None:
    done = RUNNER.invoke(app, ["replay", str(log), "--policy", "off", "--policy", "static:1"])
    assert done.exit_code == 0, done.output
    assert "0 with others" in done.output
    assert "As logged".lower() in done.output
    assert "static:1" in done.output
    told = RUNNER.invoke(app, ["replay", str(log), "--policy", "off", "--json"])
    found = json.loads(told.output)
    off = next(line for line in found["summary"] if line["policy"] == "off")
    assert off["rate_vs_off_ratio"] == pytest.approx(1.0)
    assert found["agreement"]["different"] == 0


def test_replay_passes_over_half_a_line(log: Path, tmp_path: Path) -> None:
    torn = tmp_path / "torn.jsonl"
    torn.write_text(log.read_text() + '{"v":1,"w')
    found = json.loads(RUNNER.invoke(app, ["replay", str(torn), "--json"]).output)
    assert found["agreement"]["lost"] == 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nowhere.jsonl"], "cannot read the decision log"),
        (["LOG", "--policy", "fastest"], "unknown policy"),
        (["LOG", "--planner", "other"], "no planner 'other' in this log, only planner-a"),
        (["redis://127.0.0.1:1/0"], "cannot read the decision log"),
    ],
)
def test_replay_says_what_is_wrong(log: Path, arguments: list[str], words: str) -> None:
    given = [str(log) if item == "LOG" else item for item in arguments]
    done = RUNNER.invoke(app, ["replay", *given])
    assert done.exit_code == 2
    assert words in done.output
