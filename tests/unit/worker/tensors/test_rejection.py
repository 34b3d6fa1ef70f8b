"""Rejection sampling as it runs: laws kept by seat, noise streams, greedy and given drafts.

That the rule is exact is enumerated elsewhere (test_lossless_cuts); here the parts are put
together, with many requests that differ in their seeds. All noise is fixed by those, so the
statistical bounds hold always or never.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import pytest
import torch
from torch import Tensor

from outrider_worker.engine.types import SamplingParams as P
from outrider_worker.speculate.draft_laws import DraftLaws
from outrider_worker.speculate.rejection import RejectionVerifier, drawn, residual
from outrider_worker.speculate.verify import JudgedRows, SamplerMatch, Verdict
from tests.unit.worker.tensors.judging import Table, chi_square

V, K, MANY = 4, 2, 8_000
TARGET = torch.randn(V + 1, V, generator=torch.Generator().manual_seed(1))
DRAFTER = TARGET + torch.randn(V + 1, V, generator=torch.Generator().manual_seed(2))
"""Logits behind each last token; line V is behind the prompt."""


@dataclass(frozen=True)
class Round:
    rows: JudgedRows
    verdict: Verdict


def target_logits(drafts: Tensor) -> Tensor:
    """[n, K] → [n, K+1, V]"""
    before = torch.cat([torch.full_like(drafts[:, :1], V), drafts], dim=1)
    return TARGET[before]


def draft(verifier: RejectionVerifier, table: Table, can_draft: Tensor | None = None) -> Tensor:
    """[n, K] drafts of a small language model, each behind the one before."""
    chooser = verifier.chooser(table.next_rows())
    barred = torch.zeros(V)
    if can_draft is not None:
        barred = torch.full((V,), float("-inf")).index_fill(0, can_draft, 0.0)
    last, drafts = torch.full((table.state.seats,), V), list[Tensor]()
    for step in range(K):
        last = chooser.choose(DRAFTER[last] + barred, step).token_ids
        drafts.append(last)
    return torch.stack(drafts, dim=1)


def played(
    params: P,
    dtype: torch.dtype = torch.float32,
    can_draft: Tensor | None = None,
    given: Tensor | None = None,
    count: int = MANY,
) -> Round:
    """One round of many requests, with drafts drawn, or the same given ones [K] for all."""
    table = Table.many(params, count)
    verifier = RejectionVerifier(DraftLaws(count, K, V, dtype, draft_ids=can_draft))
    drafts = draft(verifier, table, can_draft)
    if given is not None:
        drafts = given.expand(count, -1)
        verifier.given(table.seats)
    rows = table.judged(target_logits(drafts), drafts)
    return Round(rows, verifier.verify(rows))


CASES: dict[str, Callable[[], Round]] = {
    "plain": lambda: played(P(temperature=1.0)),
    "bfloat16 laws": lambda: played(P(temperature=1.0), dtype=torch.bfloat16),
    "small draft vocabulary": lambda: played(P(temperature=1.0), can_draft=torch.tensor([0, 2])),
    "filtered": lambda: played(P(temperature=0.8, top_k=3, top_p=0.9)),
    "given": lambda: played(P(temperature=1.0), given=torch.tensor([1, 3])),
}


@cache
def case(name: str) -> Round:
    return CASES[name]()


@pytest.mark.parametrize("name", CASES)
def test_every_token_has_the_targets_law_given_those_before(name: str) -> None:
    rows, verdict = case(name).rows, case(name).verdict
    before = torch.full((MANY,), V)
    for place in range(K + 1):
        reached = verdict.accepted >= place
        for last in before[reached].unique().tolist():
            those = reached & (before == last)
            law = rows.law(rows.row_at(torch.full((MANY,), place))[those][:1])[0]
            counts = torch.bincount(verdict.emitted[those, place], minlength=V).double()
            assert abs(chi_square(counts, law)) < 4.5
        before = verdict.emitted[:, place]


@pytest.mark.parametrize("name", ["plain", "bfloat16 laws", "small draft vocabulary"])
def test_drafts_are_accepted_as_often_as_the_laws_overlap(name: str) -> None:
    p = TARGET[V].double().softmax(-1)
    logits = DRAFTER[V].double()
    if name == "small draft vocabulary":
        logits[[1, 3]] = float("-inf")
    overlap = float(torch.minimum(p, logits.softmax(-1)).sum())
    rate = float((case(name).verdict.accepted > 0).double().mean())
    assert abs(rate - overlap) < 4 * (overlap * (1 - overlap) / MANY) ** 0.5 + 0.004


def test_a_given_draft_is_accepted_with_the_targets_probability() -> None:
    p = float(TARGET[V].double().softmax(-1)[1])
    rate = float((case("given").verdict.accepted > 0).double().mean())
    assert abs(rate - p) < 4 * (p * (1 - p) / MANY) ** 0.5


def test_greedy_requests_get_the_greedy_text() -> None:
    verdict = played(P(), count=200).verdict
    drafted = draft(RejectionVerifier(DraftLaws(1, K, V)), Table.many(P(), 1))[0]
    expected, last = [], V
    for place in range(K + 1):
        expected.append(int(TARGET[last].argmax()))
        if place == K or expected[-1] != int(drafted[place]):
            break
        last = expected[-1]
    assert verdict.accepted.unique().tolist() == [len(expected) - 1]
    assert verdict.emitted[:, : len(expected)].unique(dim=0).tolist() == [expected]


def test_rounds_without_drafts_emit_the_targets_own_samples() -> None:
    """So the bonus stream is the one of plain decoding, and no empty round shifts any stream."""
    table = Table.many(P(temperature=1.0), 500)
    verifier = RejectionVerifier(DraftLaws(500, K, V))
    drafts = draft(verifier, table)
    plain = table.judged(target_logits(drafts), drafts, torch.zeros(500).long())
    verdict, match = verifier.verify(plain), SamplerMatch().verify(plain)
    assert torch.equal(verdict.emitted[:, 0], match.emitted[:, 0])
    assert not verdict.accepted.any()
    no_table = table.judged(TARGET[V].expand(500, 1, -1), drafts[:, :0])
    assert torch.equal(verifier.verify(no_table).emitted, verdict.emitted[:, :1])


def test_outcomes_do_not_depend_on_company() -> None:
    rows, verdict = case("filtered").rows, case("filtered").verdict
    table = Table.many(P(temperature=0.8, top_k=3, top_p=0.9), 3)
    verifier = RejectionVerifier(DraftLaws(3, K, V))
    drafts = draft(verifier, table)
    assert torch.equal(drafts, rows.drafts[:3])
    alone = verifier.verify(table.judged(target_logits(drafts), drafts))
    assert torch.equal(alone.accepted, verdict.accepted[:3])
    assert torch.equal(alone.emitted, verdict.emitted[:3])


def test_laws_are_forgotten_with_the_next_batch_of_drafts_or_given_ones() -> None:
    laws, seats = DraftLaws(2, K, V), torch.arange(2)
    drafts = torch.tensor([[1, 2], [1, 2]])
    for step in range(K):
        laws.keep(seats, step, torch.full((2, V), 0.25).double())
    assert laws.masses(seats, drafts).tolist() == [[0.25] * 2] * 2
    RejectionVerifier(laws).given(seats[:1])
    assert laws.masses(seats, drafts).tolist() == [[1.0] * 2, [0.25] * 2]
    point = laws.law_at(seats, torch.tensor([0, 0]), torch.tensor([3, 3]))
    assert point.tolist() == [[0.0, 0.0, 0.0, 1.0], [0.25] * 4]
    RejectionVerifier(laws).chooser(Table.many(P(), 2).next_rows())
    assert laws.masses(seats, drafts).tolist() == [[1.0] * 2] * 2


def test_the_kept_law_is_the_one_that_was_drawn_from() -> None:
    """Rounding included: in bfloat16 the weights do not add up to 1, the law does."""
    laws, law = DraftLaws(1, 1, 3, torch.bfloat16), torch.tensor([[0.7013, 0.2, 0.0987]]).double()
    ids, weights = laws.keep(torch.tensor([0]), 0, law)
    assert ids.tolist() == [[0, 1, 2]]
    assert float(weights.sum()) != 1
    kept = laws.law_at(torch.tensor([0]), torch.tensor([0]), torch.tensor([0]))
    assert torch.equal(kept, weights / weights.sum())
    assert laws.bytes == 2 * 1 * 3 * 2


def test_where_the_laws_agree_the_residual_is_the_law() -> None:
    """A16"""
    p = torch.tensor([[0.5, 0.5], [0.75, 0.25], [0.25, 0.75]]).double()
    q = torch.tensor([[0.5, 0.5], [0.5, 0.5], [0.0, 1.0]]).double()
    assert residual(p, q).tolist() == [[0.5, 0.5], [0.25, 0.0], [0.25, 0.0]]


def test_draws_by_inversion_never_land_where_no_weight_is() -> None:
    u = torch.tensor([2.0**-33, 0.5, 1 - 2.0**-33], dtype=torch.float64)
    weights = torch.tensor([[0.0, 0.25, 0.0, 0.25, 0.0]]).double().expand(3, -1)
    assert drawn(weights, u).tolist() == [1, 3, 3]


def test_what_a_mask_forbids_is_refused_and_replaced_by_something_legal() -> None:
    """The draft keeps its row: to drop it would bias what comes instead."""
    table = Table.many(P(temperature=1.0), 300)
    verifier = RejectionVerifier(DraftLaws(300, K, V))
    drafts = draft(verifier, table)
    mask = torch.full((300, K + 1, 1), 0b0101, dtype=torch.int32)
    verdict = verifier.verify(table.judged(target_logits(drafts), drafts, mask=mask))
    emitted = torch.arange(K + 1) <= verdict.accepted[:, None]
    assert set(verdict.emitted[emitted].tolist()) == {0, 2}
    legal_first = (drafts[:, 0] == 0) | (drafts[:, 0] == 2)
    assert not verdict.accepted[~legal_first].any()
    assert verdict.accepted[legal_first].any()
