"""A separate draft model: its state, its limits, and what it may be given."""

from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import torch
from torch import Tensor

from outrider_worker.attention import make_attention
from outrider_worker.engine.types import SamplingParams
from outrider_worker.kv import PAGE_TOKENS, KvPool
from outrider_worker.model import CausalLM, load_model
from outrider_worker.model.loader import LoadedModel
from outrider_worker.speculate.device import Chosen, StatefulDrafter, StateSize
from outrider_worker.speculate.draft_model import DraftModel, open_draft_model
from outrider_worker.speculate.scores import running_bins
from tests.support.draft_rounds import DraftRounds
from tests.support.tiny_models import VOCAB_SIZE, make_tiny_llama, shared_tiny_llama
from tests.unit.worker.tensors.row_tables import random_text, rows_of

PROMPTS = [random_text(length, seed=length) for length in (5, 64, 90)]
SEEDED = SamplingParams(temperature=0.8, top_p=0.95, repetition_penalty=1.1, seed=11)


@cache
def target() -> LoadedModel:
    return load_model(shared_tiny_llama())


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> CausalLM:
    """The target's first block alone: it agrees with the whole now and then."""
    folder = make_tiny_llama(tmp_path_factory.mktemp("other"), num_hidden_layers=1)
    return load_model(folder).model


def drafter_of(model: CausalLM, most: int = 8) -> DraftModel:
    return DraftModel(model, VOCAB_SIZE, VOCAB_SIZE, most)


class Greedy:
    """Takes the best, and remembers the logits it was shown."""

    def __init__(self) -> None:
        self.shown: list[Tensor] = []

    def choose(self, logits: Tensor, step: int) -> Chosen:
        assert step == len(self.shown)
        self.shown.append(logits)
        confidence, token_ids = logits.softmax(-1).max(-1)
        return Chosen(token_ids, confidence)


@pytest.mark.parametrize("params", [SamplingParams(), SEEDED], ids=["greedy", "seeded"])
def test_the_target_itself_as_draft_model_is_always_right(params: SamplingParams) -> None:
    drafter: StatefulDrafter = drafter_of(target().model)
    rounds = DraftRounds(target().model, drafter, PROMPTS, params)
    start = int(rounds.known.min())
    for turn in range(1000):
        rounds.round((4, 1, 7, 0, 2)[turn % 5])
        if int(rounds.known.min()) >= start + 500:
            break
    proposed, accepted = rounds.counts
    assert proposed == accepted > 3 * 350
    if params.temperature:
        assert len(set(rounds.text(0)[5:])) > 50


def test_state_after_rejections_is_that_of_the_text_alone(other: CausalLM) -> None:
    """Drafts of every number, rounds without any: then K/V and logits as if fed at once."""
    drafter = drafter_of(other)
    rounds = DraftRounds(target().model, drafter, PROMPTS)
    for turn in range(30):
        rounds.round((3, 0, 0, 5, 1, 8, 2)[turn % 7])
    proposed, accepted = rounds.counts
    assert 0.05 * proposed < accepted < 0.95 * proposed
    rounds.feed()
    fresh, chunked = drafter_of(other), drafter_of(other)
    for each in (fresh, chunked):
        each.allocate(len(PROMPTS), rounds.pages)
    _swap(rounds, fresh)
    rounds.feed()
    _swap(rounds, chunked)
    for part in (40, 41, 77):
        rounds.feed(torch.minimum(torch.full_like(rounds.fed, part), rounds.known - 1))
    rounds.feed()
    drafts, shown = [], []
    for each in (drafter, fresh, chunked):
        chooser = Greedy()
        asked = replace(rounds.batch(torch.tensor([4, 4, 4])), chooser=chooser)
        drafts.append(each.propose(asked, 4).token_ids)
        shown.append(torch.stack(chooser.shown))
    assert torch.equal(drafts[0], drafts[1])
    assert torch.equal(shown[0], shown[1])
    assert torch.equal(shown[0], shown[2])
    for seat in range(len(PROMPTS)):
        positions = torch.arange(int(rounds.known[seat]))
        page = rounds.state.page_table[seat, positions // PAGE_TOKENS]
        for layer in range(other.config.layers):
            keys = [
                pool.keys[layer][page, :, :, positions % PAGE_TOKENS]
                for pool in (_pool(drafter), _pool(fresh))
            ]
            assert torch.equal(*keys)


def _swap(rounds: DraftRounds, drafter: DraftModel) -> None:
    """The same texts for a drafter that has seen none of them."""
    rounds._drafter = drafter
    rounds.fed = torch.zeros_like(rounds.fed)


def _pool(drafter: DraftModel) -> KvPool:
    assert drafter._pool is not None
    return drafter._pool


def test_drafts_stay_within_limits_and_in_their_own_slots(other: CausalLM) -> None:
    """The anchor of request 1 is the last token of its page; nobody reserved the next one."""
    drafter = drafter_of(other)
    rounds = DraftRounds(target().model, drafter, PROMPTS)
    rounds.feed()
    before = [keys.clone() for keys in _pool(drafter).keys]
    asked = rounds.batch(torch.tensor([3, 1, 0]))
    drafts = drafter.propose(replace(asked, chooser=Greedy()), 4)
    assert drafts.lengths.tolist() == [3, 1, 0]
    assert drafts.token_ids.shape == drafts.bins.shape == (3, 4)
    expected = {(0, position) for position in (4, 5, 6)} | {(1, 63)}
    table = rounds.state.page_table
    slots = {(int(table[seat, at // PAGE_TOKENS]), at % PAGE_TOKENS) for seat, at in expected}
    changed = (before[0] != _pool(drafter).keys[0]).any(dim=2).any(dim=1).nonzero().tolist()
    assert {(page, offset) for page, offset in changed if page != 0} == slots


def test_padding_requests_and_longest_drafts(other: CausalLM) -> None:
    drafter = drafter_of(other, most=2)
    rounds = DraftRounds(target().model, drafter, PROMPTS[:2])
    rounds.feed()
    asked = rounds.batch(torch.tensor([9, 9]))
    padded = replace(
        asked,
        seats=torch.tensor([0, 2]),
        known=torch.tensor([5, 0]),
        limit=torch.tensor([9, 0]),
        chooser=Greedy(),
    )
    assert drafter.propose(padded, 3).lengths.tolist() == [2, 0]


def test_bins_are_of_the_running_product_of_confidences(other: CausalLM) -> None:
    drafter, chooser = drafter_of(other), Greedy()
    rounds = DraftRounds(target().model, drafter, PROMPTS)
    rounds.feed()
    drafts = drafter.propose(replace(rounds.batch(torch.tensor([3, 3, 3])), chooser=chooser), 3)
    believed = torch.stack([logits.softmax(-1).amax(-1) for logits in chooser.shown], dim=1)
    assert torch.equal(drafts.bins, running_bins(believed))
    assert drafts.bins.diff(dim=1).max() <= 0


def test_a_draft_model_of_a_shorter_context_stops_at_its_end(tmp_path: Path) -> None:
    folder = make_tiny_llama(tmp_path, max_position_embeddings=66)
    drafter = drafter_of(load_model(folder).model)
    assert drafter.traits.max_context_tokens == 66
    rounds = DraftRounds(target().model, drafter, PROMPTS)
    rounds.feed()
    asked = replace(rounds.batch(torch.tensor([4, 4, 4])), chooser=Greedy())
    assert drafter.propose(asked, 4).lengths.tolist() == [4, 3, 0]


def test_vocabularies_filled_up_to_other_sizes(tmp_path: Path) -> None:
    """Filling is never drafted, and tokens that only the target has logits for do no harm."""
    big = load_model(make_tiny_llama(tmp_path / "big", vocab_size=320))
    small = make_tiny_llama(tmp_path / "small", vocab_size=272)
    drafter = open_draft_model(small, big, 4)
    rounds = DraftRounds(big.model, drafter, [[5, 310, 6], [7, 8]])
    rounds.feed()
    chooser = Greedy()
    drafter.propose(replace(rounds.batch(torch.tensor([2, 2])), chooser=chooser), 2)
    for logits in chooser.shown:
        assert logits.shape == (2, 320)
        assert logits[:, :VOCAB_SIZE].isfinite().all()
        assert (logits[:, VOCAB_SIZE:] == -torch.inf).all()
    reference = load_model(small).model
    pool = KvPool.of_pages(reference.config, 2, torch.float32)
    hidden = reference.forward(rows_of([[7, 8]], [[1]], [(0, range(2))]), pool)
    expected = reference.logits(hidden[1:])[0, :VOCAB_SIZE]
    assert torch.equal(chooser.shown[0][1, :VOCAB_SIZE], expected)


def test_proposing_does_not_wait_for_the_device(tmp_path: Path) -> None:
    pytest.importorskip("triton")
    from tests.unit.worker.tensors.test_no_waiting import NoWaiting

    folder = make_tiny_llama(tmp_path, num_hidden_layers=1)
    drafter = drafter_of(load_model(folder, backend=make_attention("triton")).model)
    rounds = DraftRounds(target().model, drafter, [[5, 6, 7], [8, 9]])
    rounds.feed()
    asked = replace(rounds.batch(torch.tensor([2, 1])), chooser=Greedy())
    with NoWaiting():
        drafts = drafter.propose(asked, 2)
    assert drafts.lengths.tolist() == [2, 1]


def test_memory_of_a_token_is_that_of_its_keys_and_values() -> None:
    assert drafter_of(target().model).state_size == StateSize(2 * 2 * 16 * 4)
