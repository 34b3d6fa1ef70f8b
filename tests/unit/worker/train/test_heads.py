"""A head in training and the same head as it is served: one function, written twice."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from torch import Tensor

from outrider_worker.model.config import ModelError
from outrider_worker.speculate.checkpoints import open_drafter
from outrider_worker.speculate.eagle import EagleDrafter
from outrider_worker.train.batches import Batch
from outrider_worker.train.export import export
from outrider_worker.train.heads import TrainedHead
from outrider_worker.train.kinds import KINDS
from outrider_worker.train.target import TargetWeights
from tests.support.pair_rounds import PairRounds, random_texts
from tests.support.tiny_training import forward, tiny_target

_KEPT = torch.arange(3, 259, 2)
_TOKENS, _KNOWN = 24, 20


def _head(kind: str) -> TrainedHead:
    """Shaken, so that no part of it is as it began; float16 holds its weights exactly."""
    torch.manual_seed(3)
    head = KINDS[kind].make(TargetWeights.read(tiny_target()), _KEPT)
    with torch.no_grad():
        for weight in head.parameters():
            weight.copy_((weight + 0.1 * torch.randn_like(weight)).half())
    return head


def _exported(head: TrainedHead, kind: str, folder: Path) -> EagleDrafter:
    target = tiny_target()
    export(head, KINDS[kind], TargetWeights.read(target), target.folder, folder)
    drafter = open_drafter(folder, target, max_draft_tokens=4)
    assert isinstance(drafter, EagleDrafter)
    return drafter


def _served(drafter: EagleDrafter, text: list[int]) -> tuple[Tensor, Tensor]:
    """The drafts of a round at `_KNOWN` tokens, and their logits [3, V]."""
    rounds = PairRounds(tiny_target(), drafter, [text], [_KNOWN])
    rounds.feed()
    drafts, logits = rounds.propose(3)
    return drafts.token_ids[0], logits[:, 0]


def _trained(head: TrainedHead, kind: str, text: list[int]) -> Tensor:
    """Logits [3, Vd] of the same place, unrolled over a text."""
    target = tiny_target()
    _, features = forward(text[:-1], KINDS[kind].stored(target.config.layers))
    batch = Batch(
        token_ids=torch.tensor([text]),
        stored=features[None],
        columns=KINDS[kind].columns(target.config),
        lengths=torch.tensor([len(text)]),
        rows=torch.tensor([[_KNOWN - 2]]),
        live=torch.tensor([[True]]),
    )
    with torch.no_grad():
        return torch.cat([scores[0] for scores in head.unroll(batch, 3)])


@pytest.mark.parametrize("kind", list(KINDS))
def test_what_was_exported_drafts_as_what_was_trained(kind: str, tmp_path: Path) -> None:
    head = _head(kind)
    drafter = _exported(head, kind, tmp_path)
    (text,) = random_texts([_TOKENS], 259)
    drafts, served = _served(drafter, text)
    text[_KNOWN : _KNOWN + 2] = drafts[:2].tolist()  # a text that goes on as was drafted
    trained = _trained(head, kind, text)
    torch.testing.assert_close(served[:, _KEPT], trained, atol=2e-4, rtol=2e-4)
    others = torch.ones(259, dtype=torch.bool).index_fill_(0, _KEPT, False)
    assert bool((served[:, others] == float("-inf")).all())


def _stored(folder: Path) -> dict[str, Tensor]:
    with safe_open(folder / "model.safetensors", framework="pt") as file:
        return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (no mapping)


def test_an_mtp_head_stores_no_table_and_an_eagle3_head_its_own(tmp_path: Path) -> None:
    for kind in KINDS:
        _exported(_head(kind), kind, tmp_path / kind)
    mtp, eagle3 = _stored(tmp_path / "mtp-eagle"), _stored(tmp_path / "eagle3")
    assert not [name for name, tensor in mtp.items() if 259 in tensor.shape and name != "t2d"]
    assert eagle3["lm_head.weight"].shape == (len(_KEPT), 48)
    assert "midlayer.hidden_norm.weight" in eagle3
    assert (tmp_path / "eagle3" / "model.safetensors").stat().st_mode & 0o777 == 0o644
    assert "model.layers.0.eh_proj.weight" in mtp
    for stored in (mtp, eagle3):
        assert (stored["d2t"] + torch.arange(len(_KEPT))).tolist() == _KEPT.tolist()
        weights = [t for name, t in stored.items() if name not in ("d2t", "t2d")]
        assert {tensor.dtype for tensor in weights} == {torch.float16}


def test_a_head_of_another_target_is_refused(tmp_path: Path) -> None:
    _exported(_head("eagle3"), "eagle3", tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    config["target_hidden_size"] = 64
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError, match="hidden size 64"):
        open_drafter(tmp_path, tiny_target(), max_draft_tokens=4)
