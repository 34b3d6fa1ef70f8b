"""A grammar compiled, and one request's way through it (the engine's `Constraint`)."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from llguidance import LLMatcher
from numpy.typing import NDArray

from outrider_worker.constrain.position import Position
from outrider_worker.constrain.vocabulary import Vocabulary, allows


@dataclass(frozen=True)
class CompiledGrammar:
    """The start of a grammar, from which each request sets out with a copy.

    rewinds: steps can be taken back. Lark's `max_tokens=` and `stop=` make that impossible; such
        grammars are walked on a fork instead, which is slower and gives the same masks.
    """

    start: LLMatcher
    vocabulary: Vocabulary
    rewinds: bool

    def begin(self) -> "GrammarConstraint":
        """A new text, at its start."""
        return GrammarConstraint(Position(self.start.deep_copy(), self.vocabulary), self)


class GrammarConstraint:
    """One request's place in its grammar; see `engine.constraint.Constraint`.

    Drafts are walked on the matcher itself and taken back, so that what the lexer learns on the
    way is kept: a mask costs some ten microseconds then, not a tenth of a millisecond.
    """

    def __init__(self, position: Position, grammar: CompiledGrammar) -> None:
        self._position = position
        self._grammar = grammar

    @property
    def finished(self) -> bool:
        return self._position.complete

    def masks(self, drafts: Sequence[int]) -> NDArray[np.int32]:
        rows = self._grammar.vocabulary.blank_rows(len(drafts) + 1)
        rewinds = self._grammar.rewinds
        walker = self._position if rewinds or not drafts else self._position.fork()
        walked = _walk(walker, drafts, rows)
        if walker is self._position:
            walker.back(walked)
        return rows

    def advance(self, token_ids: Sequence[int]) -> None:
        for token_id in token_ids:
            self._position.step(token_id)


def _walk(walker: Position, drafts: Sequence[int], rows: NDArray[np.int32]) -> int:
    """Fill the rows along the drafts up to the first forbidden one; returns the steps taken."""
    walker.fill(rows, 0)
    for at, draft in enumerate(drafts):
        if not allows(rows[at], draft):
            return at
        walker.step(draft)
        walker.fill(rows, at + 1)
    return len(drafts)
