"""How many of a head's drafts its target would accept, told from texts that the target wrote.

A text is what the target answers whatever is drafted: greedy, or drawn with the noise of its seed
(sampler match). So the rounds that serving would have made can be walked through on paper: from a
round's anchor on, drafts are accepted while they are the text's own tokens, one more token comes
from the target, and the next round begins behind it. Of a drawn text drafts are drawn with the same
noise, as they are when served (`speculate.choosers`).

Knows: those walks. Does not know: costs, how a head is trained.

Letters: B texts, A pairs of one, Vd the draft vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from outrider_worker.engine.types import RequestKey
from outrider_worker.philox import uniform
from outrider_worker.sampling.draw import race
from outrider_worker.speculate.drafter import Ask
from outrider_worker.speculate.ngram import NgramDrafter
from outrider_worker.train.batches import Batch, Columns, Numbers, whole
from outrider_worker.train.dataset import Text, TextInfo
from outrider_worker.train.heads import TrainedHead


@dataclass(frozen=True)
class Acceptance:
    """What became of drafts over some texts."""

    accepted: Numbers
    """[rounds] accepted drafts of each"""
    draft_tokens: int
    """K, drafts per round at most"""

    @property
    def rounds(self) -> int:
        return len(self.accepted)

    @property
    def by_position(self) -> tuple[float, ...]:
        """P(a ≥ k) for k = 1 … K: how often the first k drafts were all accepted."""
        steps = range(1, self.draft_tokens + 1)
        return tuple(float((self.accepted >= k).mean()) if self.rounds else 0.0 for k in steps)

    @property
    def tokens_per_round(self) -> float:
        """The target's own token included."""
        return 1.0 + sum(self.by_position)


@torch.no_grad()
def head_acceptance(
    head: TrainedHead,
    texts: Sequence[Text],
    columns: Columns,
    draft_tokens: int,
    texts_at_once: int = 8,
) -> Acceptance:
    """Walks of a head over texts, `draft_tokens` drafts a round."""
    kept_ids, accepted = head.get_buffer("kept_ids"), list[int]()
    for batch in whole(texts, texts_at_once, columns):
        batch = batch.to(kept_ids.device)
        logits = head.unroll(batch, draft_tokens)
        hits = [_hits(scores, batch, kept_ids, step) for step, scores in enumerate(logits)]
        runs = torch.stack(hits, -1).long().cumprod(-1).sum(-1)
        for line, live in zip(runs.tolist(), batch.live.sum(1).tolist(), strict=True):
            accepted.extend(_walk(line[:live]))
    return Acceptance(np.array(accepted, np.int64), draft_tokens)


def ngram_acceptance(texts: Sequence[Text], draft_tokens: int) -> Acceptance:
    """The same walks for the n-gram drafter, which needs no training."""
    drafter, accepted = NgramDrafter(draft_tokens), list[int]()
    for number, text in enumerate(texts):
        key, ids = RequestKey("evaluation", str(number)), text.token_ids.tolist()
        known = text.info.prompt_tokens + 1
        drafter.prefill(key, ids[:known])
        while known < len(ids):
            (draft,) = drafter.propose([Ask(key, draft_tokens)])
            run = _agreeing(draft.token_ids, ids[known:])
            accepted.append(run)
            drafter.observe(key, ids[known : known + run + 1])
            known += run + 1
        drafter.release(key)
    return Acceptance(np.array(accepted, np.int64), draft_tokens)


def _hits(scores: Tensor, batch: Batch, kept_ids: Tensor, step: int) -> Tensor:
    """Logits [B, A, Vd] of draft `step` → [B, A] bool, where the draft is the text's token."""
    tokens, there = batch.targets(step)
    drafts = [
        _drafts(scores[line], kept_ids, info, batch.rows[line] + 2 + step)
        for line, info in enumerate(batch.infos)
    ]
    return (torch.stack(drafts) == tokens) & there


def _drafts(scores: Tensor, kept_ids: Tensor, info: TextInfo, places: Tensor) -> Tensor:
    """Logits [A, Vd] of the tokens at `places` [A] of one text → the tokens drafted there."""
    if info.temperature == 0:
        return kept_ids[scores.argmax(-1)]
    ids = kept_ids.expand(len(places), -1)
    seed = torch.full_like(places, info.seed)
    noise = uniform(ids, seed, torch.zeros_like(places), places - info.prompt_tokens)
    return race(scores.double() / info.temperature, noise, ids)


def _walk(runs: Sequence[int]) -> list[int]:
    """Accepted drafts of each round, from how many would be at each place a round may begin."""
    place, accepted = 0, list[int]()
    while place < len(runs):
        accepted.append(runs[place])
        place += runs[place] + 1
    return accepted


def _agreeing(drafts: Sequence[int], text: Sequence[int]) -> int:
    pairs = zip(drafts, text, strict=False)
    return next((n for n, (a, b) in enumerate(pairs) if a != b), min(len(drafts), len(text)))
