"""Picking rows on the device equals picking them on the host, ties and all."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from outrider_worker.engine.plans import Plan, ScoreMap
from outrider_worker.engine.types import Draft, Request, RequestKey, RequestSpec, SamplingParams
from outrider_worker.speculate import select
from outrider_worker.speculate.pick import chain_scores, pick, survival_table

DRAFTS = 6
CLASSES = ("", "code", "vip")

# Few different values, so that ties are the rule.
chain = st.lists(st.sampled_from([0.0, 0.1, 0.25, 0.6, 1.0]), max_size=DRAFTS).map(
    lambda scores: sorted(scores, reverse=True)
)
survival = st.lists(
    st.lists(st.floats(0, 1.25, width=16), min_size=1, max_size=16), min_size=1, max_size=4
)
maps = st.lists(st.one_of(st.none(), survival), min_size=len(CLASSES), max_size=len(CLASSES))
weights = st.lists(
    st.sampled_from([0.0, 0.3, 1.0, 2.5]), min_size=len(CLASSES), max_size=len(CLASSES)
)
drafted = st.tuples(st.integers(0, len(CLASSES) - 1), st.lists(st.integers(0, 15), max_size=DRAFTS))


def padded(rows: list[list[float]], fill: float) -> torch.Tensor:
    return torch.tensor([[*row, *[fill] * (DRAFTS - len(row))] for row in rows])


@given(chains=st.lists(chain, min_size=1, max_size=8), verify=st.integers(0, 50))
def test_picks_equal_those_of_the_host(chains: list[list[float]], verify: int) -> None:
    """What lies behind a chain's end may score higher than all that is real."""
    lengths = torch.tensor([len(scores) for scores in chains])
    counts = pick(padded(chains, fill=9.0), lengths, verify)
    assert counts.tolist() == select.pick_prefixes(chains, verify)
    assert int(counts.sum()) == min(verify, int(lengths.sum()))


def test_ties_go_to_the_smaller_position_then_to_the_earlier_chain() -> None:
    scores = torch.tensor([[0.5, 0.5], [0.5, 0.5], [0.9, 0.5]])
    lengths = torch.tensor([2, 2, 2])
    picks = [pick(scores, lengths, verify).tolist() for verify in range(7)]
    assert picks == [
        [0, 0, 0],
        [0, 0, 1],
        [1, 0, 1],
        [1, 1, 1],
        [2, 1, 1],
        [2, 2, 1],
        [2, 2, 2],
    ]


@given(maps=maps, weights=weights, drafts=st.lists(drafted, min_size=1, max_size=6))
def test_scores_equal_those_of_the_host(
    maps: list[list[list[float]] | None],
    weights: list[float],
    drafts: list[tuple[int, list[int]]],
) -> None:
    """Bit for bit, with and without a map, so that both sides see the same ties."""
    score_maps = [None if each is None else ScoreMap(1, tuple(map(tuple, each))) for each in maps]
    plan = _plan(score_maps, weights)
    scores = chain_scores(
        bins=padded([list(map(float, bins)) for _, bins in drafts], fill=-7).long(),
        lengths=torch.tensor([len(bins) for _, bins in drafts]),
        survival=survival_table(score_maps, DRAFTS),
        class_row=torch.tensor([line for line, _ in drafts]),
        weight=torch.tensor([weights[line] for line, _ in drafts], dtype=torch.float64),
    )
    for row, (line, bins) in zip(scores.tolist(), drafts, strict=True):
        expected = select.chain_scores(_drafting(CLASSES[line], bins), plan, "ngram")
        assert row == expected + [0.0] * (DRAFTS - len(bins))


def _plan(score_maps: list[ScoreMap | None], weights: list[float]) -> Plan:
    named = {f"{label}/greedy" if label else "greedy": i for i, label in enumerate(CLASSES)}
    return Plan(
        version=1,
        requests_ladder=(1,),
        budgets={},
        score_maps={
            ("ngram", name): each
            for name, line in named.items()
            if (each := score_maps[line]) is not None
        },
        class_weights={name: weights[line] for name, line in named.items()},
    )


def _drafting(class_label: str, bins: list[int]) -> Request:
    key = RequestKey("o", "r")
    request = Request.from_spec(RequestSpec(key, (3,), SamplingParams(), class_label=class_label))
    request.draft = Draft((5,) * len(bins), tuple(bins), len(bins))
    return request


def test_without_drafts_there_is_nothing_to_pick() -> None:
    nothing, bins = torch.zeros(2).long(), torch.zeros(2, 0).long()
    scores = chain_scores(bins, nothing, survival_table([None], 4), nothing, torch.ones(2).double())
    assert scores.shape == (2, 0)
    assert pick(scores, nothing, 3).tolist() == [0, 0]


def test_nothing_is_read_by_the_host() -> None:
    """Tensors without data have nothing to branch on: shapes must follow from shapes."""
    bins = torch.empty(3, DRAFTS, dtype=torch.int64, device="meta")
    row, weight = bins[:, 0], torch.empty(3, dtype=torch.float64, device="meta")
    table = survival_table([None], DRAFTS).to("meta")
    counts = pick(chain_scores(bins, row, table, row, weight), row, 4)
    assert (counts.shape, counts.dtype, counts.device.type) == ((3,), torch.int64, "meta")
