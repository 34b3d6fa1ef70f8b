"""Heads for tests of mechanics: high acceptance on their texts, low elsewhere, in a real engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import chain

import pytest

from outrider_worker.engine.records import DraftOutcome
from outrider_worker.speculate.checkpoints import open_drafter
from tests.support.engines import Bench, request, static_plan, tiny_model, undisturbed
from tests.support.memorised_heads import (
    ANSWER_TOKENS,
    DRAFTS,
    MEMORISED,
    memorised_head,
)

END_IDS = (0, 2)


@dataclass(frozen=True)
class Served:
    """What became of drafts for a few prompts."""

    outcomes: tuple[DraftOutcome, ...]
    tokens_per_round: float

    @property
    def accepted_share(self) -> float:
        """Of the drafts verified."""
        verified = sum(each.verified for each in self.outcomes)
        return sum(each.accepted for each in self.outcomes) / verified

    @property
    def mean_bin(self) -> float:
        """Of first drafts."""
        bins = [each.bins[0] for each in self.outcomes if each.bins]
        return sum(bins) / len(bins)


@cache
def served(kind: str, known: bool) -> Served:
    """Greedy, all prompts at once; every text is the one without drafts."""
    head = memorised_head(kind)
    drafter = open_drafter(head.folder, tiny_model(), max_draft_tokens=DRAFTS)
    plan = static_plan(drafter.traits.name, DRAFTS)
    bench = Bench(device_drafter=drafter, plan=plan, eos_token_ids=END_IDS)
    specs = [request(each, ANSWER_TOKENS) for each in (head.prompts if known else head.others)]
    answers = bench.run(*specs)
    _check_texts([answer.token_ids for answer in answers], [*map(undisturbed, specs)])
    outcomes = tuple(chain.from_iterable(record.outcomes for record in bench.records))
    emitted = sum(record.emitted_tokens for record in bench.records)
    return Served(outcomes, emitted / sum(record.requests for record in bench.records))


def _check_texts(found: Sequence[Sequence[int]], plain: Sequence[Sequence[int]]) -> None:
    """`plain` does not know of end tokens."""
    for text, whole in zip(found, plain, strict=True):
        end = next((at for at, token in enumerate(whole) if token in END_IDS), len(whole))
        assert list(text) == list(whole[:end])


@pytest.mark.parametrize("kind", MEMORISED)
def test_a_memorised_head_knows_its_own_texts_only(kind: str) -> None:
    own, other = served(kind, known=True), served(kind, known=False)
    assert own.accepted_share > 0.85
    assert own.tokens_per_round > 3
    assert other.accepted_share < 0.4


@pytest.mark.parametrize("kind", MEMORISED)
def test_a_memorised_head_is_surer_of_its_own_texts(kind: str) -> None:
    own, other = served(kind, known=True), served(kind, known=False)
    assert own.mean_bin > other.mean_bin + 0.5
