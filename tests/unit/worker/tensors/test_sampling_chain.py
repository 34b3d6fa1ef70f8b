"""The chain on every row: options act where they should, together, and on nobody else."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch._subclasses.fake_tensor import DynamicOutputShapeException, FakeTensorMode

from outrider_worker.engine.types import SamplingParams
from outrider_worker.sampling import Stages, adjust, logprobs_of, sample, stages_of
from tests.unit.worker.tensors.sampling_cases import END_IDS, Toy, batch

V = 40
P = SamplingParams
OPTIONS = {
    "greedy": P(),
    "seeded": P(temperature=1.0, seed=11),
    "filters": P(temperature=1.2, seed=5, top_k=7, top_p=0.9, min_p=0.01),
    "repetition": P(repetition_penalty=1.7),
    "presence": P(temperature=0.8, seed=3, presence_penalty=1.5),
    "frequency": P(frequency_penalty=0.9),
    "bias": P(temperature=1.0, logit_bias=((4, 3.0), (9, -100.0))),
    "bad_words": P(bad_words=((5,), (6, 7), (8, 9, 10))),
    "min_tokens": P(temperature=1.0, seed=2, min_tokens=9),
    "everything": P(
        temperature=1.1,
        seed=(1 << 64) - 3,
        top_k=30,
        top_p=0.95,
        min_p=0.001,
        repetition_penalty=0.8,
        presence_penalty=0.7,
        frequency_penalty=-0.4,
        logit_bias=((1, 4.0),),
        bad_words=((2, 2), (7,)),
        min_tokens=6,
    ),
}


@pytest.fixture(scope="module")
def toy() -> Toy:
    return Toy(torch.randn(V, V, generator=torch.Generator().manual_seed(8)) * 2)


@pytest.mark.parametrize("name", OPTIONS)
def test_every_option_gives_the_same_text_at_any_depth(toy: Toy, name: str) -> None:
    """A10, A17, A20: whatever is drafted, a token is what it would have been without drafts."""
    params = replace(OPTIONS[name], max_tokens=30)
    plain = toy.generate(params)
    # Right in two places of three, and on beyond the end.
    drafts = [token if at % 3 else (token + 1) % V for at, token in enumerate([*plain, *range(9)])]
    for depth in (1, 3, 7):
        assert toy.generate(params, plain, depth) == plain
        assert toy.generate(params, drafts, depth) == plain


@pytest.mark.parametrize("depth", [0, 1, 3, 7])
def test_the_previous_token_can_be_banned(depth: int) -> None:
    """A19: a row's history ends with the token that the row is of."""
    toy = Toy(torch.eye(8) * 5 + torch.arange(8) * 0.1)
    params = P(max_tokens=40, bad_words=tuple((t, t) for t in range(8)), logit_bias=((1, -100),))
    repeated = toy.generate(params, [7] * 40, depth)
    assert len(repeated) == 40
    assert all(a != b for a, b in zip([3, *repeated], repeated, strict=False))
    free = toy.generate(replace(params, bad_words=()), [7] * 40, depth)
    assert free == [3] * 40


@pytest.mark.parametrize("depth", [0, 1, 4])
@pytest.mark.parametrize("length", [0, 1, 5, 6])
def test_min_tokens_are_exact(depth: int, length: int) -> None:
    """A10: a model that always wants to end does so at exactly that length."""
    toy = Toy(torch.tensor([0.0, 9.0, 1.0, 0.5]).repeat(4, 1))
    params = P(max_tokens=20, min_tokens=length)
    assert toy.generate(params, [2, 1, 2, 1, 1, 2, 2, 2], depth) == [2] * length


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_biases_of_a_hundred_decide(temperature: float) -> None:
    logits = torch.randn(30, V, generator=torch.Generator().manual_seed(3)) * 3
    favourite = batch([P(temperature, seed=s, logit_bias=((17, 100.0),)) for s in range(30)])
    assert favourite.sample(logits) == [17] * 30
    best = logits.argmax(-1).tolist()
    banned = batch([P(temperature, seed=s, logit_bias=((t, -100.0),)) for s, t in enumerate(best)])
    assert all(token != t for token, t in zip(banned.sample(logits), best, strict=True))


def test_a_bias_given_twice_adds_up() -> None:
    logits = torch.tensor([[0.0, 1.0, 2.5]])
    twice = batch([P(logit_bias=((0, 1.5), (0, 1.5)))])
    assert twice.sample(logits) == [0]


def bitmask(allowed: list[list[int]], vocabulary: int) -> Tensor:
    words = torch.zeros(len(allowed), -(-vocabulary // 32), dtype=torch.int64)
    for row, ids in enumerate(allowed):
        for token in ids:
            words[row, token // 32] |= 1 << (token % 32)
    return words.to(torch.int32)


@pytest.mark.parametrize("sparse", [True, False])
def test_a_mask_rules_out_whatever_else_is_asked(sparse: bool) -> None:
    logits = torch.randn(4, V, generator=torch.Generator().manual_seed(4))
    requests = batch([P(), P(temperature=1.0), P(logit_bias=((3, 100.0),)), P()])
    mask = bitmask([[31], [32, 39], [0, 38]], V)
    mask = torch.cat([mask, torch.full((1, 2), -1, dtype=torch.int32)])
    tokens = requests.sample(logits, mask, sparse=sparse)
    assert tokens[0] == 31
    assert tokens[1] in (32, 39)
    assert tokens[2] in (0, 38)
    assert tokens[3] == int(logits[3].argmax())


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_where_a_grammar_allows_banned_tokens_only_the_grammar_is_kept(temperature: float) -> None:
    """A finished grammar allows nothing but the end, which `min_tokens` would forbid."""
    asked = P(temperature, min_tokens=5, bad_words=((1,), (6,)))
    mask = bitmask([[1], [6, 7]], V)
    tokens = batch([asked, asked]).sample(torch.zeros(2, V), mask)
    assert tokens == [1, 7]


def test_a_mask_and_its_stage_come_together() -> None:
    one, logits = batch([P()]), torch.zeros(1, V)
    with pytest.raises(ValueError, match="MASK"):
        sample(logits, one.rows, one.table, Stages.MASK)
    with pytest.raises(ValueError, match="MASK"):
        sample(logits, one.rows, one.table, Stages.NONE, bitmask([[1]], V))


@given(st.data())
@settings(max_examples=40)
def test_no_row_is_touched_by_what_others_ask_for(data: st.DataObject) -> None:
    """A12: any mixture, any order, in both ways: each row as if it were alone."""
    names = data.draw(st.lists(st.sampled_from(sorted(OPTIONS)), min_size=1, max_size=8))
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 999)))
    sizes = [data.draw(st.integers(1, 30)) for _ in names]
    histories = [torch.randint(V, (size,), generator=generator).tolist() for size in sizes]
    prompts = [data.draw(st.integers(1, size)) for size in sizes]
    logits = torch.randn(len(names), V, generator=generator) * 2
    before = logits.clone()
    together = batch([OPTIONS[name] for name in names], histories, prompts)
    tokens = together.sample(logits)
    assert together.sample(logits, sparse=False) == tokens
    order = torch.randperm(len(names), generator=generator).tolist()
    assert together.take(order).sample(logits[order]) == [tokens[at] for at in order]
    for row, name in enumerate(names):
        alone = batch([OPTIONS[name]], [histories[row]], [prompts[row]])
        # Seats differ, so does what the lists of the others have left behind.
        assert alone.sample(logits[row : row + 1]) == [tokens[row]]
    assert torch.equal(logits, before)


@pytest.mark.parametrize("sparse", [True, False])
def test_logits_of_rows_that_ask_for_nothing_keep_their_bits(sparse: bool) -> None:
    logits = torch.randn(len(OPTIONS), V, generator=torch.Generator().manual_seed(6))
    requests = batch([*OPTIONS.values()], [[0, 4, 5, 6]] * len(OPTIONS))
    adjusted = adjust(logits, requests.rows, requests.table, requests.stages, sparse=sparse)
    for row, each in enumerate(OPTIONS.values()):
        plain = not stages_of(each) & ~(Stages.DRAW | Stages.FILTER)
        assert torch.equal(adjusted[row], logits[row]) == plain


def test_many_rows_are_worked_off_in_parts() -> None:
    rows = 300
    logits = torch.randn(rows, V, generator=torch.Generator().manual_seed(7))
    requests = batch([P(temperature=float(row % 2), seed=row) for row in range(rows)])
    tokens = requests.sample(logits)
    assert len(tokens) == rows
    for row in (0, 127, 128, 129, 255, 256, 299):
        assert requests.take([row]).sample(logits[row : row + 1]) == [tokens[row]]
    assert requests.take([]).sample(logits[:0]) == []


def test_end_ids_are_free_without_min_tokens() -> None:
    logits = torch.zeros(1, V)
    logits[0, list(END_IDS)] = 5.0
    assert batch([P(temperature=0.0)]).sample(logits) == list(END_IDS)


def test_on_other_devices_nothing_waits_for_values() -> None:
    """Tensors without values refuse whatever would have to look at one."""
    requests = batch(list(OPTIONS.values()))
    logits = torch.zeros(len(OPTIONS), V)
    with FakeTensorMode(allow_non_fake_inputs=True):
        mask = torch.full((len(OPTIONS), 2), -1, dtype=torch.int32)
        stages = requests.stages | Stages.MASK
        tokens = sample(logits, requests.rows, requests.table, stages, mask, sparse=False)
        assert tokens.shape == (len(OPTIONS),)
        assert logprobs_of(logits, tokens, 5).top_ids.shape == (len(OPTIONS), 5)
        with pytest.raises(DynamicOutputShapeException):
            sample(logits, requests.rows, requests.table, stages, mask, sparse=True)


def test_logprobs_can_be_of_what_the_options_left() -> None:
    logits = torch.zeros(1, 4)
    one = batch([P(logit_bias=((2, 100.0),), bad_words=((3,),))])
    raw = logprobs_of(logits, torch.tensor([2]), 4)
    assert raw.logprob.exp().tolist() == pytest.approx([0.25])
    adjusted = adjust(logits, one.rows, one.table, one.stages)
    processed = logprobs_of(adjusted, torch.tensor([2]), 4)
    assert processed.logprob.exp().tolist() == pytest.approx([1.0])
    assert processed.top_ids.tolist() == [[2, 0, 1, 3]]
    assert processed.top_logprobs.isfinite().all()
