"""The rows whose tokens are wanted: whose they are, and what they have seen.

Also the one seam between two ways of working. On a CPU a step runs on the rows that ask for it
(`sparse`). Elsewhere, to find these rows would mean to wait for the device, so a step runs on all
rows: it leaves those alone that ask for nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

_NO_HISTORY = -2
"""What stands before the first token; equals no token and no filling."""


@dataclass(frozen=True)
class SampledRows:
    """R rows in the seats of a state of N + 1 lines of L tokens.

    A row's history ends with the token that the row is of. Drafts lie behind the known tokens, so
    a row further on in a draft sees more of the same line, and nothing has to be rolled back.
    """

    seat: Tensor
    """[R] int64"""
    known: Tensor
    """[R] int64, the tokens of its line that the row sees."""
    index: Tensor
    """[R] int64, of the token it emits, counted from the end of the original prompt."""
    history: Tensor
    """[N + 1, L] int64, prompt and output; anything from `known` on."""
    prompt_tokens: Tensor
    """[N + 1] int64"""

    def take(self, rows: Tensor | slice) -> SampledRows:
        """Some of the rows, over the same state."""
        return replace(self, seat=self.seat[rows], known=self.known[rows], index=self.index[rows])

    def ahead(self, tokens: int) -> SampledRows:
        """The rows so many tokens further on in the same lines."""
        return replace(self, known=self.known + tokens, index=self.index + tokens)

    def trimmed(self) -> SampledRows:
        """The same without the end of the lines that none of the rows sees. Waits for a device."""
        return replace(self, history=self.history[:, : int(self.known.max())])

    def tokens(self) -> Tensor:
        """[R, L] each row's line; what counts are the first `known` of it."""
        return self.history.index_select(0, self.seat)

    def last_tokens(self, count: int) -> Tensor:
        """[R, count] the tokens that each row's history ends with, the last one first."""
        column = self.known[:, None] - 1 - torch.arange(count, device=self.known.device)
        found = self.history[self.seat[:, None], column.clamp(min=0)]
        return found.masked_fill_(column < 0, _NO_HISTORY)


def picks_rows(logits: Tensor) -> bool:
    """Whether to work on some rows only: yes where finding them costs no waiting."""
    return logits.device.type == "cpu"


def change_rows(
    logits: Tensor,
    rows: SampledRows,
    wanted: Tensor,
    change: Callable[[Tensor, SampledRows], None],
    sparse: bool,
) -> None:
    """Run `change` in place on logits [R, V]: on wanted rows [R] bool if sparse, else on all."""
    if not sparse:
        change(logits, rows)
        return
    chosen = wanted.nonzero().squeeze(1)
    if chosen.numel():
        part = logits.index_select(0, chosen)
        change(part, rows.take(chosen).trimmed())
        logits.index_copy_(0, chosen, part)
