"""What is trained on: bounded, repeatable, and never what is measured with."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import prompts as benchmark
from outrider_worker.train.prompts import (
    OUT_OF_FAMILY,
    PromptFileError,
    builtin_prompts,
    is_held_out,
    read_prompts,
)


def test_the_same_seed_gives_the_same_prompts_and_another_seed_others() -> None:
    first, again = list(builtin_prompts(300, seed=4)), list(builtin_prompts(300, seed=4))
    assert first == again
    assert len({prompt.text for prompt in first}) == 300
    assert first != list(builtin_prompts(300, seed=5))


def test_a_share_is_held_out_and_whole_families_are() -> None:
    prompts = list(builtin_prompts(2000))
    outside = [prompt for prompt in prompts if prompt.family in OUT_OF_FAMILY]
    inside = [prompt for prompt in prompts if prompt.family not in OUT_OF_FAMILY]
    assert len(outside) > 40
    assert all(prompt.held_out for prompt in outside)
    share = sum(prompt.held_out for prompt in inside) / len(inside)
    assert 1 / 24 < share < 1 / 11


def test_nothing_of_the_benchmarks_prompts_is_trained_on() -> None:
    texts = " ".join(prompt.text.lower() for prompt in builtin_prompts(4000))
    sentences = [part.strip() for text in benchmark._TEXTS for part in text.split(". ")]
    names = [code.partition("(")[0] for code in benchmark._FUNCTIONS]
    for piece in (*sentences, *(f"{name}(" for name in names), *benchmark._TOPICS):
        assert piece.lower() not in texts, piece


def test_half_of_a_files_prompts_are_held_out_whoever_reads_it(tmp_path: Path) -> None:
    file = tmp_path / "prompts.txt"
    file.write_text("\n".join(f"question {n}" for n in range(400)) + "\n\nquestion 0\n")
    found = read_prompts(file)
    assert len(found) == 400
    assert 160 < sum(prompt.held_out for prompt in found) < 240
    assert all(prompt.held_out == is_held_out(prompt.text, 2) for prompt in found)
    assert [is_held_out(f"question {n}", 2) for n in range(6)] == [
        prompt.held_out for prompt in found[:6]
    ]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("empty.txt", "\n\n", "holds no prompts"),
        ("a.jsonl", '{"prompt": "fine"}\n{"text": "no"}\n', "line 2"),
        ("b.jsonl", '{"prompt": 3}\n', "line 1: its prompt is no text"),
    ],
)
def test_a_file_that_cannot_be_used_is_named(
    tmp_path: Path, name: str, content: str, message: str
) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(PromptFileError, match=message):
        read_prompts(tmp_path / name)
    with pytest.raises(PromptFileError, match="cannot be read"):
        read_prompts(tmp_path / "missing.txt")
