"""From settings to a worker whose drafters are loaded, measured, given memory and named."""

import re
from pathlib import Path

import pytest
import torch

from outrider_worker import assembly
from outrider_worker.assembly import Assembly, assemble
from outrider_worker.attention import default_attention
from outrider_worker.engine.drafters import Drafters
from outrider_worker.identity import file_digest
from outrider_worker.kv import PAGE_TOKENS, KvPool
from outrider_worker.model.config import ModelError
from outrider_worker.model.loader import load_model
from outrider_worker.open_drafters import (
    Target,
    drafter_digests,
    names_a_checkpoint,
    open_drafters,
)
from outrider_worker.open_verifier import kept_bytes, open_verifier
from outrider_worker.settings import WorkerSettings
from outrider_worker.speculate.drafter import UnknownDrafter
from tests.support.block_layouts import DFLASH, DSPARK
from tests.support.engines import tiny_model
from tests.support.head_checkpoints import DRAFT_SETTINGS, Eagle3Weights, write_head
from tests.support.neural_drafters import block_drafter
from tests.support.tiny_block_drafters import TinyBlock
from tests.support.tiny_models import VOCAB_SIZE, make_tiny_llama, shared_tiny_llama


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def _assembled(drafter: str, **settings: object) -> Assembly:
    small = {"max_running": 2, "max_rows": 8, "context": 128, "max_draft": 2, "kv_gib": 0.01}
    return assemble(
        WorkerSettings(
            model=str(shared_tiny_llama()),
            drafter=drafter,
            threads=1,
            device="cpu",
            **{**small, **settings},  # type: ignore[arg-type]
        )
    )


def test_host_drafters_and_a_draft_model_together(tmp_path: Path) -> None:
    draft = make_tiny_llama(tmp_path / "draft", num_hidden_layers=1)
    plain, both = _assembled("ngram"), _assembled(f"ngram, predicted, draft:{draft}")
    assert [traits.name for traits in both.drafter_traits] == ["draft", "ngram", "predicted"]
    costs = {each.drafter: each for each in both.parts.costs.drafters}
    assert set(costs) == {"draft", "ngram", "predicted"}
    assert [curve.rows for curve in costs["draft"].feed] == [both.row_ladder] * 2
    assert not costs["ngram"].feed
    assert all(t.median_s > 0 for curve in costs["draft"].feed for t in curve.timings)
    # The same budget holds fewer tokens where each costs a third layer.
    capacity = [each.parts.pages.capacity_pages for each in (plain, both)]
    assert capacity[1] == pytest.approx(capacity[0] * 2 / 3, abs=2)
    assert plain.identity.digest != both.identity.digest


def test_laws_are_no_wider_than_what_is_drafted(tmp_path: Path) -> None:
    weights = Eagle3Weights.random(draft_vocab_size=64)
    settings = {"draft_vocab_size": 64, "eagle_aux_hidden_state_layer_ids": [0, 1, 2]}
    tensors = {**weights.stored(), **weights.maps(VOCAB_SIZE)}
    head = write_head(tmp_path, {**DRAFT_SETTINGS, **settings}, tensors)
    cpu = torch.device("cpu")
    target = Target(load_model(shared_tiny_llama()), torch.float32, cpu, default_attention(cpu))
    wishes = WorkerSettings(verifier="rejection", max_running=8, max_draft=2)
    small, whole = (open_drafters([name], 2, target) for name in (str(head), "ngram"))
    assert kept_bytes(open_verifier(wishes, target, small)) == (8 + 1) * 2 * 64 * 4
    assert kept_bytes(open_verifier(wishes, target, whole)) == (8 + 1) * 2 * VOCAB_SIZE * 4
    assert kept_bytes(open_verifier(WorkerSettings(), target, small)) == 0


@pytest.mark.parametrize("kind", [DFLASH["speculators"], DSPARK["speculators"]])
def test_laws_of_block_drafters_are_no_wider_either(kind: TinyBlock) -> None:
    cpu = torch.device("cpu")
    target = Target(tiny_model(), torch.float32, cpu, default_attention(cpu))
    wishes = WorkerSettings(verifier="rejection", max_running=8, max_draft=2)
    drafters = Drafters(devices=[block_drafter(kind, 2)])
    assert kept_bytes(open_verifier(wishes, target, drafters)) == (8 + 1) * 2 * 86 * 4


def test_what_a_block_drafter_keeps_by_seat_is_paid_for(tmp_path: Path) -> None:
    """The budget holds pages, scratch of all seats and features, and not a page more."""
    folder = DFLASH["z-lab, nested"].write(tmp_path, {})
    assembly = _assembled(str(folder), max_running=8)
    drafter, feeding = assembly.parts.drafters.stateful, assembly.parts.runner._programs.feeding
    assert drafter is not None
    assert feeding is not None
    assert feeding.ring is not None
    size = drafter.state_size
    target_bytes = KvPool.bytes_per_token(assembly.config, torch.float32)
    page_bytes = (target_bytes + size.token_bytes) * PAGE_TOKENS
    pages = assembly.parts.pages.capacity_pages + 1
    taken = pages * page_bytes + 9 * size.seat_bytes + feeding.ring.nbytes
    assert size.seat_bytes > 0
    assert taken <= WorkerSettings(kv_gib=0.01).kv_bytes < taken + page_bytes


def test_laws_are_paid_for_by_the_budget() -> None:
    sizes = {"max_running": 8, "max_draft": 8}
    match, rejection = (
        _assembled("ngram", verifier=verifier, **sizes)
        for verifier in ("sampler_match", "rejection")
    )
    capacity = [each.parts.pages.capacity_pages for each in (match, rejection)]
    law_bytes, page_bytes = (8 + 1) * 8 * VOCAB_SIZE * 4, 0.01 * 2**30 / (capacity[0] + 1)
    assert capacity[0] - capacity[1] == pytest.approx(law_bytes / page_bytes, abs=1)
    assert capacity[0] > capacity[1]


def test_another_drafter_is_another_engine(tmp_path: Path) -> None:
    one = make_tiny_llama(tmp_path / "one", num_hidden_layers=1)
    two = make_tiny_llama(tmp_path / "two", num_hidden_layers=2)
    (first,), (second,) = drafter_digests([f"draft:{one}"]), drafter_digests([f"draft:{two}"])
    assert first.partition("@")[2] != second.partition("@")[2] != ""
    assert drafter_digests(["ngram", "none", "mtp"]) == ("ngram", "mtp")
    assert len(file_digest(one / "model.safetensors")) == 24


def test_what_names_a_checkpoint(tmp_path: Path) -> None:
    names = ["ngram", "predicted", "none", "mtp", "draft:anything", str(tmp_path), "psychic"]
    assert [names_a_checkpoint(name) for name in names] == [
        False, False, False, True, True, True, False
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("drafter", "error", "text"),
    [
        ("psychic", UnknownDrafter, r"psychic.* suffix.* mtp, head, draft:MODEL and the folder"),
        ("mtp", ModelError, "no layers behind"),
        ("ngram,ngram", ValueError, "named twice"),
    ],
)
def test_a_drafter_that_cannot_be_is_refused_by_name(
    drafter: str, error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        _assembled(drafter)


def test_one_trained_drafter_at_a_time(tmp_path: Path) -> None:
    draft = make_tiny_llama(tmp_path / "draft", num_hidden_layers=1)
    with pytest.raises(ValueError, match="one trained drafter at a time"):
        _assembled(f"draft:{draft},draft:{shared_tiny_llama()}")


def test_nothing_is_loaded_where_nothing_is_drafted() -> None:
    assert _assembled("ngram,mtp", max_draft=0).drafter_traits == ()


def test_rejection_is_a_choice_and_relaxation_needs_thinking() -> None:
    assembly = _assembled("ngram", verifier="rejection")
    assert assembly.parts.runner._programs.verifier.name == "rejection"
    with pytest.raises(ModelError, match="<think>"):
        _assembled("ngram", verifier="relaxed")


@pytest.mark.parametrize(
    ("drafter", "words"),
    [
        ("ngram,draft:/no/such/model", "/no/such/model does not exist"),
        ("/no/such/head", "unknown drafter '/no/such/head': known are"),
        ("head", "no head comes with the worker for "),
        ("EMPTY", "holds no .safetensors"),
        ("draft:EMPTY", "holds no .safetensors"),
    ],
)
def test_a_drafter_that_is_not_there_is_told_before_weights_are_read(
    drafter: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def loaded(*_given: object, **_options: object) -> None:
        raise AssertionError("the target's weights were read first")

    monkeypatch.setattr(assembly, "load_model", loaded)
    (tmp_path / "empty").mkdir()
    with pytest.raises((ModelError, UnknownDrafter), match=re.escape(words)):
        _assembled(drafter.replace("EMPTY", str(tmp_path / "empty")))
