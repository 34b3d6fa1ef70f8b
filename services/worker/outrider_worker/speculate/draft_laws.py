"""The laws that drafts under judgement were drawn from, by seat, until the verdict.

Knows: where a law lies and what it says of a token. Does not know: why a draft was drawn or judged.

Letters: N seats, K drafts at most, V the vocabulary, C the tokens a drafter can draw (C = V unless
its vocabulary is reduced), n requests.
"""

from __future__ import annotations

import torch
from torch import Tensor


class DraftLaws:
    """(N + 1) · K · C entries on the device: 272 MB at 64 seats, 7 drafts, 152,000 tokens, float32.

    What is kept is what is drawn from, *after* rounding to the data type: a verdict that divided by
    anything else would be off by the rounding.
    """

    def __init__(
        self,
        seats: int,
        max_draft_tokens: int,
        vocab_size: int,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        draft_ids: Tensor | None = None,
    ) -> None:
        """`draft_ids` [C] int64: the target's ids that the drafter can draw; None = all."""
        self._vocab_size = vocab_size
        self._draft_ids = draft_ids
        tokens = vocab_size if draft_ids is None else draft_ids.shape[0]
        self._weights = torch.zeros(seats + 1, max_draft_tokens, tokens, dtype=dtype, device=device)
        # 1 for a step without a law, so that nothing is ever divided by 0.
        self._total = torch.ones(seats + 1, max_draft_tokens, dtype=torch.float64, device=device)
        self._drawn = torch.zeros(seats + 1, dtype=torch.bool, device=device)

    @property
    def bytes(self) -> int:
        """Device memory of the laws."""
        return self._weights.nbytes

    def forget(self, seats: Tensor) -> None:
        """What comes to `seats` [n] next was not drawn, unless `keep` says so."""
        self._drawn[seats] = False

    def keep(self, seats: Tensor, step: int, law: Tensor) -> tuple[Tensor, Tensor]:
        """Keep law [n, V] float64 of draft `step`.

        Returns:
            token ids [n, C] and their weights [n, C] float64, to draw from in proportion.
        """
        ids = self._ids(law)
        rounded = law.gather(1, ids).to(self._weights.dtype)
        weights = rounded.double()
        self._weights[seats, step] = rounded
        self._total[seats, step] = weights.cumsum(-1)[:, -1]
        self._drawn[seats] = True
        return ids, weights

    def masses(self, seats: Tensor, drafts: Tensor) -> Tensor:
        """[n, K'] float64, the probability with which each draft [n, K'] was drawn; 1 of others.

        Entries behind a draft's end are anything.
        """
        steps = torch.arange(drafts.shape[1], device=drafts.device)
        column = self._column(drafts)
        weights = self._weights[seats[:, None], steps, column].double()
        masses = weights / self._total[seats[:, None], steps]
        return torch.where(self._drawn[seats][:, None], masses, 1.0)

    def law_at(self, seats: Tensor, step: Tensor, drafts: Tensor) -> Tensor:
        """[n, V] float64, the law of draft `step` [n]; all on the draft [n] itself if not drawn."""
        step = step.clamp(max=self._total.shape[1] - 1)
        law = self._weights[seats, step].double() / self._total[seats, step][:, None]
        spread = law.new_zeros(len(seats), self._vocab_size)
        spread.scatter_(1, self._ids(law), law)
        point = torch.zeros_like(spread).scatter_(1, drafts[:, None], 1.0)
        return torch.where(self._drawn[seats][:, None], spread, point)

    def _ids(self, lines: Tensor) -> Tensor:
        """[n, C] the token of each column."""
        ids = self._draft_ids
        if ids is None:
            ids = torch.arange(self._vocab_size, device=lines.device)
        return ids.expand(lines.shape[0], -1)

    def _column(self, drafts: Tensor) -> Tensor:
        """Where each draft's weight lies; of one that cannot be drawn, anywhere."""
        if self._draft_ids is None:
            return drafts.clamp(0, self._vocab_size - 1)
        column = drafts.new_zeros(self._vocab_size)
        column[self._draft_ids] = torch.arange(len(self._draft_ids), device=drafts.device)
        return column[drafts.clamp(0, self._vocab_size - 1)]
