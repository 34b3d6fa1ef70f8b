"""Texts with more tokens than fit: refused exactly where they do not, and for little work."""

import itertools
import threading
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider_router.text.depth import MAX_DEPTH, is_too_deep
from outrider_router.text.pieces import TooManyTokens
from outrider_router.text.tokenizer import ModelTokenizer
from tests.support import tiny_tokenizers as tiny

TOKENIZERS = [ModelTokenizer(tiny.byte_level_json()), ModelTokenizer(tiny.sentencepiece_json())]
texts = st.lists(st.sampled_from(["Paris", " the", "x", "é🙂", "<|im_end|>", "\n", "aaaaaaa"])).map(
    "".join
)


@pytest.mark.parametrize("tokenizer", TOKENIZERS)
@given(text=texts, most=st.integers(1, 40))
def test_a_text_is_refused_where_it_has_more_tokens(
    tokenizer: ModelTokenizer, text: str, most: int
) -> None:
    spans = tokenizer.control.find(text)[:1]
    for encode in (
        tokenizer.encode,
        lambda text, **most: tokenizer.encode_with_spans(text, spans, **most),
    ):
        ids = encode(text)
        if len(ids) <= most:
            assert encode(text, most_tokens=most) == ids
    if len(tokenizer.encode(text)) > most:
        with pytest.raises(TooManyTokens):
            tokenizer.encode(text, most_tokens=most)


class Spy:
    """Notes how much is tokenised."""

    def __init__(self, library: Any) -> None:
        self._library = library
        self.characters = 0

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._library, name)
        if name not in ("encode", "encode_batch", "encode_batch_fast"):
            return found

        def noted(texts: str | list[str], **options: Any) -> Any:
            self.characters += sum(map(len, texts))
            return found(texts, **options)

        return noted


def test_of_a_text_that_is_far_too_long_only_a_part_is_tokenised(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tokenizer = ModelTokenizer(tiny.byte_level_json())
    spy = Spy(tokenizer._library)
    monkeypatch.setattr(tokenizer, "_library", spy)
    with pytest.raises(TooManyTokens, match="more than 100 tokens"):
        tokenizer.encode("the lazy dog; " * 100_000, most_tokens=100)
    assert spy.characters < 10_000


def test_of_a_predicted_text_that_is_far_too_long_only_a_part_is_tokenised(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tokenizer = ModelTokenizer(tiny.byte_level_json())
    ids = tokenizer.encode_continuation("the lazy dog; ")
    assert tokenizer.encode_continuation("the lazy dog; ", len(ids)) == ids
    with pytest.raises(TooManyTokens):
        tokenizer.encode_continuation("the lazy dog; ", len(ids) - 1)
    spy = Spy(tokenizer._plain_later)
    monkeypatch.setitem(tokenizer.__dict__, "_plain_later", spy)
    with pytest.raises(TooManyTokens):
        tokenizer.encode_continuation("the lazy dog; " * 100_000, 100)
    assert spy.characters < 10_000


def test_other_threads_go_on_while_a_text_is_tokenised() -> None:
    """The work before it matters: a lock that is asked for when it begins must still be given."""
    tokenizer = ModelTokenizer(tiny.byte_level_json())
    text = "the lazy dog; " * 20_000

    def work() -> None:
        sum(range(1_000_000))
        tokenizer.encode(text)

    thread = threading.Thread(target=work)
    times_s = [time.monotonic()]
    thread.start()
    while thread.is_alive():
        time.sleep(0.001)
        times_s.append(time.monotonic())
    longest_s = max(later - sooner for sooner, later in itertools.pairwise(times_s))
    assert longest_s < (times_s[-1] - times_s[0]) / 2


def test_depth_is_counted_through_lists_and_objects() -> None:
    value: Any = "x"
    for level in range(MAX_DEPTH + 1):
        assert not is_too_deep(value), level
        value = [1, value] if level % 2 else {"a": 1, "b": value}
    assert is_too_deep(value)
    assert not is_too_deep([[]] * 1000)
