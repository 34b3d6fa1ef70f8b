"""DFlash and DSpark: published files load, and draft what a plain reading of the papers says."""

from collections.abc import Sequence
from functools import cache
from pathlib import Path

import pytest
import torch
from torch import Tensor

from outrider_worker.attention import default_attention
from outrider_worker.model.loader import LoadedModel, load_model
from outrider_worker.speculate import dflash
from outrider_worker.speculate.block_checkpoint import open_dflash
from outrider_worker.speculate.device import Chosen, DeviceDrafts
from outrider_worker.speculate.dflash import DFlashDrafter
from outrider_worker.speculate.drawn import drafts_of
from outrider_worker.speculate.scores import running_bins
from tests.support.block_layouts import DFLASH, DSPARK, deepspec, sliding, speculators
from tests.support.block_seats import BestChooser, BlockSeats
from tests.support.tiny_block_drafters import BLOCK, MASK_ID, PlainBlock, TinyBlock
from tests.support.tiny_models import VOCAB_SIZE, shared_tiny_llama

CPU = torch.device("cpu")
KNOWN = (70, 5, 64, 129, 1, 30, 66, 100)
"""Tokens known: across, at and before page ends, and one text of an anchor alone."""


@cache
def target() -> LoadedModel:
    return load_model(shared_tiny_llama())


def tables() -> dict[str, Tensor]:
    embedding = target().model.embed(torch.arange(VOCAB_SIZE)).clone()
    return {"embed_tokens.weight": embedding, "lm_head.weight": embedding}


def opened(tiny: TinyBlock, folder: Path, max_draft_tokens: int = 8) -> DFlashDrafter:
    tiny.write(folder, tables())
    return open_dflash(
        folder, target(), max_draft_tokens, torch.float32, CPU, default_attention(CPU)
    )


def texts(count: int = len(KNOWN)) -> list[Tensor]:
    noise = torch.Generator().manual_seed(11)
    return [torch.randint(3, VOCAB_SIZE, (200,), generator=noise) for _ in range(count)]


def plain(tiny: TinyBlock) -> PlainBlock:
    return PlainBlock(tiny, **dict(zip(("embedding", "head"), tables().values(), strict=True)))


def expected(
    tiny: TinyBlock, seats: BlockSeats, seat: int, known: int, drafted: list[int]
) -> tuple[Tensor, Tensor]:
    """(logits [d, V], confidence [d]) of one request whose drafts are `drafted`."""
    reference = plain(tiny)
    text = seats.state.history[seat].tolist()
    depth, first = len(drafted), 0 if tiny.from_anchor else 1
    rows = BLOCK if tiny.from_anchor else depth + 1
    hidden = reference.hidden(seats.features[seat][: known - 1], text[known - 1], rows)
    hidden = hidden[first : first + depth]
    logits, confidence = reference.logits(hidden), torch.full((depth,), 0.6)
    before, state = text[known - 1], torch.zeros(5)
    for step in range(depth):
        if tiny.markov:
            bias, state = reference.correction(hidden[step], before, state)
            logits[step] += bias
        if tiny.confidence:
            confidence[step] = reference.confidence(hidden[step], before, step)
        before = drafted[step]
    return logits, confidence


def check_against_reference(tiny: TinyBlock, drafter: DFlashDrafter, tokens: int) -> None:
    """All drafts of a batch, of requests of very different lengths."""
    seats, known = BlockSeats(target(), drafter, texts()), torch.tensor(KNOWN)
    seats.feed(known - 1)
    chooser = BestChooser()
    drafts = seats.propose(known, tokens, chooser)
    depth = min(tokens, tiny.drafts)
    assert drafts.lengths.tolist() == [depth] * len(KNOWN)
    for seat, length in enumerate(KNOWN):
        drawn = drafts.token_ids[seat, :depth].tolist()
        logits, confidence = expected(tiny, seats, seat, length, drawn)
        shown = torch.stack([step[seat] for step in chooser.shown])
        torch.testing.assert_close(shown, logits, atol=2e-4, rtol=1e-4)
        assert drafts.bins[seat, :depth].tolist() == running_bins(confidence[None])[0].tolist()


@pytest.mark.parametrize("layout", DFLASH)
def test_a_dflash_of_every_layout_drafts_as_published(layout: str, tmp_path: Path) -> None:
    tiny = DFLASH[layout]
    drafter = opened(tiny, tmp_path)
    assert drafter.traits.name == "dflash"
    assert drafter.traits.max_draft_tokens == tiny.drafts
    check_against_reference(tiny, drafter, tokens=8)
    check_against_reference(tiny, drafter, tokens=2)


@pytest.mark.parametrize("layout", DSPARK)
def test_a_dspark_of_every_layout_drafts_as_published(layout: str, tmp_path: Path) -> None:
    tiny = DSPARK[layout]
    drafter = opened(tiny, tmp_path)
    assert drafter.traits.name == "dspark"
    assert drafter.traits.max_draft_tokens == tiny.drafts
    check_against_reference(tiny, drafter, tokens=8)
    check_against_reference(tiny, drafter, tokens=2)


@pytest.mark.parametrize("tiny", [DFLASH["z-lab, nested"], deepspec("rnn"), sliding(True, 9)])
@pytest.mark.parametrize("batch", [1, 8])
def test_a_state_built_round_by_round_is_the_one_built_at_once(
    tiny: TinyBlock, batch: int, tmp_path: Path
) -> None:
    """Fed in chunks and accepted runs, drafting between them in every length, or from scratch."""
    choice = torch.Generator().manual_seed(batch)
    grown = BlockSeats(target(), opened(tiny, tmp_path / "a"), texts(batch))
    fresh_drafter = opened(tiny, tmp_path / "b")
    known = torch.tensor(KNOWN[:batch])
    grown.feed((known - 1) // 2)
    for round_ in range(14):
        grown.feed(known - 1)
        tokens = round_ % tiny.drafts + 1
        seen = BestChooser()
        drafts = grown.propose(known, tokens, seen)
        if round_ % 5 == 3:
            fresh = BlockSeats(target(), fresh_drafter, texts(batch), seed=round_)
            fresh.feed(known - 1)
            at_once = BestChooser()
            again = fresh.propose(known, tokens, at_once)
            assert again.token_ids.tolist() == drafts.token_ids.tolist()
            for ours, theirs in zip(seen.shown, at_once.shown, strict=True):
                torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=0)
        known = known + torch.randint(1, tokens + 2, (batch,), generator=choice)


def test_company_changes_no_bit_of_a_draft(tmp_path: Path) -> None:
    tiny = deepspec("gated")
    known, alone, together = torch.tensor(KNOWN), BestChooser(), BestChooser()
    many = BlockSeats(target(), opened(tiny, tmp_path / "a"), texts())
    many.feed(known - 1)
    drafts = many.propose(known, tiny.drafts, together)
    for seat in (0, 4, 7):
        one = BlockSeats(target(), opened(tiny, tmp_path / str(seat)), [texts()[seat]])
        one.feed(known[seat : seat + 1] - 1)
        single = one.propose(known[seat : seat + 1], tiny.drafts, alone)
        assert single.bins.tolist() == drafts.bins[seat : seat + 1].tolist()
        shown = torch.cat(alone.shown[-tiny.drafts :])
        assert torch.equal(shown, torch.stack([step[seat] for step in together.shown]))


def test_a_block_leaves_others_alone_and_needs_no_page_behind_the_anchor(tmp_path: Path) -> None:
    """The page after the anchor's is another's: written to, it would spoil that text's context."""
    tiny = deepspec()
    drafter = opened(tiny, tmp_path)
    seats, known = BlockSeats(target(), drafter, texts(2)), torch.tensor([63, 150])
    seats.feed(known - 1)
    before, after = BestChooser(), BestChooser()
    seats.propose(known, tiny.drafts, before)
    seats.state.page_table[0, 1:] = seats.state.page_table[1, 0]
    seats.propose(known, tiny.drafts, after)
    seats.propose(known, tiny.drafts, after)
    for ours, theirs in zip(before.shown * 2, after.shown, strict=True):
        assert torch.equal(ours, theirs)


def test_seats_that_may_get_no_draft_are_padding(tmp_path: Path) -> None:
    tiny = DFLASH["z-lab, nested"]
    seats = BlockSeats(target(), opened(tiny, tmp_path), texts(3))
    known = torch.tensor([70, 0, 20])
    seats.feed((known - 1).clamp(min=0))
    drafts = seats.propose(known, 3, BestChooser(), torch.tensor([2, 0, 0]))
    assert drafts.lengths.tolist() == [2, 0, 0]
    assert drafts.token_ids.shape == drafts.bins.shape == (3, 3)


@pytest.mark.parametrize(
    ("tiny", "sees"),
    [(DFLASH["z-lab, nested"], True), (sliding(False, 9), True), (sliding(True, 9), False)],
)
def test_rows_of_a_block_see_later_ones_unless_windows_are_causal(
    tiny: TinyBlock, sees: bool, tmp_path: Path
) -> None:
    drafter = opened(tiny, tmp_path)
    seats, known = BlockSeats(target(), drafter, texts(1)), torch.tensor([40])
    seats.feed(known - 1)
    embed, shown = drafter._model.embed, [BestChooser(), BestChooser()]

    def last_changed(token_ids: Tensor) -> Tensor:
        changed = embed(token_ids).clone()
        assert token_ids[-1] == MASK_ID
        changed[-1] += 1.0
        return changed

    seats.propose(known, tiny.drafts, shown[0])
    object.__setattr__(drafter._model, "embed", last_changed)
    seats.propose(known, tiny.drafts, shown[1])
    assert torch.equal(shown[0].shown[0], shown[1].shown[0]) is not sees


def test_a_confidence_sees_the_token_before_its_own_and_not_its_own(tmp_path: Path) -> None:
    tiny = deepspec("vanilla")
    seats, known = BlockSeats(target(), opened(tiny, tmp_path), texts(1)), torch.tensor([40])
    seats.feed(known - 1)

    def confidences(drawn: list[int]) -> list[float]:
        found: list[float] = []

        def spy(drawn: Sequence[Chosen], lengths: Tensor, columns: int) -> DeviceDrafts:
            found.extend(float(each.confidence) for each in drawn)
            return drafts_of(drawn, lengths, columns)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(dflash, "drafts_of", spy)
            seats.propose(known, tiny.drafts, BestChooser(torch.tensor([drawn])))
        return found

    first, second = confidences([10, 20, 30, 40]), confidences([10, 99, 30, 40])
    assert first[:2] == second[:2]
    assert first[2] != second[2]
    assert first[3] == second[3]


def test_one_set_of_weights_drafts_one_place_further_from_the_anchor(tmp_path: Path) -> None:
    """The two shifts read neighbouring rows of the same block."""
    inside = speculators("dflash", drafted=VOCAB_SIZE, from_anchor=False)
    outside = speculators("dflash", drafted=VOCAB_SIZE, from_anchor=True)
    shown = []
    for tiny in (inside, outside):
        seats = BlockSeats(target(), opened(tiny, tmp_path / str(tiny.from_anchor)), texts(1))
        known, chooser = torch.tensor([40]), BestChooser()
        seats.feed(known - 1)
        seats.propose(known, tiny.drafts, chooser)
        shown.append(chooser.shown)
    assert [len(steps) for steps in shown] == [BLOCK - 1, BLOCK]
    for ours, theirs in zip(shown[0], shown[1][1:], strict=True):
        assert torch.equal(ours, theirs)
