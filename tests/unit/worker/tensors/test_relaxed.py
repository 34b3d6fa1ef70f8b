"""Relaxed acceptance: near enough, only while thinking, only where permitted, counted apart."""

import pytest
import torch
from torch import Tensor

from outrider_worker.engine.types import SamplingParams as P
from outrider_worker.sampling import Stages, stages_of
from outrider_worker.speculate.relaxed import RelaxedRule, RelaxedVerifier
from outrider_worker.speculate.verify import SamplerMatch, Verdict
from tests.unit.worker.tensors.judging import Table

V, OPEN, CLOSE = 8, 6, 7
RULE = RelaxedRule(OPEN, CLOSE, top=3, delta=0.2)
RELAXED = P(relaxed=True)
THINKING, DONE = [0, OPEN, 4], [0, OPEN, 4, CLOSE, 5]
LIKELY = torch.tensor([0.4, 0.3, 0.15, 0.1, 0.05, 1e-9, 1e-9, 1e-9]).log()
"""Of every row: 0 is the target's token, 1 is near, 2 too improbable."""


def verdict(
    drafts: list[int],
    text: list[int],
    params: P = RELAXED,
    logits: Tensor = LIKELY,
    rule: RelaxedRule = RULE,
    mask: int | None = None,
) -> Verdict:
    width = len(drafts)
    rows = Table.of([params], [text]).judged(
        logits.expand(1, width + 1, -1),
        torch.tensor([drafts]),
        mask=None if mask is None else torch.full((1, width + 1, 1), mask, dtype=torch.int32),
    )
    return RelaxedVerifier(rule).verify(rows)


def counts(found: Verdict) -> tuple[int, int]:
    """Accepted drafts, and how many of them by relaxation."""
    assert found.relaxed is not None
    return int(found.accepted), int(found.relaxed)


def test_near_drafts_hold_are_emitted_and_counted_apart() -> None:
    found = verdict([1, 0, 1, 2, 0], THINKING)
    assert counts(found) == (3, 2)
    assert found.emitted[0, :4].tolist() == [1, 0, 1, 0]


@pytest.mark.parametrize(
    ("text", "drafts", "accepted"),
    [
        ([0, 4], [1], 0),  # never began
        (DONE, [1], 0),  # over
        ([*DONE, OPEN], [1], 1),  # began again
        ([OPEN], [1], 1),  # the prompt's last token opens
        ([0, 4], [0, 1], 1),
    ],
)
def test_it_needs_a_text_that_thinks(text: list[int], drafts: list[int], accepted: int) -> None:
    assert counts(verdict(drafts, text))[0] == accepted


def test_rows_behind_a_closing_draft_are_strict() -> None:
    """The closing token is the target's own there, so it is accepted and not by relaxation."""
    closes = LIKELY.clone().expand(1, 5, -1).clone()
    closes[0, 1] = torch.full((V,), -9.0).index_fill(0, torch.tensor(CLOSE), 0.0)
    assert counts(verdict([1, CLOSE, 0, 1], THINKING, logits=closes)) == (3, 1)


def test_rows_behind_an_opening_draft_are_relaxed() -> None:
    opens = LIKELY.clone().expand(1, 4, -1).clone()
    opens[0, 0] = torch.full((V,), -9.0).index_fill(0, torch.tensor(OPEN), 0.0)
    assert counts(verdict([OPEN, 1, 1], [0, 4], logits=opens)) == (3, 2)
    assert counts(verdict([0, 1, 1], [0, 4])) == (1, 0)


@pytest.mark.parametrize("params", [P(), P(relaxed=True, top_logprobs=2)])
def test_requests_that_are_not_permitted_are_strict(params: P) -> None:
    assert Stages.RELAXED not in stages_of(params)
    assert counts(verdict([1, 1], THINKING, params)) == (0, 0)


def test_a_strict_request_beside_a_relaxed_one_stays_strict() -> None:
    table = Table.of([RELAXED, P()], [THINKING, THINKING])
    rows = table.judged(LIKELY.expand(2, 3, -1), torch.tensor([[1, 1], [1, 1]]))
    found, strict = RelaxedVerifier(RULE).verify(rows), SamplerMatch().verify(rows)
    assert found.accepted.tolist() == [2, 0]
    assert torch.equal(found.emitted[1], strict.emitted[1])


def test_both_conditions_count() -> None:
    assert counts(verdict([2], THINKING, rule=RelaxedRule(OPEN, CLOSE, top=3, delta=0.3)))[0] == 1
    assert counts(verdict([2], THINKING, rule=RelaxedRule(OPEN, CLOSE, top=2, delta=0.3)))[0] == 0
    assert counts(verdict([1], THINKING, rule=RelaxedRule(OPEN, CLOSE, top=1, delta=1.0)))[0] == 0


def test_what_could_not_be_drawn_never_holds() -> None:
    """Filtered out, banned, or off the grammar's mask, however small the distance asked for."""
    anything = RelaxedRule(OPEN, CLOSE, top=8, delta=1.0)
    sampled = P(relaxed=True, temperature=1.0, top_k=2, seed=3)
    assert counts(verdict([2], THINKING, sampled, rule=anything))[0] == 0
    banned = P(relaxed=True, bad_words=((1,),))
    assert counts(verdict([1], THINKING, banned, rule=anything))[0] == 0
    assert counts(verdict([1], THINKING, rule=anything, mask=0b11111101))[0] == 0
    assert counts(verdict([1], THINKING, rule=anything, mask=0b11111111))[0] == 1


def test_without_drafts_it_is_sampler_match() -> None:
    rows = Table.of([RELAXED], [THINKING]).judged(LIKELY.expand(1, 1, -1), torch.zeros(1, 0).long())
    found = RelaxedVerifier(RULE).verify(rows)
    assert counts(found) == (0, 0)
    assert torch.equal(found.emitted, SamplerMatch().verify(rows).emitted)


@pytest.mark.parametrize("bad", [{"top": 0}, {"delta": -0.1}, {"delta": 1.1}, {"close_id": OPEN}])
def test_a_rule_that_makes_no_sense_is_refused(bad: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=r"relaxed acceptance|begin and end"):
        RelaxedRule(**{"open_id": OPEN, "close_id": CLOSE, **bad})  # type: ignore[arg-type]
