"""Whatever rounds came before: a drafter's state is that of a prefill of the same text.

This is what catches pairs that are off by one, keys left over from drafts, wrong positions and
wrong roll-back. Texts are fixed and the accepted counts random, so the state is compared where
any target could have brought it.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import Tensor

from outrider_worker.kv import KvPool
from outrider_worker.model.loader import LoadedModel, load_model
from outrider_worker.speculate.checkpoints import open_drafter
from outrider_worker.speculate.device import FedRows, StateSize
from outrider_worker.speculate.mtp_vanilla import VanillaMtpDrafter
from outrider_worker.speculate.pairs import PairDrafter
from tests.support.drafter_oracle import (
    COURSES,
    MAX_DRAFT_TOKENS,
    Subject,
    check_oracle,
)
from tests.support.head_checkpoints import (
    DRAFT_SETTINGS,
    Eagle3Weights,
    MtpWeights,
    deepseek_layout,
    write_head,
)
from tests.support.pair_rounds import PairRounds, random_texts
from tests.support.tiny_models import VOCAB_SIZE, make_tiny_llama
from tests.support.tiny_sparse_models import make_tiny_sparse
from tests.unit.worker.tensors.test_no_waiting import NoWaiting

_DEPTH = MAX_DRAFT_TOKENS
_ROUNDS = 12

Make = Callable[[], PairDrafter]


def _mtp(target: LoadedModel, folder: Path, modules: int) -> PairDrafter:
    settings = json.loads((target.folder / "config.json").read_text())
    layout = deepseek_layout(target.config.layers)
    weights = [MtpWeights.random(settings, seed) for seed in range(modules)]
    tensors = {n: t for index, each in enumerate(weights) for n, t in layout(index, each).items()}
    return _opened(write_head(folder, {}, tensors), target)


def _eagle3(target: LoadedModel, folder: Path) -> PairDrafter:
    weights = Eagle3Weights.random(layers=2)
    config = {
        **DRAFT_SETTINGS,
        "num_hidden_layers": 2,
        "draft_vocab_size": 100,
        "eagle_aux_hidden_state_layer_ids": [0, 2, 3],
    }
    return _opened(
        write_head(folder, config, {**weights.stored(), **weights.maps(VOCAB_SIZE)}), target
    )


def _opened(folder: Path, target: LoadedModel) -> PairDrafter:
    drafter = open_drafter(folder, target, _DEPTH)
    assert isinstance(drafter, PairDrafter)
    return drafter


@pytest.fixture(scope="module")
def kinds(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[LoadedModel, Make]]:
    """Of each kind: its target, and how it is made."""
    base = tmp_path_factory.mktemp("models")
    dense = load_model(make_tiny_llama(base / "dense", num_hidden_layers=3))
    sparse = load_model(make_tiny_sparse(base / "sparse", "deepseek_v3"))
    return {
        "mtp": (dense, partial(_mtp, dense, base / "mtp", 1)),
        "mtp with latents and experts": (sparse, partial(_mtp, sparse, base / "sparse-mtp", 1)),
        "mtp vanilla": (dense, partial(_mtp, dense, base / "vanilla", 3)),
        "eagle3": (dense, partial(_eagle3, dense, base / "eagle3")),
    }


_KINDS = ("mtp", "mtp with latents and experts", "mtp vanilla", "eagle3")
_LED = [
    *((kind, course) for kind in ("mtp", "mtp vanilla", "eagle3") for course in COURSES),
    ("mtp with latents and experts", "preempted"),
]
"""Kinds and the courses that an engine leads them through."""


def _random_rounds(rounds: PairRounds, seed: int) -> None:
    """Draft lengths change every round, 0 among them; some rounds feed, some leave it for later."""
    generator = torch.Generator().manual_seed(seed)
    seats = len(rounds.seats)
    for _ in range(_ROUNDS):
        depth = int(torch.randint(0, _DEPTH + 1, (), generator=generator))
        if depth:
            rounds.feed()
            rounds.propose(depth, torch.randint(0, depth + 1, (seats,), generator=generator))
        rounds.commit(1 + torch.randint(0, depth + 1, (seats,), generator=generator))
    rounds.feed()


@pytest.mark.parametrize("kind", _KINDS)
def test_state_is_that_of_a_prefill(kind: str, kinds: dict[str, tuple[LoadedModel, Make]]) -> None:
    """Eight texts at once, fed in small chunks, committed by other counts each."""
    target, make = kinds[kind]
    texts = random_texts([200] * 8, VOCAB_SIZE)
    rounds = PairRounds(target, make(), texts, [2 + 17 * seat for seat in range(8)])
    rounds.feed(most_rows=7)
    _random_rounds(rounds, seed=8)
    afresh = PairRounds(target, make(), texts, rounds.known.tolist())
    afresh.feed()

    behind = 2 if isinstance(rounds.drafter, VanillaMtpDrafter) else 0
    for seat in range(8):
        found, wanted = (each.committed_kv(seat, behind) for each in (rounds, afresh))
        assert len(found) > 0
        torch.testing.assert_close(found, wanted, atol=1e-5, rtol=0)
    drafts, logits = rounds.propose(_DEPTH)
    expected, expected_logits = afresh.propose(_DEPTH)
    torch.testing.assert_close(logits, expected_logits, atol=1e-5, rtol=0)
    assert torch.equal(drafts.token_ids, expected.token_ids)
    assert torch.equal(drafts.bins, expected.bins)


@pytest.mark.parametrize(("kind", "course"), _LED)
def test_state_is_that_of_a_prefill_in_an_engine(
    kind: str, course: str, kinds: dict[str, tuple[LoadedModel, Make]]
) -> None:
    target, make = kinds[kind]
    subject = Subject(target, make, _pool_of, layers_behind=int(kind == "mtp vanilla"))
    check_oracle(subject, COURSES[course])


def _pool_of(drafter: PairDrafter) -> KvPool:
    return drafter.pool


@pytest.mark.parametrize("kind", _KINDS)
def test_a_requests_drafts_do_not_depend_on_company(
    kind: str, kinds: dict[str, tuple[LoadedModel, Make]]
) -> None:
    target, make = kinds[kind]
    known = [30, 64, 65, 66, 100, 2, 3, 129]
    texts = random_texts(known, VOCAB_SIZE)

    def proposed(which: list[int]) -> Tensor:
        rounds = PairRounds(target, make(), [texts[i] for i in which], [known[i] for i in which])
        rounds.feed()
        return rounds.propose(_DEPTH)[1]

    together = proposed(list(range(8)))
    for seat in range(8):
        assert torch.equal(proposed([seat])[:, 0], together[:, seat])


@pytest.mark.parametrize("kind", _KINDS)
def test_a_seat_forgets_who_sat_there(
    kind: str, kinds: dict[str, tuple[LoadedModel, Make]]
) -> None:
    target, make = kinds[kind]
    long, short = random_texts([200, 12], VOCAB_SIZE)
    rounds = PairRounds(target, make(), [long, short], [200, 12])
    rounds.feed()
    rounds.propose(_DEPTH)
    rounds.reseat(seat=0, like=1)
    rounds.feed()
    _, logits = rounds.propose(_DEPTH)
    assert torch.equal(logits[:, 0], logits[:, 1])


@pytest.mark.parametrize("kind", _KINDS)
def test_limits_and_padding_requests(kind: str, kinds: dict[str, tuple[LoadedModel, Make]]) -> None:
    target, make = kinds[kind]
    texts = random_texts([200] * 4, VOCAB_SIZE)
    rounds = PairRounds(target, make(), texts, [40, 50, 60, 70])
    rounds.feed()
    before = [rounds.committed_kv(seat).clone() for seat in range(4)]
    unlimited, _ = rounds.propose(2)
    drafts, _ = rounds.propose(6, torch.tensor([0, 1, 2, 9]))
    most = rounds.drafter.traits.max_draft_tokens
    assert drafts.token_ids.shape == drafts.bins.shape == (4, 6)
    assert drafts.lengths.tolist() == [0, 1, 2, most]
    assert torch.equal(drafts.token_ids[:, :1], unlimited.token_ids[:, :1])
    if not isinstance(rounds.drafter, VanillaMtpDrafter):
        for seat in range(4):
            assert torch.equal(rounds.committed_kv(seat), before[seat])

    rounds.state.known[rounds.seats[:1]] = 0  # as a padding row of a round looks
    padded, _ = rounds.propose(2)
    assert padded.lengths[0] == 0
    assert torch.equal(padded.token_ids[1:], unlimited.token_ids[1:])


@pytest.mark.parametrize("kind", ["mtp", "mtp vanilla", "eagle3"])
def test_neither_feeding_nor_drafting_waits_for_a_device(
    kind: str, kinds: dict[str, tuple[LoadedModel, Make]], monkeypatch: pytest.MonkeyPatch
) -> None:
    target, make = kinds[kind]
    rounds = PairRounds(target, make(), random_texts([70, 5], VOCAB_SIZE), [70, 5])
    feed = rounds.drafter.feed

    def watched(fed: FedRows) -> None:
        with NoWaiting():
            feed(fed)

    monkeypatch.setattr(rounds.drafter, "feed", watched)
    rounds.feed()
    with NoWaiting():
        drafts, _ = rounds.propose(_DEPTH)
    assert int(drafts.lengths.min()) > 0


def test_nothing_asked_gives_nothing(kinds: dict[str, tuple[LoadedModel, Make]]) -> None:
    target, make = kinds["mtp"]
    rounds = PairRounds(target, make(), random_texts([20], VOCAB_SIZE), [20])
    rounds.feed()
    drafts = rounds.drafter.propose(rounds.batch(0), 0)
    assert drafts.token_ids.shape == (1, 0)
    assert drafts.lengths.tolist() == [0]


def test_state_is_counted(kinds: dict[str, tuple[LoadedModel, Make]]) -> None:
    """Bytes of a token: K and V of two heads of 16 in two layers; one head of the target's each.

    Bytes of a seat: one hidden state of 48.
    """
    assert kinds["eagle3"][1]().state_size == StateSize(2 * 2 * 2 * 16 * 4, 48 * 4)
    assert kinds["mtp vanilla"][1]().state_size == StateSize(3 * 2 * 16 * 4, 48 * 4)
