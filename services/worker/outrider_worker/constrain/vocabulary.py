"""A model's tokens as the grammar library sees them: the bytes of each, and those that end a text.

Knows no grammar. Built once per worker, for it takes 0.7 s for 49k tokens, and shared by
all matchers, which only read it.
"""

import json
from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from llguidance import LLTokenizer, TokenizerWrapper
from numpy.typing import NDArray

WORD_BITS = 32


class GrammarsUnavailable(Exception):
    """This model cannot be held to a grammar; the message says why."""


@dataclass(frozen=True)
class Vocabulary:
    """tokenizer: what matchers read; it knows ids below `size` only.

    size: ids the model can emit, at least as many as the tokenizer has.
    end_ids: tokens that end a text, one at least.
    """

    tokenizer: LLTokenizer
    size: int
    end_ids: frozenset[int]

    @classmethod
    def load(cls, folder: Path, size: int, end_ids: Collection[int]) -> "Vocabulary":
        """Read `tokenizer.json`: byte-level BPE or SentencePiece with byte fallback.

        Raises:
            GrammarsUnavailable: no such file, no end id, or a tokenizer that does not fit.
        """
        file = folder / "tokenizer.json"
        if not file.exists():
            raise GrammarsUnavailable("the model has no tokenizer.json")
        if not end_ids:
            raise GrammarsUnavailable("the model names no end-of-sequence token")
        try:
            text = file.read_text(encoding="utf-8")
            tokenizer = _tokenizer(text, size, sorted(end_ids))
        except ValueError as error:
            raise GrammarsUnavailable(f"tokenizer.json does not fit: {error}") from error
        return cls(tokenizer, size, frozenset(end_ids))

    @property
    def words(self) -> int:
        """Words of a mask row."""
        return -(-self.size // WORD_BITS)

    @cached_property
    def end_row(self) -> NDArray[np.int32]:
        """The mask row of a text that is over: end ids alone. int32 [words]."""
        row = np.zeros(self.words, np.uint32)
        for token_id in self.end_ids:
            row[token_id // WORD_BITS] |= np.uint32(1 << token_id % WORD_BITS)
        return row.view(np.int32)

    def blank_rows(self, rows: int) -> NDArray[np.int32]:
        """Rows that allow everything. int32 [rows, words]."""
        return np.full((rows, self.words), -1, np.int32)


def _tokenizer(text: str, size: int, end_ids: list[int]) -> LLTokenizer:
    """The library's tokenizer, with control tokens that no text is spelled by.

    Where a grammar leaves one text only, the library allows just the tokens that its tokenizer
    makes of it, which for a text like `<|im_end|>` is the control token; and that one it then
    refuses as text. So what it spells texts by here knows no control tokens.
    """
    # Slices speed masks up and take long to make; these two make none.
    whole = LLTokenizer(text, n_vocab=size, eos_token=end_ids, slices=[])
    control = {token_id for token_id in range(size) if whole.is_special_token(token_id)}
    fields = json.loads(text)
    added = fields.get("added_tokens") or []
    fields["added_tokens"] = [token for token in added if token["id"] not in control]
    plain = LLTokenizer(json.dumps(fields), n_vocab=size, eos_token=end_ids, slices=[])
    parts = TokenizerWrapper(_Parts(whole, plain, control, size))
    return LLTokenizer(parts, n_vocab=size, eos_token=end_ids)


class _Parts:
    """What the library builds a tokenizer from: the bytes of each token, and how text is spelled.

    Args:
        whole: knows all tokens.
        plain: spells text.
        control: ids that are no text.
        size: number of ids.
    """

    bos_token_id = None

    def __init__(
        self, whole: LLTokenizer, plain: LLTokenizer, control: Collection[int], size: int
    ) -> None:
        self.eos_token_id = whole.eos_token
        self.tokens = [whole.decode_bytes([token_id]) for token_id in range(size)]
        self.special_token_ids = sorted(control)
        self._plain = plain

    def __call__(self, text: bytes) -> list[int]:
        return self._plain.tokenize_bytes(text)


def allows(row: NDArray[np.int32], token_id: int) -> bool:
    """Whether a mask row allows a token; false for an id that has no bit in it."""
    if not 0 <= token_id < WORD_BITS * len(row):
        return False
    return bool(int(row[token_id // WORD_BITS]) >> token_id % WORD_BITS & 1)
