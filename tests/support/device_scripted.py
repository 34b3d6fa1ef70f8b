"""The scripted drafter's twin on the device: right as often as it is told, in rounds ahead too."""

from collections.abc import Mapping, Sequence

import torch

from outrider_worker.engine.types import MAX_SCORE_BINS
from outrider_worker.speculate.device import DeviceDrafts, DraftBatch
from outrider_worker.speculate.drafter import DrafterCost, DrafterTraits


class DeviceScripted:
    """Drafts from known continuations (a DeviceDrafter for a CPU that plays a device).

    right: how many drafts of each proposal are right, over and over, counted by known tokens so
    that a proposal made again is made alike.
    """

    def __init__(
        self,
        continuations: Mapping[tuple[int, ...], Sequence[int]],
        right: Sequence[int],
        vocab_size: int,
        max_draft_tokens: int = 8,
        *,
        sparse: bool = False,
    ) -> None:
        self.traits = DrafterTraits(
            "scripted",
            DrafterCost.PARALLEL,
            max_draft_tokens,
            sparse=sparse,
            score_bins=MAX_SCORE_BINS,
        )
        self.proposals = 0
        self._texts = [(*prompt, *answer) for prompt, answer in continuations.items()]
        self._right = right
        self._vocab_size = vocab_size
        self._sparse = sparse

    def propose(self, batch: DraftBatch, tokens: int) -> DeviceDrafts:
        self.proposals += 1
        requests = batch.seats.shape[0]
        ids = torch.zeros(requests, tokens, dtype=torch.int64)
        lengths = batch.limit.clamp(max=min(tokens, self.traits.max_draft_tokens))
        for line in range(requests):
            known = int(batch.known[line])
            draft = self._draft(batch.history[batch.seats[line], :known].tolist(), tokens)
            if self._sparse and known % 3 == 0:
                lengths[line] = 0
            ids[line] = torch.tensor(draft)
        bins = torch.arange(tokens).flip(0).clamp(max=MAX_SCORE_BINS - 1).expand(requests, -1)
        return DeviceDrafts(ids, lengths, bins)

    def _draft(self, known: Sequence[int], tokens: int) -> list[int]:
        right = self._right[len(known) % len(self._right)]
        text = next((t for t in self._texts if list(t[: len(known)]) == list(known)), ())
        following = [*text[len(known) : len(known) + tokens], *[0] * tokens][:tokens]
        return [
            token if place < right else (token + 1) % self._vocab_size
            for place, token in enumerate(following)
        ]
