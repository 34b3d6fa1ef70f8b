"""The training set: the engine's own answers, the features drafters are fed, whole shards."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch

from outrider_worker.engine.types import SamplingParams
from outrider_worker.train.answers import Answer, Question
from outrider_worker.train.dataset import Dataset, DatasetError, DatasetSpec
from outrider_worker.train.generate import GenerationProgress, generate
from outrider_worker.train.kinds import KINDS
from tests.support.tiny_training import PLAN, encode, forward, respondent, tiny_prompts, tiny_target

_SPEC = DatasetSpec("tiny", (2, 3), 48, 0, "abc")


def _answers(questions: Sequence[Question], seats: int) -> dict[int, Answer]:
    asked = respondent(KINDS["eagle3"], seats).answer(questions)
    return {answer.number: answer for answer in asked}


def _questions() -> list[Question]:
    params = [SamplingParams(temperature=n % 2, seed=n, max_tokens=5 + n) for n in range(7)]
    return [Question(tuple(encode("x" * (3 + n))), p) for n, p in enumerate(params)]


def test_an_answer_does_not_depend_on_who_else_is_answered() -> None:
    crowd, alone = _answers(_questions(), seats=3), _answers(_questions(), seats=1)
    assert sorted(crowd) == list(range(7))
    for number, answer in crowd.items():
        assert answer.token_ids == alone[number].token_ids
        assert torch.equal(answer.features, alone[number].features)
        asked = _questions()[number]
        written = answer.token_ids[len(asked.prompt_ids) :]
        assert answer.token_ids[: len(asked.prompt_ids)] == asked.prompt_ids
        ended = written[-1] in tiny_target().config.eos_ids
        assert ended or len(written) == asked.sampling.max_tokens


def test_features_are_those_of_one_forward_over_the_text_and_greedy_ones_explain_it() -> None:
    answer = _answers(_questions(), seats=3)[4]
    hidden, features = forward(answer.token_ids[:-1], KINDS["eagle3"].stored(3))
    assert torch.equal(answer.features, features.half())
    first = len(_questions()[4].prompt_ids)
    best = tiny_target().model.logits(hidden).argmax(-1)[first - 1 :].tolist()
    assert best == list(answer.token_ids[first:])


def test_what_the_context_cannot_hold_is_refused() -> None:
    with pytest.raises(ValueError, match="a context of 64"):
        _answers([Question((5,) * 60, SamplingParams(max_tokens=5))], seats=1)


def _generate(folder: Path, stop_after: int | None = None) -> Dataset:
    dataset = Dataset(folder, _SPEC)

    def report(progress: GenerationProgress) -> None:
        if stop_after is not None and progress.shards_by_this_run == stop_after:
            raise KeyboardInterrupt

    generate(dataset, respondent(KINDS["mtp-eagle"]), tiny_prompts(20), encode, PLAN, report)
    return dataset


def test_a_training_set_that_was_interrupted_is_finished_bit_by_bit(tmp_path: Path) -> None:
    whole = _generate(tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        _generate(tmp_path / "cut", stop_after=2)
    assert Dataset(tmp_path / "cut", _SPEC).shards() == [0, 1]
    written_before = (tmp_path / "cut" / "shard-00001.tokens.npy").stat().st_mtime_ns
    cut = _generate(tmp_path / "cut")
    assert (tmp_path / "cut" / "shard-00001.tokens.npy").stat().st_mtime_ns == written_before
    assert cut.shards() == whole.shards() == [0, 1, 2]
    for file in sorted((tmp_path / "whole").iterdir()):
        assert file.read_bytes() == (tmp_path / "cut" / file.name).read_bytes(), file.name


def test_texts_come_back_with_what_is_known_of_them(tmp_path: Path) -> None:
    dataset, prompts = _generate(tmp_path), tiny_prompts(20)
    trained, held_out = list(dataset.texts(False)), list(dataset.texts(True))
    assert len(trained) == 15
    assert len(held_out) == 5
    first = trained[0]
    prompt = encode(prompts[0].text)
    assert first.token_ids[: first.info.prompt_tokens].tolist() == prompt
    assert first.features.shape == (first.info.tokens, 2 * 48)
    assert isinstance(first.features, np.memmap)
    assert not first.features[-1].any()
    assert first.features[:-1].any(axis=1).all()
    assert [text.info.temperature for text in trained[:4]] == [0.0, 0.8, 0.8, 0.0]


def test_a_folder_with_another_training_set_is_refused(tmp_path: Path) -> None:
    Dataset(tmp_path, _SPEC)
    Dataset(tmp_path, _SPEC)
    other = DatasetSpec("tiny", (2, 3), 48, 1, "abc")
    with pytest.raises(DatasetError, match="another training set: seed differ"):
        Dataset(tmp_path, other)
