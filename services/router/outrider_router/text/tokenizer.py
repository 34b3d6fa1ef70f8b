"""A model's tokenizer: encoding with and without control tokens, and bytes for token ids.

Wraps the tokenizers library. Knows how to encode a rendered chat so that control tokens come only
from the places the template put them. Knows nothing of templates, requests or files: it is built
from the bytes of a `tokenizer.json`.
"""

import json
from array import array
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from itertools import chain
from typing import Any

from tokenizers import Encoding, Tokenizer

from outrider_router.text.control import ControlSpan, ControlTokens, control_tokens_of
from outrider_router.text.density import most_chars_per_token
from outrider_router.text.detokenize import TokenTable
from outrider_router.text.pieces import OVERLAP_CHARS, PIECE_CHARS, TooManyTokens, ids_in_pieces

# A text of so many letters per token that fits, and more, is told to be too long by its beginning.
_CHARS_PER_TOKEN = 8
_LEAST_PIECE_CHARS = 4 * OVERLAP_CHARS
# Kept as numbers, not as objects: millions of these are let go under the interpreter's lock.
_ID = "I"


class TokenizerError(ValueError):
    """The tokenizer file cannot be read or is of a kind that cannot be used."""


class ModelTokenizer:
    """Encodes text to ids and tells the bytes of ids, for one model.

    Encoding releases the interpreter lock and is safe from several threads. No token stands for
    more than `most_chars_per_token` characters; None where one can stand for any number.

    Args:
        source: content of `tokenizer.json`.

    Raises:
        TokenizerError: unreadable, or its decoder cannot be run token by token.
    """

    def __init__(self, source: bytes) -> None:
        self._source = source
        try:
            self._library = Tokenizer.from_str(source.decode())
        except Exception as error:  # the library raises bare Exception
            raise TokenizerError(f"tokenizer.json cannot be read: {error}") from error
        self._library.no_truncation()
        self._library.no_padding()
        self.control = ControlTokens(control_tokens_of(self._library))
        spec = json.loads(source)
        self.table = TokenTable(self._library, spec.get("decoder"))
        self.most_chars_per_token = most_chars_per_token(spec)

    @property
    def vocab_size(self) -> int:
        """Number of ids, added tokens included."""
        return self._library.get_vocab_size()

    def encode(
        self, text: str, add_special_tokens: bool = True, most_tokens: int | None = None
    ) -> list[int]:
        """Ids as the library gives them; control tokens written in `text` are matched.

        Raises:
            TooManyTokens: more than `most_tokens`; no more of the text is read than shows it.
        """
        if len(text) <= _piece_chars(most_tokens):
            ids = _encode(self._library, text, add_special_tokens).ids
            if most_tokens is not None and len(ids) > most_tokens:
                raise TooManyTokens(len(ids))
            return ids
        before, after = self._around if add_special_tokens else ([], [])
        pieces = _pieces(self._library, text, most_tokens)
        return _joined(chain([before], pieces, [after]), most_tokens)

    def encode_with_spans(
        self, text: str, spans: Sequence[ControlSpan], most_tokens: int | None = None
    ) -> list[int]:
        """Ids of `text` with control tokens at `spans` and nowhere else.

        Text between spans is encoded as the library encodes it between control tokens, so where
        `spans` are all the tokens it would match, the ids are its own.

        Raises:
            TooManyTokens: more than `most_tokens`; no more of the text is read than shows it.
        """
        if self.control.are_all(spans, text):
            return self.encode(text, add_special_tokens=False, most_tokens=most_tokens)
        return _joined(self._around_spans(text, spans, most_tokens), most_tokens)

    def encode_continuation(self, text: str, most_tokens: int | None = None) -> list[int]:
        """Ids of a text as a model would say it behind other text; nothing is a control token.

        Raises:
            TooManyTokens: more than `most_tokens`; no more of the text is read than shows it.
        """
        return _joined(self._plain(text, at_start=False, most_tokens=most_tokens), most_tokens)

    def token_text(self, token_id: int) -> str | None:
        """The token as the vocabulary spells it, None for an unknown id."""
        return self._library.id_to_token(token_id)

    def decode(self, token_ids: Sequence[int]) -> str:
        """Text of a whole sequence as the library gives it, control tokens shown."""
        return self._library.decode(list(token_ids), skip_special_tokens=False)

    def _around_spans(
        self, text: str, spans: Sequence[ControlSpan], most_tokens: int | None
    ) -> Iterator[Sequence[int]]:
        """Ids of the text between spans, and of the spans, in order."""
        done = 0
        for span in spans:
            yield from self._plain(text[done : span.start], done == 0, most_tokens)
            yield (span.token_id,)
            done = span.end
        yield from self._plain(text[done:], done == 0, most_tokens)

    def _plain(
        self, text: str, at_start: bool, most_tokens: int | None = None
    ) -> Sequence[Sequence[int]]:
        """Ids, in pieces, of a text in which nothing is a control token."""
        library = self._plain_at_start if at_start else self._plain_later
        found = _limited(_pieces(library, text, most_tokens), most_tokens)
        pieces = [array(_ID, ids) for ids in found]
        if all(map(self._forbidden.isdisjoint, pieces)):
            return pieces
        # Some vocabularies hold control tokens as ordinary pieces as well; a cut inside of each
        # leaves nothing that spells one.
        cuts = [span.start + 1 for span in self.control.find(text)]
        parts = (text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True))
        again = chain.from_iterable(_pieces(library, part, most_tokens) for part in parts)
        return [[one for one in ids if one not in self._forbidden] for ids in again]

    @cached_property
    def _around(self) -> tuple[list[int], list[int]]:
        """What the library adds before and behind a prompt."""
        found = _encode(self._library, "a", add_special_tokens=True)
        added = found.special_tokens_mask
        before = next((at for at, one in enumerate(added) if not one), len(added))
        behind = next((at for at, one in enumerate(reversed(added)) if not one), 0)
        return found.ids[:before], found.ids[len(added) - behind :]

    @cached_property
    def _forbidden(self) -> frozenset[int]:
        """Control ids that plain text must not give; unknown letters may give the unknown token."""
        unknown = getattr(self._library.model, "unk_token", None)
        return self.control.ids - {self._library.token_to_id(unknown) if unknown else None}

    @cached_property
    def _plain_at_start(self) -> Tokenizer:
        return self._without_control_tokens(at_start=True)

    @cached_property
    def _plain_later(self) -> Tokenizer:
        """The twin for text that does not open the prompt: some put a blank before the first."""
        return self._without_control_tokens(at_start=False)

    def _without_control_tokens(self, at_start: bool) -> Tokenizer:
        """The same tokenizer with control tokens declared special and special ones unmatched."""
        spec = json.loads(self._source)
        for token in spec.get("added_tokens", []):
            token["special"] = token["special"] or token["id"] in self.control.ids
        if not at_start:
            _never_prepend(spec.get("pre_tokenizer"))
        library = Tokenizer.from_str(json.dumps(spec))
        library.no_truncation()
        library.no_padding()
        library.encode_special_tokens = True
        return library


def _encode(library: Tokenizer, text: str, add_special_tokens: bool = False) -> Encoding:
    """One text as a batch: the library's call for a single one keeps the interpreter lock."""
    [encoding] = library.encode_batch_fast([text], add_special_tokens=add_special_tokens)
    return encoding


def _piece_chars(most_tokens: int | None) -> int:
    """How much text is encoded at once where no more than `most_tokens` are wanted."""
    if most_tokens is None:
        return PIECE_CHARS
    return min(max(most_tokens * _CHARS_PER_TOKEN, _LEAST_PIECE_CHARS), PIECE_CHARS)


def _pieces(library: Tokenizer, text: str, most_tokens: int | None) -> Iterator[Sequence[int]]:
    """The ids of a text of any length, without those that the library adds around a prompt.

    Raises:
        TooManyTokens: see `ids_in_pieces`; it limits a piece, not all of them.
    """
    characters = _piece_chars(most_tokens)
    if len(text) <= characters:
        return iter([_encode(library, text).ids] if text else [])
    return ids_in_pieces(library, text, characters, most_tokens=most_tokens)


def _limited(pieces: Iterable[Sequence[int]], most_tokens: int | None) -> Iterator[Sequence[int]]:
    """The same, up to the piece with which they are too many.

    Raises:
        TooManyTokens: more than `most_tokens`.
    """
    tokens = 0
    for piece in pieces:
        tokens += len(piece)
        if most_tokens is not None and tokens > most_tokens:
            raise TooManyTokens(f"more than {most_tokens}")
        yield piece


def _joined(pieces: Iterable[Sequence[int]], most_tokens: int | None = None) -> list[int]:
    """All ids, of which there may be `most_tokens`.

    Raises:
        TooManyTokens: there are more.
    """
    ids = array(_ID)
    for piece in _limited(pieces, most_tokens):
        ids.extend(piece)
    return ids.tolist()


def _never_prepend(pre_tokenizer: Any) -> None:
    """Turn off the blank that Metaspace puts before the first word of a whole input only."""
    if not isinstance(pre_tokenizer, dict):
        return
    if pre_tokenizer.get("prepend_scheme") == "first":
        pre_tokenizer["prepend_scheme"] = "never"
    for part in pre_tokenizer.get("pretokenizers", []):
        _never_prepend(part)
