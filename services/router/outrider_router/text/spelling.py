"""How single tokens are shown: as text where they are text, by their bytes where they are not."""

from dataclasses import dataclass

from outrider_router.text.tokenizer import ModelTokenizer


@dataclass(frozen=True)
class SpelledToken:
    """A token as text, and the bytes that it adds to an answer; a hidden token adds none."""

    text: str
    raw: bytes


class Spelling:
    """Spells the tokens of one model.

    Args:
        tokenizer: the model's.
        shown_special: special tokens that appear in answers.
        as_ids: spell every token as `token_id:7`, which no two tokens have in common.
    """

    def __init__(
        self, tokenizer: ModelTokenizer, shown_special: frozenset[int], as_ids: bool
    ) -> None:
        self._tokenizer = tokenizer
        self._shown_special = shown_special
        self._as_ids = as_ids

    def of(self, token_id: int) -> SpelledToken:
        """The token's spelling."""
        raw = self._raw(token_id)
        return SpelledToken(
            f"token_id:{token_id}" if self._as_ids else self._text(token_id, raw), raw
        )

    def _raw(self, token_id: int) -> bytes:
        table = self._tokenizer.table
        if token_id in self._shown_special:
            return table.special_bytes_of(token_id)
        return table.bytes_of(token_id)

    def _text(self, token_id: int, raw: bytes) -> str:
        if not raw:
            return self._tokenizer.token_text(token_id) or ""
        try:
            return raw.decode()
        except UnicodeDecodeError:
            # Part of a character: the form that OpenAI's service gives such tokens.
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)
