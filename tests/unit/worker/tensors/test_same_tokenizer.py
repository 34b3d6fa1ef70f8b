"""Tokenizers compared: what makes two the same, and how a difference is named."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from outrider_worker.model import load_model
from outrider_worker.model.config import ModelError
from outrider_worker.model.same_tokenizer import Vocabulary, require_same_tokenizer
from outrider_worker.speculate.draft_model import open_draft_model
from tests.support.tiny_models import make_tiny_llama, shared_tiny_llama

OURS: dict[str, Any] = {
    "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": ["a b"]},
    "added_tokens": [{"id": 3, "content": "<end>", "special": True}],
}


def written(folder: Path, tokenizer: object) -> Path:
    folder.mkdir()
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer), encoding="utf-8")
    return folder


def changed(change: Callable[[Any], object]) -> Any:
    copy = json.loads(json.dumps(OURS))
    change(copy)
    return copy


DIFFERENT: dict[str, tuple[Callable[[Any], object], str]] = {
    "a token": (
        lambda t: t["model"]["vocab"].update({"ab": 1, "b": 2}),
        "(4 ids there, 4 here): the first token that differs is 1: 'ab' there, 'b'",
    ),
    "one more": (
        lambda t: t["added_tokens"].append({"id": 4, "content": "<pad>", "special": True}),
        "(5 ids there, 4 here): the first token that differs is 4: '<pad>' there, none",
    ),
    "one less": (lambda t: t.update(added_tokens=[]), "is 3: none there, '<end>'"),
    "special": (
        lambda t: t["added_tokens"][0].update(special=False),
        "token 3, '<end>', is special only here",
    ),
    "merges": (lambda t: t["model"].update(merges=[]), "made by other merges"),
    "kind": (lambda t: t["model"].update(type="WordPiece"), "of the kind WordPiece"),
}


@pytest.mark.parametrize("what", DIFFERENT)
def test_the_first_difference_is_named(what: str, tmp_path: Path) -> None:
    change, words = DIFFERENT[what]
    ours, theirs = written(tmp_path / "ours", OURS), written(tmp_path / "theirs", changed(change))
    with pytest.raises(ModelError, match=re.escape(words)):
        require_same_tokenizer(ours, theirs)


def test_ways_of_writing_the_same_are_the_same(tmp_path: Path) -> None:
    """Merges as pairs, entries in another order, and parts that do not touch tokens."""

    def rewrite(tokenizer: Any) -> None:
        tokenizer["model"].update(merges=[["a", "b"]], vocab={"ab": 2, "b": 1, "a": 0})
        tokenizer["truncation"] = {"max_length": 512}

    ours, theirs = written(tmp_path / "ours", OURS), written(tmp_path / "theirs", changed(rewrite))
    assert require_same_tokenizer(ours, theirs) == 4


def test_a_vocabulary_may_be_a_list(tmp_path: Path) -> None:
    scored = {"model": {"type": "Unigram", "vocab": [["<unk>", 0.0], ["a", -1.5]]}}
    vocabulary = Vocabulary.read(written(tmp_path / "unigram", scored))
    assert vocabulary.tokens == {0: "<unk>", 1: "a"}
    assert (vocabulary.size, vocabulary.merges, vocabulary.special) == (2, [], frozenset())


@pytest.mark.parametrize("content", [{}, [], {"model": {}}, {"model": {"vocab": 3}}, "text"])
def test_files_that_are_no_tokenizers_say_so(content: object, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="is no tokenizer file"):
        Vocabulary.read(written(tmp_path / "odd", content))


def test_a_draft_model_without_a_tokenizer_or_with_another_is_refused(tmp_path: Path) -> None:
    target, folder = load_model(shared_tiny_llama()), make_tiny_llama(tmp_path / "draft")
    assert open_draft_model(folder, target, 4).traits.max_draft_tokens == 4
    file = folder / "tokenizer.json"
    tokenizer = json.loads(file.read_text(encoding="utf-8"))
    tokenizer["added_tokens"][1]["content"] = "<|user|>"
    file.write_text(json.dumps(tokenizer), encoding="utf-8")
    with pytest.raises(ModelError, match=r"is 1: '<\|user\|>' there, '<\|im_start\|>'"):
        open_draft_model(folder, target, 4)
    file.unlink()
    with pytest.raises(ModelError, match=r"has no tokenizer\.json"):
        open_draft_model(folder, target, 4)
