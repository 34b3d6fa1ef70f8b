"""Which cuts leave the target's law alone, through the choosers and verifiers that serve.

Three tokens, texts of three, drafts of two, of a target and a drafter whose logits depend on all
that was said. Rejection sampling is enumerated: the noise is cut into cells in which nothing
changes, every cell is one request, and what comes out is weighed by the cell's size. So the law of
what is emitted is worked out and not sampled. Sampler match needs no law: its text is that of
plain decoding, token by token.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import product

import pytest
import torch
from torch import Tensor

from outrider_worker.engine.types import SamplingParams as P
from outrider_worker.philox import Purpose
from outrider_worker.sampling import RowSampling
from outrider_worker.speculate import rejection, verify
from outrider_worker.speculate.cuts import Cut
from outrider_worker.speculate.device import Chooser
from outrider_worker.speculate.draft_laws import DraftLaws
from outrider_worker.speculate.rejection import RejectionVerifier, residual
from outrider_worker.speculate.verify import SamplerMatch
from tests.unit.worker.tensors.judging import Table

V, DEPTH, K = 3, 3, 2
Text = tuple[int, ...]
Laws = dict[Text, Tensor]
EXACT, BIASED = 1e-12, 0.01
WORLDS = range(3)

OPTIONS = {
    "plain": P(temperature=1.0),
    "cool": P(temperature=0.6),
    "top-k": P(temperature=1.2, top_k=2),
    "top-p": P(temperature=1.0, top_p=0.8),
    "both": P(temperature=1.5, top_k=2, top_p=0.9, min_p=0.05),
    "penalties": P(
        temperature=1.0, repetition_penalty=1.8, presence_penalty=0.7, frequency_penalty=0.2
    ),
}


@pytest.fixture(autouse=True)
def _all_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Thousands of rows of three tokens need not go part by part."""
    monkeypatch.setattr(verify, "_ROWS_AT_ONCE", 1 << 20)
    monkeypatch.setattr(rejection, "_REQUESTS_AT_ONCE", 1 << 20)


@dataclass(frozen=True)
class World:
    """Logits behind every text, and the laws that a request's options make of them."""

    params: P
    target_logits: Tensor
    """[V + 1, V + 1, V], by the last two tokens, V standing for none"""
    drafter_logits: Tensor
    target: Laws
    drafter: Laws

    @classmethod
    def of(cls, params: P, seed: int) -> "World":
        generator = torch.Generator().manual_seed(seed)
        logits = torch.randn(2, V + 1, V + 1, V, generator=generator) * 1.5
        texts = [text for length in range(DEPTH) for text in product(range(V), repeat=length)]
        table = Table.of([params] * len(texts), [(0, *text) for text in texts])
        table.state.prompt_tokens[:-1] = 1
        rows = table.next_rows()
        both = [rows.law(torch.stack([each[_before(text)] for text in texts])) for each in logits]
        laws = (dict(zip(texts, found, strict=True)) for found in both)
        return cls(params, logits[0], logits[1], *laws)


def _before(text: Text) -> Text:
    """The last two tokens, as places in a table of logits."""
    return (V, V, *text)[-2:]


def drawn_by(chooser: Chooser, logits: Tensor, requests: int, tokens: int) -> Tensor:
    """[n, tokens] what a chooser draws from a table of logits, one behind the other."""
    text = torch.full((requests, 2), V)
    for step in range(tokens):
        chosen = chooser.choose(logits[text[:, -2], text[:, -1]], step)
        text = torch.cat([text, chosen.token_ids[:, None]], dim=1)
    return text[:, 2:]


def judged_by(world: World, table: Table, drafts: Tensor, lengths: Tensor) -> verify.JudgedRows:
    """The target's rows behind the drafts of every request."""
    text = torch.cat([torch.full((len(drafts), 2), V), drafts], dim=1)
    return table.judged(world.target_logits[text[:, :-1], text[:, 1:]], drafts, lengths)


CutRule = Callable[[World, Text], int]


def fixed(tokens: int) -> CutRule:
    return lambda _world, _drafts: tokens


def past_confidence(world: World, drafts: Text) -> int:
    """By the greatest probability at each place, before it is known what is drawn there."""
    sure = [float(world.drafter[drafts[:place]].max()) for place in range(K)]
    return (sure[0] > 0.5) + (sure[0] > 0.5 and sure[0] * sure[1] > 0.35)


def own_token(world: World, drafts: Text) -> int:
    """By the probability of the very token that was drawn."""
    likely = [float(world.drafter[drafts[:place]][drafts[place]]) > 0.4 for place in range(K)]
    return likely[0] + (likely[0] and likely[1])


def shifted_own_token(world: World, drafts: Text) -> int:
    """The same, but it decides on the next draft."""
    return 1 + (float(world.drafter[()][drafts[0]]) > 0.4)


CUTS: dict[str, tuple[CutRule, Cut]] = {
    "none": (fixed(0), Cut.FIXED),
    "one": (fixed(1), Cut.FIXED),
    "all": (fixed(K), Cut.FIXED),
    "past": (past_confidence, Cut.PAST),
    "shifted": (shifted_own_token, Cut.PAST),
    "own": (own_token, Cut.OWN_TOKEN),
}


def cut_lengths(world: World, drafts: Tensor, rule: CutRule) -> Tensor:
    """[n] how many of each request's drafts get a row."""
    found = [rule(world, text) for text in product(range(V), repeat=K)]
    return torch.tensor(found)[drafts[:, 0] * V + drafts[:, 1]]


@dataclass(frozen=True)
class Cells:
    """The cells of all noise that rejection sampling draws: a middle and a size of each."""

    middles: Tensor
    """[n, 2K + 1]: of each draft's draw, of each verdict, of the replacement"""
    sizes: Tensor
    """[n]"""

    @classmethod
    def of(cls, world: World, given: bool) -> "Cells":
        """given: drafts count as not drawn, so their law is a point."""
        p, q = world.target, world.drafter
        draws, verdicts, left = [], [], list[Tensor]()
        for place in range(K):
            texts = list(product(range(V), repeat=place))
            draws.append(_edges([_jumps(q[text]) for text in texts]))
            verdicts.append(_edges([p[t] / (1.0 if given else q[t]) for t in texts]))
            for text in texts:
                points = list(torch.eye(V).double()) if given else [q[text]]
                left += [residual(p[text][None], each[None])[0] for each in points]
        axes = [*draws, *verdicts, _edges([_jumps(each) for each in left])]
        middles = torch.cartesian_prod(*((axis[1:] + axis[:-1]) / 2 for axis in axes))
        return cls(middles, torch.cartesian_prod(*(axis.diff() for axis in axes)).prod(1))

    def noise(self, _: RowSampling, seats: Tensor, index: Tensor, purpose: Purpose) -> Tensor:
        """Stands in for `rejection._noise`: seats are lines, index is a draft's place."""
        first = {Purpose.DRAFT: 0, Purpose.ACCEPT: K}
        column = torch.full_like(index, 2 * K) if purpose is Purpose.RESIDUAL else index
        return self.middles[seats, column + first.get(purpose, 0)]


def _jumps(weights: Tensor) -> Tensor:
    """Where the inverse distribution function jumps."""
    return weights.cumsum(0) / weights.sum()


def _edges(jumps: list[Tensor]) -> Tensor:
    """[C + 1] from 0 to 1; jumps that differ by rounding alone are one."""
    every = torch.cat([torch.zeros(1), *jumps, torch.ones(1)]).double()
    inside = every[every.isfinite() & (every <= 1)].sort().values
    return inside[torch.cat([inside.new_ones(1) > 0, inside.diff() > 1e-13])]


def probability(laws: Laws, text: Text) -> float:
    total = 1.0
    for place, token in enumerate(text):
        total *= float(laws[text[:place]][token])
    return total


def emitted_law(
    world: World, rule: CutRule, patch: pytest.MonkeyPatch, given: bool = False
) -> dict[Text, float]:
    """What rejection sampling emits, to the end of the text."""
    cells = Cells.of(world, given)
    patch.setattr(rejection, "_noise", cells.noise)
    count = len(cells.sizes)
    table = Table.many(world.params, count)
    verifier = RejectionVerifier(DraftLaws(count, K, V, torch.float64))
    drafts = drawn_by(verifier.chooser(table.next_rows()), world.drafter_logits, count, K)
    if given:
        verifier.given(table.seats)
    lengths = cut_lengths(world, drafts, rule)
    verdict = verifier.verify(judged_by(world, table, drafts, lengths))
    # Behind drafts that all hold comes the target's own sample, of which the law is known.
    kept = verdict.accepted + (verdict.accepted < lengths)
    said = torch.where(torch.arange(K + 1) < kept[:, None], verdict.emitted, -1)
    starts, which = said.unique(dim=0, return_inverse=True)
    masses = torch.zeros(len(starts)).double().index_add_(0, which, cells.sizes)
    outcome: dict[Text, float] = {}
    for line, mass in zip(starts.tolist(), masses.tolist(), strict=True):
        start = tuple(token for token in line if token >= 0)
        for rest in product(range(V), repeat=DEPTH - len(start)):
            text, total = start + rest, 1.0
            for place in range(len(start), DEPTH):
                total *= float(world.target[text[:place]][text[place]])
            outcome[text] = outcome.get(text, 0.0) + mass * total
    return outcome


def distance(world: World, outcome: dict[Text, float]) -> float:
    """Total variation between what is emitted and the target's law."""
    assert sum(outcome.values()) == pytest.approx(1, abs=1e-12)
    texts = product(range(V), repeat=DEPTH)
    return 0.5 * sum(abs(outcome.get(t, 0.0) - probability(world.target, t)) for t in texts)


@pytest.mark.parametrize("name", CUTS)
@pytest.mark.parametrize("options", OPTIONS)
def test_rejection_keeps_the_law_under_just_the_cuts_it_declares(
    options: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rule, looks_at = CUTS[name]
    allowed = RejectionVerifier(DraftLaws(1, K, V)).lossless_cut
    worlds = [World.of(OPTIONS[options], seed) for seed in WORLDS]
    errors = [distance(world, emitted_law(world, rule, monkeypatch)) for world in worlds]
    if looks_at <= allowed:
        assert max(errors) <= EXACT
    else:
        assert max(errors) > BIASED


@pytest.mark.parametrize("name", CUTS)
@pytest.mark.parametrize("options", ["plain", "top-p", "penalties"])
def test_drafts_that_count_as_given_may_be_cut_by_anything(
    options: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for seed in WORLDS[:2]:
        world = World.of(OPTIONS[options], seed)
        outcome = emitted_law(world, CUTS[name][0], monkeypatch, given=True)
        assert distance(world, outcome) <= EXACT


def test_the_bad_scheduler_of_the_paper_is_as_bad_as_it_says(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """p = (.7, .3), q = (.5, .5), only token A gets a row: (.85, .15) comes out (DSpark)."""
    barred = float("-inf")
    target = [*torch.tensor([0.7, 0.3]).log().tolist(), barred]
    drafter = [0.0, 0.0, barred]
    target_logits, drafter_logits = (
        torch.tensor(each).expand(V + 1, V + 1, V) for each in (target, drafter)
    )
    texts = [text for length in range(DEPTH) for text in product(range(V), repeat=length)]
    p, q = torch.tensor([0.7, 0.3, 0.0]).double(), torch.tensor([0.5, 0.5, 0.0]).double()
    laws = (dict.fromkeys(texts, p), dict.fromkeys(texts, q))
    world = World(P(temperature=1.0), target_logits, drafter_logits, *laws)
    outcome = emitted_law(world, lambda _, drafts: int(drafts[0] == 0), monkeypatch)
    first = sum(mass for text, mass in outcome.items() if text[0] == 0)
    assert first == pytest.approx(0.85, abs=1e-6)


@pytest.mark.parametrize("name", CUTS)
@pytest.mark.parametrize("options", OPTIONS)
def test_sampler_match_gives_the_plain_text_whatever_the_cut_looks_at(
    options: str, name: str
) -> None:
    """A thousand seeds; drafts are coupled to the noise that judges them."""
    world, count, (rule, looks_at) = World.of(OPTIONS[options], seed=1), 1000, CUTS[name]
    verifier = SamplerMatch()
    assert looks_at <= verifier.lossless_cut
    plain = verifier.chooser(Table.many(world.params, count).next_rows())
    text = drawn_by(plain, world.target_logits, count, K + 1)
    table = Table.many(world.params, count)
    drafts = drawn_by(verifier.chooser(table.next_rows()), world.drafter_logits, count, K)
    lengths = cut_lengths(world, drafts, rule)
    verdict = verifier.verify(judged_by(world, table, drafts, lengths))
    emitted = torch.arange(K + 1) <= verdict.accepted[:, None]
    assert torch.equal(verdict.emitted[emitted], text[emitted])
    agreed = (drafts == text[:, :K]) & (torch.arange(K) < lengths[:, None])
    assert torch.equal(verdict.accepted, agreed.long().cumprod(1).sum(1))
