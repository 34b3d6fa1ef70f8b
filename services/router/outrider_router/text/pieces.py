"""A long text as tokens, piece by piece: the ids that the library makes of the whole, but for the
two cases named at the end.

While the library works, other threads run; what it has found it hands over and drops under the
interpreter's lock, and with millions of tokens at once that keeps everybody waiting. In pieces,
nobody waits for more than one of them, memory is that of one, and whoever has seen enough may stop.

Pieces overlap, so that each knows what stands around the place where it meets the next. They meet
where they agree: all tokens of the overlap's middle are the same in both, at the same places. What
a tokenizer makes of a text does not depend on what lies beyond a place where it sets a boundary
either way: a word ends there, or the merges within a word (BPE) never crossed it. Where two pieces
do not agree, as may be in a word longer than the overlap, the first is made anew and twice as long,
unless it shows by then that the text is too long. Nor do they meet among blanks of which the
overlap does not show the end: a line's end behind them may make them one word with what stands
before, and some added tokens swallow all of them.

Where a number ends cannot be seen from its middle: a vocabulary that groups digits from the right
may find those of a number with more than some five hundred of them grouped otherwise. And a
vocabulary that seeks the best of all divisions (Unigram) may divide a run of like letters or line
ends otherwise, if it has more than some five hundred: as well as in the whole, or nearly.
"""

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass

from tokenizers import Tokenizer

PIECE_CHARS = 1 << 16
OVERLAP_CHARS = 1 << 10
# A beginning may have more tokens than it has as a part of the whole, but not twice as many.
_SURELY_TOO_MANY = 2


class TooManyTokens(ValueError):
    """A text has more tokens than it may have; `told` says how many as far as that is known."""

    def __init__(self, told: int | str) -> None:
        super().__init__(f"the text has {told} tokens")
        self.told = told


@dataclass(frozen=True)
class _Piece:
    """Tokens of a part of a text.

    Attributes:
        start, end: where the part stands in the text.
        places: of each token, counted from `start`.
        words: to which of the part's words each token belongs; None where it is no word's.
    """

    start: int
    end: int
    ids: list[int]
    places: list[tuple[int, int]]
    words: list[int | None]

    @classmethod
    def of(cls, library: Tokenizer, text: str, start: int, characters: int) -> "_Piece":
        end = min(start + characters, len(text))
        [found] = library.encode_batch([text[start:end]], add_special_tokens=False)
        return cls(start, end, found.ids, found.offsets, found.word_ids)

    def first_from(self, place: int) -> int:
        """The first token that begins at this place of the text or later; one too many if none."""
        return bisect_left(self.places, (place - self.start,))

    def boundary_from(self, place: int) -> int:
        """Where that token begins."""
        token = self.first_from(place)
        return self.start + self.places[token][0] if token < len(self.places) else place

    def looks(self, token: int) -> tuple[int, int, int, bool]:
        """A token, where it stands in the text, and whether it begins a word."""
        begin, end = self.places[token]
        is_first = not token or self.words[token] != self.words[token - 1]
        return self.ids[token], self.start + begin, self.start + end, is_first

    def cuts_at(self, token: int) -> bool:
        """Whether the token begins behind all of the one before: some letters have several."""
        return token > 0 and self.places[token][0] >= self.places[token - 1][1]


def ids_in_pieces(
    library: Tokenizer,
    text: str,
    piece_chars: int = PIECE_CHARS,
    overlap_chars: int = OVERLAP_CHARS,
    most_tokens: int | None = None,
) -> Iterator[list[int]]:
    """The ids of `text`, without those that the library adds around a prompt, in order.

    Args:
        library: the tokenizer.
        text: of any length.
        piece_chars: how much of it is encoded at once, unless pieces do not agree.
        overlap_chars: what two pieces share; less than half of `piece_chars`.
        most_tokens: keeps a piece from growing once it has more than twice as many. How many
            there are in all is for the caller to count.

    Raises:
        TooManyTokens: pieces do not agree, and the first has more than twice `most_tokens`. Blanks
            count as the tokens they are, even if a token that swallows them should follow.
    """
    piece, done = _Piece.of(library, text, 0, piece_chars), 0
    while piece.end < len(text):
        start = piece.boundary_from(piece.end - overlap_chars)
        later = _Piece.of(library, text, start, piece_chars)
        meeting = _meeting(piece, later, text)
        if meeting is None:
            if most_tokens is not None and len(piece.ids) > _SURELY_TOO_MANY * most_tokens:
                raise TooManyTokens(f"more than {most_tokens}")
            piece = _Piece.of(library, text, piece.start, 2 * (piece.end - piece.start))
            continue
        yield piece.ids[done : meeting[0]]
        piece, done = later, meeting[1]
    yield piece.ids[done:]


def _meeting(piece: _Piece, later: _Piece, text: str) -> tuple[int, int] | None:
    """The same token in both, at which the second can take over; None if they do not agree."""
    margin = (piece.end - later.start) // 4
    first, last = (later.start + margin, piece.end - margin)
    mine = range(piece.first_from(first), piece.first_from(last))
    its = range(later.first_from(first), later.first_from(last))
    if list(map(piece.looks, mine)) != list(map(later.looks, its)):
        return None
    blanks = first + len(text[first:last].rstrip())
    middle = len(mine) // 2
    cuts = (at for at in range(middle, len(mine)) if at and piece.cuts_at(mine[at]))
    cut = next(cuts, None)
    if cut is None or piece.start + piece.places[mine[cut]][0] > blanks:
        return None
    return mine[cut], its[cut]
