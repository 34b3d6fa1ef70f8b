"""A place in a grammar that can be moved on and back: the matcher, and what lies behind the end.

The matcher takes the text alone. The end ids are counted here, because the library keeps no
account of an end id that comes where nothing else could: taking it back would take back text.
"""

import numpy as np
from llguidance import LLMatcher
from llguidance.numpy import fill_next_token_bitmask
from numpy.typing import NDArray

from outrider_worker.constrain.vocabulary import Vocabulary
from outrider_worker.engine.constraint import ConstraintFailed, ConstraintViolated


class Position:
    """Mutable; `fork` gives an independent one at the same place."""

    def __init__(self, matcher: LLMatcher, vocabulary: Vocabulary, end_steps: int = 0) -> None:
        self._matcher = matcher
        self._vocabulary = vocabulary
        self._end_steps = end_steps

    def fork(self) -> "Position":
        """Independent, but it has to learn again what the lexer finds out from here on."""
        return Position(self._matcher.deep_copy(), self._vocabulary, self._end_steps)

    @property
    def complete(self) -> bool:
        """Nothing but an end id can follow."""
        return self._end_steps > 0 or self._matcher.is_stopped()

    def fill(self, rows: NDArray[np.int32], at: int) -> None:
        """Write the mask of this place into rows[at].

        Raises:
            ConstraintFailed: too complex here, or no token can go on.
        """
        if self._end_steps:
            rows[at] = self._vocabulary.end_row
            return
        fill_next_token_bitmask(self._matcher, rows, at)
        self._check_matcher()
        if not self._matcher.is_accepting():
            rows[at] &= ~self._vocabulary.end_row  # Lark can name an end id as if it were text
        if not rows[at].any():
            raise ConstraintFailed("no token of this model can continue the text")

    def step(self, token_id: int) -> None:
        """Move on by one token.

        Raises:
            ConstraintViolated: it is not allowed here.
            ConstraintFailed: too complex here.
        """
        if self._is_end(token_id):
            self._end_steps += 1
        elif self._end_steps or not self._take(token_id):
            raise ConstraintViolated(f"token {token_id} is not allowed by the grammar")

    def back(self, steps: int) -> None:
        """Take back the last steps; only for grammars that can (`CompiledGrammar.rewinds`).

        Raises:
            ConstraintFailed: it did not work all the same.
        """
        end_steps = min(steps, self._end_steps)
        self._end_steps -= end_steps
        text_steps = steps - end_steps
        if text_steps and not self._matcher.rollback(text_steps):
            raise ConstraintFailed(f"the grammar could not go back: {error_text(self._matcher)}")

    def _is_end(self, token_id: int) -> bool:
        ends = token_id in self._vocabulary.end_ids
        return ends and (self._end_steps > 0 or self._matcher.is_accepting())

    def _take(self, token_id: int) -> bool:
        if not 0 <= token_id < self._vocabulary.size:
            return False
        taken = self._matcher.try_consume_tokens([token_id]) == 1
        self._check_matcher()
        return taken

    def _check_matcher(self) -> None:
        if self._matcher.is_error():
            raise ConstraintFailed(f"the grammar cannot be followed: {error_text(self._matcher)}")


def error_text(matcher: LLMatcher, limit_chars: int = 400) -> str:
    """The library's complaint, fit for a client: without dumps of its state, and not too long."""
    lines = matcher.get_error().replace("<non-verbose/>", "").split("\n<backtrace>")[0]
    text = lines.strip()
    return text if len(text) <= limit_chars else f"{text[:limit_chars]}…"
