"""Control tokens: which they are, where they stand in a text, and how content is kept from them.

A chat template marks roles and turns with control tokens. Whoever may write their text into a
message could forge a turn, so text written by clients must never become one. Two tools do it:

* `ControlTokens.find` says where the tokens stand, as the tokenizers library would match them.
* `ContentMask` puts a private-use letter in place of each letter that would let content form a
  control token, alone or together with the template's text around it. The length of a text does
  not change, so positions found in the masked text hold in the unmasked one.

Knows nothing of templates or of how text between control tokens is encoded.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

from tokenizers import Tokenizer

_OPENING, _CLOSING = "<[{|", ">]}|"
# Checked words of the API, which templates compare: a role, and the kind of a tool.
_ROLE = "role"
_TOOL_TYPE = ("type", "function")
# Supplementary private-use planes: no text in use has these letters.
_PRIVATE_FIRST, _PRIVATE_LAST = 0xF0000, 0x10FFFD
_PIECE_CHARS = 1 << 16
_PRIVATE = re.compile(f"[{chr(_PRIVATE_FIRST)}-{chr(_PRIVATE_LAST)}]")


class MaskError(ValueError):
    """The texts use up the private-use letters that a mask needs."""


@dataclass(frozen=True)
class ControlToken:
    """One control token and how the library matches it."""

    token_id: int
    text: str
    special: bool
    strips_left: bool = False
    strips_right: bool = False
    single_word: bool = False


@dataclass(frozen=True)
class ControlSpan:
    """A control token found in a text, surrounding blanks that it swallows included."""

    start: int
    end: int
    token_id: int


def is_control(text: str, special: bool) -> bool:
    """True for special tokens, and for other added tokens that look like a marker.

    `</think>` and `<tool_call>` are not special for the library but steer the model all the same;
    added words and runs of blanks are plain text.
    """
    looks_like_marker = len(text) > 2 and text[0] in _OPENING and text[-1] in _CLOSING
    return special or looks_like_marker


def control_tokens_of(library: Tokenizer) -> list[ControlToken]:
    """The control tokens among a tokenizer's added tokens."""
    return [
        ControlToken(
            token_id, token.content, token.special, token.lstrip, token.rstrip, token.single_word
        )
        for token_id, token in library.get_added_tokens_decoder().items()
        if token.content and is_control(token.content, token.special)
    ]


class ControlTokens:
    """A tokenizer's control tokens, ready to be looked for."""

    def __init__(self, tokens: Iterable[ControlToken]) -> None:
        self._by_text = {token.text: token for token in tokens}
        self.ids = frozenset(token.token_id for token in self._by_text.values())
        self.letters = sorted({letter for text in self._by_text for letter in text})
        self._finder = re.compile(_any_of(self._by_text)) if self._by_text else None
        self._longest = max(map(len, self._by_text), default=0)
        self._all = _Former(list(self._by_text))
        self._special = _Former([t.text for t in self._by_text.values() if t.special])

    def forming_places(self, text: str, special_only: bool = False) -> set[int]:
        """Letters of `text` that form, or could help to form, a token or a special token."""
        return (self._special if special_only else self._all).places(text)

    def find(self, text: str) -> list[ControlSpan]:
        """Where control tokens stand in `text`, leftmost first, the longest at one place."""
        return list(self._spans(text))

    def are_all(self, spans: Sequence[ControlSpan], text: str) -> bool:
        """Whether `spans` are what `find` would give; no more is looked for than tells."""
        pairs = zip_longest(spans, self._spans(text))
        return all(given == found for given, found in pairs)

    def _spans(self, text: str) -> Iterator[ControlSpan]:
        floor = 0
        for match in self._matches(text):
            token = self._by_text[match.group()]
            start, end = match.span()
            if token.single_word and _touches_word(text, start, end):
                continue
            start = _skip_blanks_back(text, start, floor) if token.strips_left else start
            floor = _skip_blanks(text, end) if token.strips_right else end
            yield ControlSpan(start, floor, token.token_id)

    def _matches(self, text: str) -> Iterator[re.Match[str]]:
        """Tokens as they are written, looked for piece by piece.

        A search holds up all threads until it is through, which takes long in a long text.
        """
        at = 0
        while self._finder is not None and at < len(text):
            last = at + _PIECE_CHARS
            for match in self._finder.finditer(text, at, last + self._longest):
                if match.start() >= last:
                    break
                at = match.end()
                yield match
            at = max(at, last)


class ContentMask:
    """Disguises content for one prompt; `unmask` gives the original back, of the same length.

    Args:
        control: what content must not form.
        texts: every text that meets the mask, the template's source included; their letters are
            never used as a disguise.

    Raises:
        MaskError: no block of private-use letters is free.
    """

    def __init__(self, control: ControlTokens, texts: Iterable[str]) -> None:
        self._control = control
        base = _free_block(len(control.letters), texts)
        self._to_mask = {letter: chr(base + at) for at, letter in enumerate(control.letters)}
        self._used: set[str] = set()

    def mask(self, text: str, special_only: bool = False) -> str:
        """`text` with a disguise wherever a control token could begin or end."""
        pieces: list[str] = []
        done = 0
        for place in sorted(self._control.forming_places(text, special_only)):
            pieces += (text[done:place], self._to_mask[text[place]])
            self._used.add(text[place])
            done = place + 1
        return "".join((*pieces, text[done:])) if pieces else text

    def mask_messages(self, messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Messages with every text masked but roles.

        What the assistant said keeps markers that are not special: templates look for `</think>`
        there to drop old reasoning, and the model wrote them itself.
        """
        return [
            {
                key: value
                if key == _ROLE
                else self.mask_value(value, special_only=message.get("role") == "assistant")
                for key, value in message.items()
            }
            for message in messages
        ]

    def mask_value(self, value: Any, special_only: bool = False) -> Any:
        """Any value of JSON with every text in it masked, keys included."""
        if isinstance(value, str):
            return self.mask(value, special_only)
        if isinstance(value, Mapping):
            return {
                self.mask(key): item
                if (key, item) == _TOOL_TYPE
                else self.mask_value(item, special_only)
                for key, item in value.items()
            }
        if isinstance(value, list | tuple):
            return [self.mask_value(item, special_only) for item in value]
        return value

    def unmask(self, text: str) -> str:
        """The text without its disguise."""
        # Letter by letter: a translation looks each up in a table, a hundred times as long.
        for letter in self._used:
            text = text.replace(self._to_mask[letter], letter)
        return text


class _Former:
    """Finds the places at which a text forms, or could help to form, one of the tokens."""

    def __init__(self, tokens: Sequence[str]) -> None:
        self._tokens = tokens
        # A look-ahead, so that tokens that overlap are all found.
        self._whole = re.compile(f"(?={_any_of(tokens)})") if tokens else None
        self._heads = {token[:size] for token in tokens for size in range(1, len(token))}
        self._tails = {token[size:] for token in tokens for size in range(1, len(token))}
        self._longest = max(map(len, tokens), default=0)

    def places(self, text: str) -> set[int]:
        """Indices of the letters to disguise."""
        if self._whole is None or not text.strip():
            return set()
        # Templates trim: what stands at an edge after trimming is what meets the template's text.
        start, end = len(text) - len(text.lstrip()), len(text.rstrip())
        found = set(self._whole_ones(self._whole, text))
        found |= self._beginnings(text, end)
        if self._ends_or_continues(text[start : min(end, start + self._longest)], end - start):
            found.add(start)
        return found

    def _whole_ones(self, pattern: re.Pattern[str], text: str) -> Iterator[int]:
        """Places at which a token stands, looked for piece by piece, as `find` does."""
        for first in range(0, len(text), _PIECE_CHARS):
            last = first + _PIECE_CHARS
            for match in pattern.finditer(text, first, last + self._longest):
                if match.start() < last:
                    yield match.start()

    def _beginnings(self, text: str, end: int) -> set[int]:
        """Places near the end from which a token could begin and go on in the template."""
        first = max(0, end - self._longest)
        return {at for at in range(first, end) if text[at:end] in self._heads}

    def _ends_or_continues(self, core: str, core_length: int) -> bool:
        """True if a token begun in the template could end in the text or run all through it."""
        if any(core[:size] in self._tails for size in range(1, len(core) + 1)):
            return True
        return core_length < self._longest and any(core in token for token in self._tokens)


def _any_of(texts: Iterable[str]) -> str:
    """A pattern for any of the texts, the longest that fits.

    Common beginnings are tried once: some models have thousands of tokens that begin alike, and
    content that repeats their first letters must not cost that many comparisons each time.
    """
    by_first: dict[str, list[str]] = {}
    may_end = False
    for text in texts:
        if text:
            by_first.setdefault(text[0], []).append(text[1:])
        else:
            may_end = True
    branches = [re.escape(first) + _any_of(rests) for first, rests in by_first.items()]
    if len(branches) == 1 and not may_end:
        return branches[0]
    return f"(?:{'|'.join(branches)}){'?' if may_end else ''}" if branches else ""


def _touches_word(text: str, start: int, end: int) -> bool:
    before, after = text[start - 1 : start], text[end : end + 1]
    return any(letter.isalnum() or letter == "_" for letter in (before, after) if letter)


def _skip_blanks(text: str, at: int) -> int:
    while at < len(text) and text[at].isspace():
        at += 1
    return at


def _skip_blanks_back(text: str, at: int, floor: int) -> int:
    while at > floor and text[at - 1].isspace():
        at -= 1
    return at


def _private_letters(text: str) -> Iterator[str]:
    for at in range(0, len(text), _PIECE_CHARS):
        yield from _PRIVATE.findall(text, at, at + _PIECE_CHARS)


def _free_block(size: int, texts: Iterable[str]) -> int:
    """The first code point of `size` private-use letters that none of the texts has."""
    strange = (text for text in texts if not text.isascii())
    used = {ord(letter) for text in strange for letter in _private_letters(text)}
    for base in range(_PRIVATE_FIRST, _PRIVATE_LAST - size, max(size, 1)):
        if used.isdisjoint(range(base, base + size)):
            return base
    raise MaskError("the messages hold too many different private-use characters")
