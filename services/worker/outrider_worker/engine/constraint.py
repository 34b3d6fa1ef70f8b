"""The engine's seam to a request's grammar: which tokens may come next, told row by row.

Knows neither a grammar's syntax nor who compiles it; a mask is bits, not tensors.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class ConstraintViolated(Exception):
    """A token was committed that the grammar forbids: the fault of whoever did not mask."""


class ConstraintFailed(Exception):
    """The grammar cannot be followed any further: it is too complex here, or nothing can go on.

    It ends this one request, with the message; the constraint must not be used again.
    """


class Constraint(Protocol):
    """One request's place in its grammar, behind the tokens committed so far.

    Belongs to one thread at a time. Every request has its own, each choice too.
    """

    @property
    def finished(self) -> bool:
        """The text is complete: nothing but an end id can follow."""
        ...

    def masks(self, drafts: Sequence[int]) -> "NDArray[np.int32]":
        """Allowed tokens for the anchor's row and the row of each draft.

        Row j holds for the token behind the committed ones and drafts[:j]. Token t is bit
        t mod 32 of word t // 32; it is 0 for every id the tokenizer does not know. End ids are
        allowed exactly where the text may stop, and alone where it must. Rows behind a forbidden
        draft cannot be reached and are all ones.

        The committed state is the same before and after.

        Returns:
            int32 [len(drafts) + 1, ceil(vocab_size / 32)].

        Raises:
            ConstraintFailed: the grammar is too complex here or behind one of the drafts, or no
                token can go on.
        """
        ...

    def advance(self, token_ids: Sequence[int]) -> None:
        """Commit tokens.

        Raises:
            ConstraintViolated: one of them is not allowed.
            ConstraintFailed: the grammar is too complex here.
        """
        ...
