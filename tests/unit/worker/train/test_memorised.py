"""Heads for tests of mechanics: high acceptance on their texts, low elsewhere, by real drafters."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from outrider_worker.speculate.checkpoints import open_drafter
from outrider_worker.speculate.eagle import EagleDrafter
from tests.support.engines import greedy_text, tiny_model
from tests.support.memorised_heads import ANSWER_TOKENS, memorised_head
from tests.support.pair_rounds import PairRounds

_DRAFTS = 3


def _accepted_share(drafter: EagleDrafter, prompts: Sequence[tuple[int, ...]]) -> float:
    """Of drafts proposed at one place in each text."""
    answers = [greedy_text(prompt, ANSWER_TOKENS) for prompt in prompts]
    texts = [[*prompt, *answer] for prompt, answer in zip(prompts, answers, strict=True)]
    agreed = proposed = 0
    for place in (4, 12, 20):
        known = [len(prompt) + place for prompt in prompts]
        rounds = PairRounds(tiny_model(), drafter, texts, [len(text) for text in texts])
        rounds.state.known[rounds.seats] = rounds.known.new_tensor(known)
        rounds.feed()
        drafts, _ = rounds.propose(_DRAFTS)
        for text, start, drafted in zip(texts, known, drafts.token_ids.tolist(), strict=True):
            pairs = list(zip(drafted, text[start:], strict=False))  # an answer may end before
            agreed += sum(a == b for a, b in pairs)
            proposed += len(pairs)
    return agreed / proposed


@pytest.mark.parametrize("kind", ["mtp-eagle", "eagle3"])
def test_a_memorised_head_knows_its_own_texts_only(kind: str) -> None:
    head = memorised_head(kind)
    drafter = open_drafter(head.folder, tiny_model(), max_draft_tokens=_DRAFTS)
    assert isinstance(drafter, EagleDrafter)
    own, other = (_accepted_share(drafter, each) for each in (head.prompts, head.others))
    assert own > 0.9
    assert other < 0.5
