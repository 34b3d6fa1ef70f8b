"""Long texts in pieces: the library's ids, however they are cut, and nobody waits meanwhile."""

import json
from itertools import chain
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, Tokenizer, normalizers, pre_tokenizers

from outrider_router.text.control import ControlTokens, control_tokens_of
from outrider_router.text.pieces import TooManyTokens, _Piece, ids_in_pieces
from outrider_router.text.tokenizer import ModelTokenizer
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


def taking_whole_words() -> Tokenizer:
    """Words of the vocabulary are taken whole, even those that no merges make."""
    spec = json.loads(tiny.byte_level_json())
    vocab = spec["model"]["vocab"]
    vocab |= {word: 500 + at for at, word in enumerate(["ĠParis", "aaaaaaa", "aaaaaaaaaaaaaa"])}
    return Tokenizer.from_str(json.dumps(spec | {"model": spec["model"] | {"ignore_merges": True}}))


def swallowing_blanks() -> Tokenizer:
    """With tokens that take the blanks before them, or behind."""
    library = Tokenizer.from_str(tiny.byte_level_json().decode())
    library.add_tokens([AddedToken("<mask>", lstrip=True), AddedToken("<user>", rstrip=True)])
    return library


LIBRARIES = {
    "byte_level": Tokenizer.from_str(tiny.byte_level_json().decode()),
    "metaspace": Tokenizer.from_str(tiny.sentencepiece_json("first").decode()),
    "one_word": Tokenizer.from_str(tiny.sentencepiece_json("normalizer").decode()),
    "grouping_digits": grouping_digits(),
    "taking_whole_words": taking_whole_words(),
    "swallowing_blanks": swallowing_blanks(),
}
atoms = st.sampled_from(
    [
        "Paris",
        " the",
        "\n",
        "   ",
        "aaaaaaa",
        "é",
        "e\u0301",
        "🙂",
        "1",
        "1234",
        "<|im_end|>",
        "==",
        "<mask>",
        "<user>",
    ]
)
runs = st.tuples(atoms, st.integers(1, 60)).map(lambda run: run[0] * run[1])
texts = st.lists(st.one_of(atoms, runs), max_size=120).map("".join)


@pytest.mark.parametrize("name", LIBRARIES)
@given(text=texts, size=st.sampled_from(SIZES))
def test_pieces_together_are_the_librarys_ids(name: str, text: str, size: tuple[int, int]) -> None:
    library = LIBRARIES[name]
    whole = library.encode(text, add_special_tokens=False).ids
    assert list(chain.from_iterable(ids_in_pieces(library, text, *size))) == whole


def test_blanks_that_a_token_swallows_may_be_more_than_a_piece(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("outrider_router.text.tokenizer.PIECE_CHARS", 4_096)
    library = swallowing_blanks()
    tokenizer = ModelTokenizer(library.to_str().encode())
    for text in ("a" + " " * 12_000 + "<mask>a", "a<user>" + " " * 12_000 + "a"):
        assert tokenizer.encode(text) == library.encode(text).ids
        assert len(tokenizer.encode(text)) == 3


def test_a_lines_end_may_stand_behind_more_blanks_than_a_piece_has() -> None:
    """It makes them one word with the line's end before, and tokens of the two together."""
    library = LIBRARIES["grouping_digits"]
    text = "a\n" + " " * 3_001 + "\nb"
    whole = library.encode(text).ids
    assert whole != library.encode(text[:-2]).ids + library.encode(text[-2:]).ids
    assert list(chain.from_iterable(ids_in_pieces(library, text, 256, 64))) == whole


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


@pytest.mark.parametrize(
    "text",
    [
        "e" + "\u0301\u0323" * 30_000,  # composed: the marks' order depends on the last of them
        "the lazy dog; " * 400 + "e" + "\u0301\u0323" * 30_000,
    ],
)
def test_one_endless_word_is_not_read_to_its_end_to_see_that_it_is_too_long(
    text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[int] = []
    make = _Piece.of

    def reading(library: Tokenizer, text: str, start: int, characters: int) -> _Piece:
        read.append(characters)
        return make(library, text, start, characters)

    monkeypatch.setattr(_Piece, "of", reading)
    tokenizer = ModelTokenizer(grouping_digits().to_str().encode())
    with pytest.raises(TooManyTokens, match="more than 1000 tokens"):
        tokenizer.encode(text, most_tokens=1_000)
    assert max(read) == 8_000


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
