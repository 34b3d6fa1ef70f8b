"""Which cuts leave the target's law alone, by exact enumeration (drafters.md §11).

Three tokens, texts of three, drafts of two: every text, draft and outcome of the noise is walked
through with its probability, so what comes out is the law itself and not a sample of it. Laws are
those of real requests: of a target and a drafter whose logits depend on all that was said.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import product

import pytest
import torch
from torch import Tensor

from outrider_worker.engine.types import SamplingParams as P
from outrider_worker.speculate.cuts import Cut
from outrider_worker.speculate.draft_laws import DraftLaws
from outrider_worker.speculate.rejection import RejectionVerifier, accepts, residual
from outrider_worker.speculate.verify import SamplerMatch
from tests.unit.worker.tensors.judging import Table, certain

V, DEPTH, K = 3, 3, 2
Text = tuple[int, ...]
Laws = dict[Text, Tensor]
EXACT, BIASED = 1e-12, 0.01

OPTIONS = {
    "plain": P(temperature=1.0),
    "cool": P(temperature=0.6),
    "top-k": P(temperature=1.2, top_k=2),
    "top-p": P(temperature=1.0, top_p=0.8),
    "penalties": P(temperature=1.0, repetition_penalty=1.8, presence_penalty=0.7),
}


@dataclass(frozen=True)
class World:
    """Laws of the next token behind every text."""

    target: Laws
    drafter: Laws

    @classmethod
    def of(cls, params: P, seed: int) -> "World":
        texts = [text for length in range(DEPTH) for text in product(range(V), repeat=length)]
        generator = torch.Generator().manual_seed(seed)
        rows = Table.of([params] * len(texts), [(0, *text) for text in texts]).next_rows()
        both = [rows.law(torch.randn(len(texts), V, generator=generator) * 1.5) for _ in range(2)]
        return cls(*(dict(zip(texts, laws, strict=True)) for laws in both))


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


def all_texts() -> list[Text]:
    return list(product(range(V), repeat=DEPTH))


def probability(laws: Laws, text: Text) -> float:
    total = 1.0
    for place, token in enumerate(text):
        total *= float(laws[text[:place]][token])
    return total


def distance(world: World, outcome: dict[Text, float]) -> float:
    """Total variation between what is emitted and the target's law."""
    assert sum(outcome.values()) == pytest.approx(1, abs=1e-12)
    return 0.5 * sum(
        abs(outcome.get(text, 0.0) - probability(world.target, text)) for text in all_texts()
    )


def go_on(world: World, outcome: dict[Text, float], start: Text, mass: float) -> None:
    """Without drafts to the end."""
    for rest in product(range(V), repeat=DEPTH - len(start)):
        text = start + rest
        given = probability(world.target, text) / (probability(world.target, start) or 1.0)
        outcome[text] = outcome.get(text, 0.0) + mass * given


def acceptance(p: float, q: float) -> float:
    """How much of (0, 1) `accepts` takes, found at its edge."""
    share = min(1.0, p / q)
    inside, outside = share * (1 - 1e-9), max(share * (1 + 1e-9), 1e-12)
    u = torch.tensor([inside, outside], dtype=torch.float64)
    held = accepts(u, *(torch.full((2,), each, dtype=torch.float64) for each in (p, q))).tolist()
    assert held == [share > 0, share == 1 and outside * q <= p]
    return share


def by_rejection(world: World, cut: CutRule, one_hot: bool) -> dict[Text, float]:
    """What rejection sampling emits; one_hot: judged as if the drafts had not been drawn."""
    outcome: dict[Text, float] = {}
    for drafts in product(range(V), repeat=K):
        mass = probability(world.drafter, drafts)
        for place in range(cut(world, drafts) if mass else 0):
            said, x = drafts[:place], drafts[place]
            p, q = world.target[said], world.drafter[said]
            q = torch.eye(V).double()[x] if one_hot else q
            share = acceptance(float(p[x]), float(q[x]))
            left = residual(p[None], q[None])[0]
            for token in range(V):
                other = float(left[token] / left.sum())
                if mass * (1 - share) * other:
                    go_on(world, outcome, (*said, token), mass * (1 - share) * other)
            mass *= share
        if mass:
            go_on(world, outcome, drafts[: cut(world, drafts)], mass)
    return outcome


@pytest.mark.parametrize("name", CUTS)
@pytest.mark.parametrize("options", OPTIONS)
def test_rejection_keeps_the_law_under_just_the_cuts_it_declares(options: str, name: str) -> None:
    rule, looks_at = CUTS[name]
    allowed = RejectionVerifier(DraftLaws(1, K, V)).lossless_cut
    worlds = [World.of(OPTIONS[options], seed) for seed in range(4)]
    errors = [distance(world, by_rejection(world, rule, one_hot=False)) for world in worlds]
    if looks_at <= allowed:
        assert max(errors) <= EXACT
    else:
        assert max(errors) > BIASED


@pytest.mark.parametrize("name", CUTS)
def test_drafts_that_count_as_given_may_be_cut_by_anything(name: str) -> None:
    for seed in range(4):
        world = World.of(OPTIONS["plain"], seed)
        outcome = by_rejection(world, CUTS[name][0], one_hot=True)
        assert distance(world, outcome) <= EXACT


def test_the_bad_scheduler_of_the_paper_is_as_bad_as_it_says() -> None:
    """p = (.7, .3), q = (.5, .5), only token A gets a row: (.85, .15) comes out (DSpark)."""
    p, q = torch.tensor([0.7, 0.3]).double(), torch.tensor([0.5, 0.5]).double()
    accepted_a = 0.5 * acceptance(float(p[0]), float(q[0]))
    assert accepted_a + (1 - 0.5) * float(p[0]) == pytest.approx(0.85)


def edges(laws: Laws, length: int) -> Tensor:
    """[C + 1] where the inverse distribution function of any law behind `length` tokens jumps."""
    sums = [laws[text].cumsum(0) for text in product(range(V), repeat=length)]
    every = torch.cat([torch.zeros(1).double(), *sums]).clamp(max=1.0).unique()
    return torch.cat([every[every < 1 - 1e-15], torch.ones(1).double()])


def drawn(law: Tensor, u: Tensor) -> Tensor:
    """The inverse distribution function at u [C]: one way of making a law from fixed noise."""
    return (u[:, None] > law.cumsum(0)[:-1]).sum(1)


def sampler_match_law(world: World, cut: CutRule) -> dict[Text, float]:
    """Every cell of the noise × every draft, all judged in one round."""
    limits = [edges(world.target, depth) for depth in range(DEPTH)]
    cells = [(limit[1:] + limit[:-1]) / 2 for limit in limits]
    weights = torch.cartesian_prod(*(limit.diff() for limit in limits)).prod(1)
    u = torch.cartesian_prod(*cells)
    said = {text: drawn(world.target[text], u[:, len(text)]) for text in world.target}
    outcome: dict[Text, float] = {}
    for drafts in product(range(V), repeat=K):
        mass = probability(world.drafter, drafts)
        samples = torch.stack([said[drafts[:place]] for place in range(K + 1)], dim=1)
        count = len(samples)
        table = Table.many(P(), count)
        verdict = SamplerMatch().verify(
            table.judged(
                certain(samples, V),
                torch.tensor([drafts]).expand(count, -1),
                torch.full((count,), cut(world, drafts)),
            )
        )
        for line in range(count):
            text: Text = tuple(verdict.emitted[line, : int(verdict.accepted[line]) + 1].tolist())
            while len(text) < DEPTH:
                text = (*text, int(said[text][line]))
            outcome[text] = outcome.get(text, 0.0) + mass * float(weights[line])
    return outcome


@pytest.mark.parametrize("name", CUTS)
def test_sampler_match_keeps_the_law_whatever_the_cut_looks_at(name: str) -> None:
    world = World.of(OPTIONS["plain"], seed=1)
    rule, looks_at = CUTS[name]
    assert looks_at <= SamplerMatch().lossless_cut
    assert distance(world, sampler_match_law(world, rule)) <= EXACT
