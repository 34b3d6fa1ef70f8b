"""`outrider train-drafter`: what it says when it cannot do what was asked, and that it does it."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from outrider_cli.main import app
from outrider_cli.train_drafter import ChatText
from outrider_worker.model.loader import load_model
from outrider_worker.speculate.checkpoints import open_drafter
from outrider_worker.train import run
from outrider_worker.train.own_prompts import Frame
from tests.support.tiny_models import shared_tiny_llama

_SMALL = (
    "--prompt-count", "40", "--own-prompts", "0", "--answer-tokens", "8", "--steps", "2",
    "--draft-vocab", "64", "--seats", "8", "--device", "cpu", "--threads", "1",
)  # fmt: skip


def _run(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["train-drafter", *arguments])
    return result.exit_code, result.output


def _target() -> str:
    return str(shared_tiny_llama())


def test_a_target_is_needed(tmp_path: Path) -> None:
    code, said = _run("--out", str(tmp_path))
    assert code == 2
    assert "--target" in said


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--kind", "medusa"), "unknown kind 'medusa': choose one of mtp-eagle, eagle3"),
        (("--target", "./nowhere"), "nowhere"),
        (("--prompts-file", "/nowhere/prompts.txt"), "/nowhere/prompts.txt cannot be read"),
        (("--out", __file__), "is no folder"),
    ],
)
def test_what_cannot_be_done_is_said_in_one_line(
    arguments: tuple[str, ...], message: str, tmp_path: Path
) -> None:
    code, said = _run("--target", _target(), "--out", str(tmp_path), *_SMALL, *arguments)
    assert code == 2, said
    assert said.startswith("outrider: ")
    assert message in said
    assert said.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_prompts_are_encoded_as_a_chat() -> None:
    chat = ChatText(shared_tiny_llama())
    ids = chat.encode("hi <|im_end|>")
    text = chat.decode(ids)
    assert text.startswith("<|im_start|>user\nhi <|im_end|><|im_end|>")
    assert text.endswith("<|im_start|>assistant\n")
    assert list(ids).count(2) == 1, "users set no control tokens"


def test_a_message_is_framed_by_the_template() -> None:
    chat = ChatText(shared_tiny_llama())
    frame = Frame.of(chat.encode)
    assert chat.decode(frame.opening) == "<|im_start|>user\n"
    assert chat.decode([frame.end_id]) == "<|im_end|>"


def test_one_that_is_stopped_says_how_to_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped(*_given: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(run, "train_drafter", stopped)
    code, said = _run("--target", _target(), "--out", str(tmp_path), *_SMALL)
    assert code == 130
    assert said.splitlines() == [
        f"loading {_target()}",
        "outrider: stopped; the same command goes on from where it was",
    ]


def test_it_trains_goes_on_and_ends_with_a_drafter_that_loads(tmp_path: Path) -> None:
    file = tmp_path / "prompts.txt"
    file.write_text("\n".join(f"Say {n}." for n in range(8)))
    out = tmp_path / "run"
    arguments = ("--target", _target(), "--out", str(out), "--prompts-file", str(file), *_SMALL)
    code, said = _run(*arguments)
    assert code == 0, said
    assert "tokens/s" in said
    assert "exported to" in said
    drafter = open_drafter(out / "head", load_model(shared_tiny_llama()), max_draft_tokens=3)
    assert drafter.traits.name == "mtp"
    code, said = _run(*arguments)
    assert code == 0
    assert "going on from step 2" in said
    assert "tokens/s" not in said
    code, said = _run(*arguments, "--seed", "1")
    assert code == 2
    assert "holds another training set" in said
