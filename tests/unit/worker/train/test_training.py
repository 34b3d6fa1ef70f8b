"""Training end to end on a tiny target, and what an evaluation counts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from outrider_worker.train import run as stages
from outrider_worker.train.batches import whole
from outrider_worker.train.dataset import Text, TextInfo
from outrider_worker.train.evaluate import Acceptance
from outrider_worker.train.heads import MtpEagleHead
from outrider_worker.train.initial import fit_joint
from outrider_worker.train.kinds import KINDS
from outrider_worker.train.products import products
from outrider_worker.train.prompts import Prompt
from outrider_worker.train.recipe import Recipe
from outrider_worker.train.run import IN_FAMILY, NGRAM, OUT_FAMILY, train_drafter
from outrider_worker.train.target import TargetWeights
from outrider_worker.train.trainer import CheckpointError
from outrider_worker.train.vocabulary import coverage, most_frequent
from tests.support.tiny_training import RECIPE, TinyChat, tiny_target, tiny_training


@pytest.mark.parametrize("kind", list(KINDS))
def test_training_raises_acceptance_and_says_how_it_goes(kind: str, tmp_path: Path) -> None:
    said: list[str] = []

    def run(steps: int) -> Mapping[str, Acceptance]:
        training = tiny_training(tmp_path, kind, recipe=replace(RECIPE, steps=steps))
        found = train_drafter(training, tiny_target(), TinyChat(), said.append)
        (tmp_path / "checkpoint.pt").unlink()
        return found

    before, after = run(steps=1), run(RECIPE.steps)
    assert set(after) == {IN_FAMILY, OUT_FAMILY, NGRAM + IN_FAMILY, NGRAM + OUT_FAMILY}
    for texts in (IN_FAMILY, OUT_FAMILY):
        assert after[texts].tokens_per_round > before[texts].tokens_per_round + 0.5
    assert any("tokens/s" in line and "left" in line for line in said)
    assert any("in family: acceptance" in line for line in said)
    assert (tmp_path / "head" / "model.safetensors").stat().st_size < 200_000


def test_an_interrupted_training_ends_with_the_same_head(tmp_path: Path) -> None:
    recipe = replace(RECIPE, steps=8, evaluate_every=4)

    def interrupt(line: str) -> None:
        if line.startswith("  in family") and not (tmp_path / "cut" / "seen").exists():
            (tmp_path / "cut" / "seen").touch()
            raise KeyboardInterrupt

    def run(name: str, say=lambda line: None) -> dict[str, torch.Tensor]:  # type: ignore[no-untyped-def]
        training = tiny_training(tmp_path / name, "mtp-eagle", recipe=recipe)
        train_drafter(training, tiny_target(), TinyChat(), say)
        return load_file(tmp_path / name / "head" / "model.safetensors")

    whole_run = run("whole")
    with pytest.raises(KeyboardInterrupt):
        run("cut", interrupt)
    resumed = run("cut")
    assert whole_run.keys() == resumed.keys()
    for name, tensor in whole_run.items():
        assert torch.equal(tensor, resumed[name]), name
    recipe = replace(recipe, rows_per_text=9)
    with pytest.raises(CheckpointError, match="another recipe"):
        run("cut")


def test_a_training_that_is_stopped_between_evaluations_loses_no_more_than_a_minute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stages, "_SAVED_EVERY_S", -1.0)
    training = tiny_training(tmp_path, "mtp-eagle", recipe=replace(RECIPE, steps=3))
    said = list[str]()

    def interrupt(line: str) -> None:
        if line.startswith("step 1 of 3"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train_drafter(training, tiny_target(), TinyChat(), interrupt)
    train_drafter(training, tiny_target(), TinyChat(), said.append)
    assert "going on from step 1" in said


def test_that_nothing_is_held_out_is_said(tmp_path: Path) -> None:
    prompts, said = [Prompt("list", f"say {n}", held_out=False) for n in range(8)], list[str]()
    training = tiny_training(tmp_path, "mtp-eagle", prompts, replace(RECIPE, steps=1))
    assert train_drafter(training, tiny_target(), TinyChat(), said.append) == {}
    assert (
        "no text is held out, so acceptance is not measured: more prompts would have some" in said
    )
    assert not any("evaluating" in line for line in said)


def test_the_draft_vocabulary_is_what_is_said_most() -> None:
    counts = torch.tensor([0, 5, 0, 9, 1, 0, 7])
    assert most_frequent(counts, 4, always=[5]).tolist() == [1, 3, 5, 6]
    assert most_frequent(counts, 6).tolist() == [0, 1, 2, 3, 4, 6]
    assert coverage(counts, torch.tensor([3, 6])) == pytest.approx(16 / 22)
    with pytest.raises(ValueError, match="more than the target's 7"):
        most_frequent(counts, 8)


def _text(token_ids: list[int], prompt_tokens: int) -> Text:
    info = TextInfo(0, len(token_ids), prompt_tokens, "list", True, 0.0, 0)
    features = np.zeros((len(token_ids), 96), np.float16)
    return Text(info, np.array(token_ids, np.int32), features)


def test_the_fit_finds_a_product_that_was_there() -> None:
    """Streams made by a known product from a text's pairs are explained, product and all."""
    target = TargetWeights.read(tiny_target())
    head = KINDS["mtp-eagle"].make(target, torch.arange(259))
    assert isinstance(head, MtpEagleHead)
    generator = np.random.default_rng(0)
    truth = torch.from_numpy(generator.normal(size=(48, 96)).astype(np.float32)) / 8
    texts = []
    for _ in range(24):
        text = _text(generator.integers(3, 259, 60).tolist(), prompt_tokens=5)
        last = torch.from_numpy(generator.normal(size=(60, 48)).astype(np.float32))
        ids = torch.from_numpy(text.token_ids.astype(np.int64))
        pair = head.pair(target.embedding[ids[1:]], head.fuse(last[:-1])).detach()
        before = torch.cat([torch.zeros(1, 48), pair @ truth.T])
        features = torch.cat([before, last], dim=1).numpy().astype(np.float16)
        texts.append(Text(text.info, text.token_ids, features))
    columns = KINDS["mtp-eagle"].columns(tiny_target().config)
    explained = fit_joint(head, whole(texts, 8, columns))
    assert explained > 0.999
    torch.testing.assert_close(head.eh_proj.weight.data, truth, atol=0.02, rtol=0.05)


def test_the_rate_rises_and_falls() -> None:
    recipe = Recipe(steps=100, warm_up_steps=10, decay=0.2)
    rates = [recipe.rate(step) for step in range(100)]
    assert rates[0] == pytest.approx(0.1)
    assert set(rates[9:81]) == {1.0}
    assert rates[80:] == sorted(rates[80:], reverse=True)
    assert 0 < rates[-1] < 0.05


def test_a_run_may_be_made_longer_or_shorter_until_its_rate_falls() -> None:
    recipe = Recipe(steps=100, decay=0.2)
    longer, shorter = replace(recipe, steps=200), replace(recipe, steps=50)
    assert longer.goes_on_from(recipe, 80)
    assert not longer.goes_on_from(recipe, 81)
    assert shorter.goes_on_from(recipe, 40)
    assert not shorter.goes_on_from(recipe, 41)
    assert recipe.goes_on_from(recipe, 100)
    assert not replace(longer, seed=1).goes_on_from(recipe, 0)


def test_products_are_as_precise_as_before_once_a_step_is_over() -> None:
    before = torch.get_float32_matmul_precision()
    with products(bfloat16=True):
        assert torch.get_float32_matmul_precision() == "medium"
    assert torch.get_float32_matmul_precision() == before
