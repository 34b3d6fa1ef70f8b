"""Long texts in pieces: the library's ids, however they are cut, and nobody waits meanwhile."""

from itertools import chain
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Regex, Tokenizer, normalizers, pre_tokenizers

from outrider_router.text.control import ControlTokens, control_tokens_of
from outrider_router.text.pieces import ids_in_pieces
from outrider_router.text.tokenizer import ModelTokenizer, TooManyTokens
from tests.support import tiny_tokenizers as tiny

SIZES = [(96, 40), (256, 64), (400, 128)]
WORDS = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


def grouping_digits() -> Tokenizer:
    """Words, and numbers in threes, as newer models have them; letters composed."""
    library = Tokenizer.from_str(tiny.byte_level_json().decode())
    library.normalizer = normalizers.NFC()
    library.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(WORDS), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    return library


LIBRARIES = {
    "byte_level": Tokenizer.from_str(tiny.byte_level_json().decode()),
    "metaspace": Tokenizer.from_str(tiny.sentencepiece_json("first").decode()),
    "one_word": Tokenizer.from_str(tiny.sentencepiece_json("normalizer").decode()),
    "grouping_digits": grouping_digits(),
}
atoms = st.sampled_from(
    ["Paris", " the", "\n", "   ", "aaaaaaa", "é", "e\u0301", "🙂", "1", "1234", "<|im_end|>", "=="]
)
runs = st.tuples(atoms, st.integers(1, 60)).map(lambda run: run[0] * run[1])
texts = st.lists(st.one_of(atoms, runs), max_size=120).map("".join)


@pytest.mark.parametrize("name", LIBRARIES)
@given(text=texts, size=st.sampled_from(SIZES))
def test_pieces_together_are_the_librarys_ids(name: str, text: str, size: tuple[int, int]) -> None:
    library = LIBRARIES[name]
    whole = library.encode(text, add_special_tokens=False).ids
    assert list(chain.from_iterable(ids_in_pieces(library, text, *size))) == whole


def test_pieces_are_as_large_as_asked_for_unless_a_word_is_larger() -> None:
    library = LIBRARIES["byte_level"]
    sizes = [len(ids) for ids in ids_in_pieces(library, "the lazy dog; " * 300, 256, 64)]
    assert len(sizes) > 300 * 14 // 256
    assert max(sizes) <= 256


@pytest.mark.parametrize("most", [None, 10_000_000])
def test_what_stands_around_a_prompt_stands_around_a_long_one(most: int | None) -> None:
    """`encode` takes the long way for the second, with what the library adds at both ends."""
    tokenizer = ModelTokenizer(tiny.byte_level_json())
    library: Any = tokenizer._library
    from tokenizers.processors import TemplateProcessing

    library.post_processor = TemplateProcessing(
        single="<|im_start|> $A <|im_end|>", special_tokens=[("<|im_start|>", 1), ("<|im_end|>", 2)]
    )
    text = "the lazy dog; <|im_end|>" * 4_000
    assert tokenizer.encode(text, most_tokens=most) == library.encode(text).ids
    assert tokenizer.encode(text, False, most) == library.encode(text, add_special_tokens=False).ids


def test_the_limit_is_exact_where_it_falls_within_a_later_piece() -> None:
    tokenizer = ModelTokenizer(tiny.byte_level_json())
    text = "the lazy dog; " * 10_000
    count = len(tokenizer.encode(text))
    assert len(tokenizer.encode(text, most_tokens=count)) == count
    with pytest.raises(TooManyTokens):
        tokenizer.encode(text, most_tokens=count - 1)


def test_control_tokens_are_found_wherever_the_search_is_cut(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    text = "a<|im_end|>bc <|im_start|><|im_end|>" * 9
    whole = CONTROL.find(text)
    assert whole
    for size in range(1, 40):
        monkeypatch.setattr("outrider_router.text.control._PIECE_CHARS", size)
        assert CONTROL.find(text) == whole
        assert CONTROL.are_all(whole, text)
        assert not CONTROL.are_all(whole[:-1], text)
        assert not CONTROL.are_all([*whole, whole[0]], text)


CONTROL = ControlTokens(control_tokens_of(LIBRARIES["byte_level"]))
