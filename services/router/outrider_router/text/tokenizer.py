"""A model's tokenizer: encoding with and without control tokens, and bytes for token ids.

Wraps the tokenizers library. Knows how to encode a rendered chat so that control tokens come only
from the places the template put them. Knows nothing of templates, requests or files: it is built
from the bytes of a `tokenizer.json`.
"""

import json
from collections.abc import Sequence
from functools import cached_property
from typing import Any

from tokenizers import Encoding, Tokenizer

from outrider_router.text.control import ControlSpan, ControlTokens, control_tokens_of
from outrider_router.text.detokenize import TokenTable

# Of a text that is far too long, as much is tokenised as shows it: letters per token that fits, and
# how many more tokens than fit they must give, since a cut text may have more than its share.
_SAMPLE_CHARS = 8
_SAMPLE_EXCESS, _SAMPLE_EXCESS_TOKENS = 1.5, 64


class TokenizerError(ValueError):
    """The tokenizer file cannot be read or is of a kind that cannot be used."""


class TooManyTokens(ValueError):
    """A text has more tokens than it may have; `told` says how many as far as that is known."""

    def __init__(self, told: int | str) -> None:
        super().__init__(f"the text has {told} tokens")
        self.told = told


class ModelTokenizer:
    """Encodes text to ids and tells the bytes of ids, for one model.

    Encoding releases the interpreter lock and is safe from several threads. No token stands for
    more than `most_chars_per_token` characters.

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
        self.table = TokenTable(self._library, json.loads(source).get("decoder"))
        longest = max(map(len, self._library.get_vocab()), default=1)
        # Unicode normalisation composes characters, at most four into one.
        self.most_chars_per_token = longest * (1 if self._library.normalizer is None else 4)

    @property
    def vocab_size(self) -> int:
        """Number of ids, added tokens included."""
        return self._library.get_vocab_size()

    def encode(
        self, text: str, add_special_tokens: bool = True, most_tokens: int | None = None
    ) -> list[int]:
        """Ids as the library gives them; control tokens written in `text` are matched.

        Raises:
            TooManyTokens: more than `most_tokens`. Making a list of them would hold up all threads
                for as long as there are many.
        """
        self.refuse_longer(text, most_tokens)
        encoding = _encode(self._library, text, add_special_tokens)
        if most_tokens is not None and len(encoding) > most_tokens:
            raise TooManyTokens(len(encoding))
        return encoding.ids

    def refuse_longer(self, text: str, most_tokens: int | None) -> None:
        """Refuse a text that is far too long by a part of it, without the time that all would take.

        Raises:
            TooManyTokens: the part alone has more than that.
        """
        if most_tokens is None or len(text) <= most_tokens * _SAMPLE_CHARS:
            return
        part = text[: most_tokens * _SAMPLE_CHARS]
        enough = most_tokens * _SAMPLE_EXCESS + _SAMPLE_EXCESS_TOKENS
        if len(_encode(self._library, part)) > enough:
            raise TooManyTokens(f"more than {most_tokens}")

    def encode_with_spans(
        self, text: str, spans: Sequence[ControlSpan], most_tokens: int | None = None
    ) -> list[int]:
        """Ids of `text` with control tokens at `spans` and nowhere else.

        Text between spans is encoded as the library encodes it between control tokens, so where
        `spans` are all the tokens it would match, the ids are its own.

        Raises:
            TooManyTokens: more than `most_tokens`.
        """
        if list(spans) == self.control.find(text):
            return self.encode(text, add_special_tokens=False, most_tokens=most_tokens)
        self.refuse_longer(text, most_tokens)
        ids: list[int] = []
        done = 0
        for span in spans:
            ids += self._encode_plain(text[done : span.start], at_start=done == 0)
            ids.append(span.token_id)
            done = span.end
        return ids + self._encode_plain(text[done:], at_start=done == 0)

    def encode_continuation(self, text: str) -> list[int]:
        """Ids of `text` as a model would say it behind other text; nothing is a control token."""
        return self._encode_plain(text, at_start=False)

    def token_text(self, token_id: int) -> str | None:
        """The token as the vocabulary spells it, None for an unknown id."""
        return self._library.id_to_token(token_id)

    def decode(self, token_ids: Sequence[int]) -> str:
        """Text of a whole sequence as the library gives it, control tokens shown."""
        return self._library.decode(list(token_ids), skip_special_tokens=False)

    def _encode_plain(self, text: str, at_start: bool) -> list[int]:
        """Ids of a text in which nothing is a control token."""
        if not text:
            return []
        library = self._plain_at_start if at_start else self._plain_later
        ids = _encode(library, text).ids
        if self._forbidden.isdisjoint(ids):
            return ids
        # Some vocabularies hold control tokens as ordinary pieces as well; a cut inside of each
        # leaves nothing that spells one.
        cuts = [span.start + 1 for span in self.control.find(text)]
        parts = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
        return [
            token_id
            for part in parts
            for token_id in _encode(library, part).ids
            if token_id not in self._forbidden
        ]

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


def _never_prepend(pre_tokenizer: Any) -> None:
    """Turn off the blank that Metaspace puts before the first word of a whole input only."""
    if not isinstance(pre_tokenizer, dict):
        return
    if pre_tokenizer.get("prepend_scheme") == "first":
        pre_tokenizer["prepend_scheme"] = "never"
    for part in pre_tokenizer.get("pretokenizers", []):
        _never_prepend(part)
