"""Half characters are never shown, whatever the split; text equals the library's."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models

from outrider_router.text.detokenize import DecoderError, IncrementalDecoder, TokenTable
from outrider_router.text.tokenizer import ModelTokenizer, TokenizerError
from tests.support import tiny_tokenizers as tiny

KINDS = {
    "byte_level": ModelTokenizer(tiny.byte_level_json()),
    "metaspace": ModelTokenizer(tiny.sentencepiece_json("first")),
}


def decode_one_by_one(tokenizer: ModelTokenizer, ids: list[int]) -> list[str]:
    decoder = IncrementalDecoder(tokenizer.table)
    return [decoder.push([token_id]) for token_id in ids]


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=150, deadline=None)
@given(text=st.text(st.characters(codec="utf-8"), max_size=40))
def test_pieces_join_to_the_librarys_text(kind: str, text: str) -> None:
    tokenizer = KINDS[kind]
    ids = tokenizer.encode(text, add_special_tokens=False)
    pieces = decode_one_by_one(tokenizer, ids)
    shown = "".join(pieces)
    assert shown.removeprefix(" ") == tokenizer.decode(ids).removeprefix(" ")
    assert "\ufffd" not in shown or "\ufffd" in text


@settings(max_examples=200, deadline=None)
@given(text=st.text(st.characters(codec="utf-8"), max_size=30), data=st.data())
def test_any_split_of_the_bytes_reassembles(text: str, data: st.DataObject) -> None:
    """One token per byte, pushed in arbitrary groups: only whole characters come out."""
    tokenizer = KINDS["byte_level"]
    id_of_byte = {tokenizer.table.bytes_of(i): i for i in range(tokenizer.vocab_size)}
    ids = [id_of_byte[bytes([byte])] for byte in text.encode()]
    decoder = IncrementalDecoder(tokenizer.table)
    shown = ""
    while ids:
        size = data.draw(st.integers(1, len(ids)))
        shown += decoder.push(ids[:size])
        ids = ids[size:]
        assert text.startswith(shown)
    assert shown == text


def test_unfinished_character_at_the_end_is_not_shown() -> None:
    tokenizer = KINDS["byte_level"]
    ids = tokenizer.encode("ok 🎉", add_special_tokens=False)
    for size in range(len(ids)):
        assert "ok 🎉".startswith("".join(decode_one_by_one(tokenizer, ids[:size])))


def test_special_tokens_are_hidden_and_markers_shown() -> None:
    tokenizer = KINDS["byte_level"]
    ids = tokenizer.encode("a<|im_end|>b<think>c", add_special_tokens=False)
    assert "".join(decode_one_by_one(tokenizer, ids)) == "ab<think>c"


def test_ids_outside_the_vocabulary_have_no_bytes() -> None:
    assert KINDS["byte_level"].table.bytes_of(10**6) == b""


def test_invalid_bytes_become_replacement_characters() -> None:
    tokenizer = KINDS["metaspace"]
    vocabulary = tokenizer._library.get_vocab()
    ids = [vocabulary[token] for token in ("<0xE6>", "T", "<0x9D>")]
    assert "".join(decode_one_by_one(tokenizer, ids)) == "\ufffdT\ufffd"


@pytest.mark.parametrize("decoder", [None, {"type": "WordPiece"}, {"type": "CTC"}])
def test_other_decoders_are_refused_by_name(decoder: dict[str, str] | None) -> None:
    library = Tokenizer(models.BPE())
    library.decoder = decoders.ByteLevel()
    with pytest.raises(DecoderError, match="no decoder" if decoder is None else decoder["type"]):
        TokenTable(library, decoder)


def test_broken_file_is_refused() -> None:
    with pytest.raises(TokenizerError, match=r"tokenizer\.json cannot be read"):
        ModelTokenizer(b"{}")
