"""How many characters a token can stand for at most, read from a `tokenizer.json`.

Where that is known, the length of a text alone tells that it has too many tokens. It is known only
where nothing of a text is dropped and no letters are unknown: a normalizer that collapses blanks,
an added token that swallows those around it, or an unknown token for a whole word make few tokens
of any number of characters. What is not listed here counts as such.
"""

from collections.abc import Iterator, Set
from typing import Any

from outrider_router.text.detokenize import BYTE_OF_LETTER

# Unicode composes at most four characters into one.
_MOST_COMPOSED = 4
_COMPOSING = frozenset({"NFC", "NFKC"})
_KEEPING_NORMALIZERS = _COMPOSING | {"Prepend", "Replace", "ByteLevel"}
_KEEPING_PRE_TOKENIZERS = frozenset({"ByteLevel", "Digits", "Metaspace", "Punctuation", "Split"})
_MODELS = frozenset({"BPE", "Unigram"})
_BYTE_TOKENS = frozenset(f"<0x{byte:02X}>" for byte in range(256))


def most_chars_per_token(spec: dict[str, Any]) -> int | None:
    """The most characters that one token can stand for; None if there is no such number.

    Args:
        spec: content of `tokenizer.json`.
    """
    normalizers = list(_steps(spec.get("normalizer")))
    pre_tokenizers = list(_steps(spec.get("pre_tokenizer")))
    added = spec.get("added_tokens", [])
    vocab = _vocab(spec["model"])
    is_byte_level = any(step["type"] == "ByteLevel" for step in [*normalizers, *pre_tokenizers])
    if not (
        all(map(_normalizer_keeps, normalizers))
        and all(map(_pre_tokenizer_keeps, pre_tokenizers))
        and _knows_all_letters(spec["model"], vocab, is_byte_level)
        and not any(token["lstrip"] or token["rstrip"] for token in added)
    ):
        return None
    longest = max(map(len, vocab | {token["content"] for token in added}))
    composes = any(step["type"] in _COMPOSING for step in normalizers)
    return longest * (_MOST_COMPOSED if composes else 1)


def _knows_all_letters(model: dict[str, Any], vocab: Set[str], is_byte_level: bool) -> bool:
    """Whether any letter is written with tokens of its own, by its bytes if need be."""
    if model.get("type") not in _MODELS:
        return False
    if is_byte_level:
        return vocab >= BYTE_OF_LETTER.keys()
    return model.get("byte_fallback") is True and vocab >= _BYTE_TOKENS


def _steps(part: dict[str, Any] | None) -> Iterator[dict[str, Any]]:
    """The steps of a normalizer or pre-tokenizer in order, sequences unfolded."""
    if part is None:
        return
    if part["type"] != "Sequence":
        yield part
    for inner in part.get("normalizers", part.get("pretokenizers", [])):
        yield from _steps(inner)


def _vocab(model: dict[str, Any]) -> frozenset[str]:
    """All tokens of the model; Unigram's are listed with their scores."""
    vocab = model.get("vocab", [])
    return frozenset(vocab) if isinstance(vocab, dict) else frozenset(token for token, _ in vocab)


def _normalizer_keeps(step: dict[str, Any]) -> bool:
    """Whether a step leaves a character for each, or for each that Unicode composes."""
    if step["type"] != "Replace":
        return step["type"] in _KEEPING_NORMALIZERS
    replaced = step["pattern"].get("String")
    return replaced is not None and len(step["content"]) >= len(replaced)


def _pre_tokenizer_keeps(step: dict[str, Any]) -> bool:
    """Whether a pre-tokenizer leaves out nothing between the words."""
    return step["type"] in _KEEPING_PRE_TOKENIZERS and step.get("behavior") != "Removed"
