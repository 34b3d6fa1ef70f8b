"""From token ids back to text, token by token, by way of bytes.

One token may hold part of a character, and one character may span tokens. So each id is turned
into its bytes first, and bytes become text only once they are whole characters. Generated text
continues a prompt: the blank that some decoders strip from the start of a sequence is kept.
"""

import codecs
import re
from collections.abc import Iterable
from typing import Any

from tokenizers import Tokenizer

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
# Decoder steps that matter only for a whole sequence.
_WHOLE_SEQUENCE_STEPS = frozenset({"Fuse", "Strip"})


class DecoderError(ValueError):
    """The tokenizer's decoder cannot be run token by token."""


class TokenTable:
    """Bytes of every token id of one vocabulary; special tokens have none.

    Args:
        library: the tokenizer.
        decoder: the `decoder` object of `tokenizer.json`.

    Raises:
        DecoderError: a decoder of another kind than byte-level or SentencePiece.
    """

    def __init__(self, library: Tokenizer, decoder: dict[str, Any] | None) -> None:
        self._library = library
        added = library.get_added_tokens_decoder().items()
        self._special = {id_: token.content.encode() for id_, token in added if token.special}
        self._bytes = {id_: token.content.encode() for id_, token in added if not token.special}
        self._bytes |= dict.fromkeys(self._special, b"")
        self._byte_level = False
        self._byte_fallback = False
        self._replacements: list[tuple[str, str]] = []
        for step in _steps(decoder):
            self._read_step(step)

    def _read_step(self, step: dict[str, Any]) -> None:
        match step["type"]:
            case "ByteLevel":
                self._byte_level = True
            case "ByteFallback":
                self._byte_fallback = True
            case "Metaspace":
                self._replacements.append((step["replacement"], " "))
            case "Replace" if "String" in step["pattern"]:
                self._replacements.append((step["pattern"]["String"], step["content"]))
            case kind if kind not in _WHOLE_SEQUENCE_STEPS:
                raise DecoderError(f"decoder step {kind!r} cannot be run token by token")

    def special_ids(self, within: str | None = None) -> frozenset[int]:
        """Ids of all special tokens, or of those whose text occurs in `within`."""
        return frozenset(
            token_id
            for token_id, token in self._special.items()
            if within is None or token.decode() in within
        )

    def special_bytes_of(self, token_id: int) -> bytes:
        """The bytes of a special token's text."""
        return self._special[token_id]

    def bytes_of(self, token_id: int) -> bytes:
        """The token's bytes; empty for special tokens and for ids outside the vocabulary."""
        known = self._bytes.get(token_id)
        if known is None:
            known = self._bytes[token_id] = self._spell(self._library.id_to_token(token_id))
        return known

    def _spell(self, token: str | None) -> bytes:
        if token is None:
            return b""
        if self._byte_level:
            return b"".join(BYTE_OF_LETTER.get(letter) or letter.encode() for letter in token)
        if self._byte_fallback and (match := _BYTE_TOKEN.fullmatch(token)):
            return bytes.fromhex(match.group(1))
        for pattern, content in self._replacements:
            token = token.replace(pattern, content)
        return token.encode()


class IncrementalDecoder:
    """Turns one choice's tokens into text, holding back characters that are not whole.

    Bytes that can never become a character turn into U+FFFD. A character still unfinished at the
    end is never shown, so a shorter answer is always a prefix of a longer one.

    Args:
        table: bytes of token ids.
        shown_special: special tokens that appear with the text the vocabulary gives them.
    """

    def __init__(self, table: TokenTable, shown_special: frozenset[int] = frozenset()) -> None:
        self._table = table
        self._shown_special = shown_special
        self._bytes_of = self._bytes_with_special if shown_special else table.bytes_of
        self._utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._holds_back = False

    def push(self, token_ids: Iterable[int]) -> str:
        """Text that became certain with these tokens; may be empty."""
        raw = b"".join(map(self._bytes_of, token_ids))
        if raw.isascii() and not self._holds_back:
            return raw.decode("ascii")
        text = self._utf8.decode(raw)
        self._holds_back = self._utf8.getstate()[0] != b""
        return text

    def _bytes_with_special(self, token_id: int) -> bytes:
        if token_id in self._shown_special:
            return self._table.special_bytes_of(token_id)
        return self._table.bytes_of(token_id)


def _steps(decoder: dict[str, Any] | None) -> list[dict[str, Any]]:
    """The decoder's steps in order, sequences unfolded.

    Raises:
        DecoderError: there is none.
    """
    if decoder is None:
        raise DecoderError("the tokenizer has no decoder")
    if decoder["type"] != "Sequence":
        return [decoder]
    return [step for inner in decoder["decoders"] for step in _steps(inner)]


def _byte_alphabet() -> dict[str, bytes]:
    """Letter to byte of byte-level vocabularies (GPT-2): printable bytes stand for themselves,
    the others for the letters from U+0100 on, in order.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    letters = {chr(byte): bytes([byte]) for byte in printable}
    return letters | {chr(0x100 + at): bytes([byte]) for at, byte in enumerate(others)}


BYTE_OF_LETTER = _byte_alphabet()
