"""Whether two models read and write the same tokens.

Knows: the parts of a tokenizer.json that decide what an id stands for and how text becomes ids.
Does not know: how text is encoded, models. The number of ids a model has logits for says nothing:
families fill it up to different sizes, and two vocabularies may have one size.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from outrider_worker.model.config import ModelError


@dataclass(frozen=True)
class Vocabulary:
    """What a tokenizer file says of its tokens."""

    kind: str
    """BPE, Unigram, …"""
    tokens: Mapping[int, str]
    special: frozenset[int]
    """Ids that are never text."""
    merges: Sequence[tuple[str, ...]]
    """Pairs that become one token, in order; none for kinds without."""

    @property
    def size(self) -> int:
        """Ids up to the last one that stands for anything."""
        return max(self.tokens, default=-1) + 1

    @classmethod
    def read(cls, folder: Path) -> Vocabulary:
        """Of the tokenizer.json in `folder`. Raises ModelError where there is none, or no sense."""
        file = folder / "tokenizer.json"
        try:
            content = json.loads(file.read_text(encoding="utf-8"))
            return cls._of(content["model"], content.get("added_tokens") or [])
        except OSError as error:
            raise ModelError(f"{folder} has no tokenizer.json to compare: {error}") from error
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ModelError(f"{file} is no tokenizer file: {error!r}") from error

    @classmethod
    def _of(cls, model: Mapping[str, Any], added: Sequence[Mapping[str, Any]]) -> Vocabulary:
        vocab = model["vocab"]
        listed = vocab.items() if isinstance(vocab, dict) else _numbered(vocab)
        tokens = {index: token for token, index in listed}
        tokens |= {entry["id"]: entry["content"] for entry in added}
        return cls(
            kind=model.get("type", "BPE"),
            tokens=tokens,
            special=frozenset(entry["id"] for entry in added if entry.get("special")),
            merges=[_pair(merge) for merge in model.get("merges") or ()],
        )


def _numbered(vocab: Sequence[Sequence[Any]]) -> list[tuple[str, int]]:
    """A list of (token, score) has its ids in its order."""
    return [(entry[0], index) for index, entry in enumerate(vocab)]


def _pair(merge: str | Sequence[str]) -> tuple[str, ...]:
    """Files write a pair as one text with a blank, or as a list."""
    return tuple(merge.split(" ")) if isinstance(merge, str) else tuple(merge)


def require_same_tokenizer(target: Path, draft: Path) -> int:
    """Check the tokenizers in two models' folders against each other.

    Returns how many ids they share: all of them. Raises ModelError naming the first difference.
    """
    ours, theirs = Vocabulary.read(target), Vocabulary.read(draft)
    difference = _difference(ours, theirs)
    if difference is None:
        return ours.size
    raise ModelError(
        f"the draft model in {draft} has another tokenizer than the target in {target}"
        f" ({theirs.size} ids there, {ours.size} here): {difference}"
    )


def _difference(ours: Vocabulary, theirs: Vocabulary) -> str | None:
    """The first thing that differs, in words; None for equal vocabularies."""
    if ours.kind != theirs.kind:
        return f"it is of the kind {theirs.kind}, the target's is {ours.kind}"
    for index in range(max(ours.size, theirs.size)):
        mine, other = ours.tokens.get(index), theirs.tokens.get(index)
        if mine != other:
            return f"the first token that differs is {index}: {_named(other)} there, {_named(mine)}"
    if unlike := ours.special ^ theirs.special:
        index = min(unlike)
        where = "there" if index in theirs.special else "here"
        return f"token {index}, {_named(ours.tokens[index])}, is special only {where}"
    if ours.merges != theirs.merges:
        return "the same tokens, but made by other merges"
    return None


def _named(token: str | None) -> str:
    return "none" if token is None else repr(token)
