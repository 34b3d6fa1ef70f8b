"""What a text's length alone tells of its tokens: never more than there are."""

import json
from collections.abc import Callable
from datetime import datetime
from typing import Any

import pytest
from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers

from outrider_router.text.model_text import ModelText, TextAssets
from tests.support import tiny_tokenizers as tiny


def changed(change: Callable[[Any], object]) -> bytes:
    """The byte-level tokenizer with a change."""
    library = Tokenizer.from_str(tiny.byte_level_json().decode())
    change(library)
    return library.to_str().encode()


def with_part(part: str, value: Any) -> bytes:
    return changed(lambda library: setattr(library, part, value))


def with_model(source: bytes, **fields: Any) -> bytes:
    spec = json.loads(source)
    return json.dumps(spec | {"model": spec["model"] | fields}).encode()


def with_added(**options: bool) -> bytes:
    return changed(lambda library: library.add_tokens([AddedToken("<mask>", **options)]))


def knowing_one_letter() -> bytes:
    """One token for all that is unknown, however long."""
    library = Tokenizer.from_str(tiny.sentencepiece_json().decode())
    library.model = models.BPE({"<unk>": 0, "a": 1}, [], unk_token="<unk>", fuse_unk=True)
    return library.to_str().encode()


def without_letter(letter: str) -> bytes:
    """A byte-level vocabulary trained on texts that do not have one of the bytes."""
    source = tiny.byte_level_json()
    vocab = json.loads(source)["model"]["vocab"]
    return with_model(source, vocab={token: at for token, at in vocab.items() if token != letter})


NFC, NFKC = normalizers.NFC(), normalizers.NFKC()
LOSSY = {
    "collapse blanks": with_part("normalizer", normalizers.Replace(Regex(" +"), " ")),
    "several for one": with_part("normalizer", normalizers.Replace("    ", " ")),
    "strip": with_part("normalizer", normalizers.Sequence([NFC, normalizers.Strip()])),
    "swallow left": with_added(lstrip=True),
    "swallow right": with_added(rstrip=True),
    "drop blanks": with_part("pre_tokenizer", pre_tokenizers.WhitespaceSplit()),
    "drop matches": with_part("pre_tokenizer", pre_tokenizers.Split(" ", "removed")),
    "unknown": knowing_one_letter(),
    "drop a byte": without_letter("Ą"),
    "no bytes": with_model(tiny.sentencepiece_json(), byte_fallback=False, fuse_unk=True),
}
KEEPING = {
    "byte level": tiny.byte_level_json(),
    "metaspace": tiny.sentencepiece_json("first"),
    "llama": tiny.sentencepiece_json("normalizer"),
    "composed": with_part("normalizer", NFC),
    "compatible": with_part("normalizer", normalizers.Sequence([NFC, NFKC])),
    "split": with_part(
        "pre_tokenizer",
        pre_tokenizers.Sequence(
            [pre_tokenizers.Split(" ", "isolated"), pre_tokenizers.ByteLevel(use_regex=False)]
        ),
    ),
}
TEXTS = [
    "a" + " " * 20_000 + "b",
    "a" + " " * 20_000 + "<mask>" + " " * 20_000,
    "    " * 5_000,
    "東" * 5_000,
    "\x04" * 5_000,
    "\u03b1\u0313\u0300\u0345" * 2_000,  # four letters that Unicode composes into one
]


def text_of(source: bytes) -> ModelText:
    return ModelText(TextAssets(source, b"{}", ""), datetime.now)


@pytest.mark.parametrize("name", [*LOSSY, *KEEPING])
def test_a_text_has_no_fewer_tokens_than_are_told(name: str) -> None:
    source = (LOSSY | KEEPING)[name]
    text, library = text_of(source), Tokenizer.from_str(source.decode())
    for content in TEXTS:
        assert text.least_tokens(len(content)) <= len(library.encode(content).ids)


@pytest.mark.parametrize("name", LOSSY)
def test_nothing_is_told_where_a_token_may_stand_for_any_number_of_letters(name: str) -> None:
    assert text_of(LOSSY[name]).least_tokens(10_000_000) == 0


@pytest.mark.parametrize("name", KEEPING)
def test_usual_vocabularies_tell_that_a_text_is_hopeless(name: str) -> None:
    assert text_of(KEEPING[name]).least_tokens(1_000_000) > 10_000
