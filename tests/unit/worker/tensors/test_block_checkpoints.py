"""Checkpoints of block drafters: told from others, read as they are counted, refused by reason."""

import json
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from outrider_worker.attention import default_attention, make_attention
from outrider_worker.model.config import ModelError
from outrider_worker.model.draft.block_config import BlockConfig, parse_block_config
from outrider_worker.model.draft.dspark import read_temperatures
from outrider_worker.model.loader import LoadedModel, load_model
from outrider_worker.speculate.block_checkpoint import (
    looks_like_dflash,
    looks_like_dspark,
    open_dflash,
)
from outrider_worker.speculate.checkpoints import open_drafter
from outrider_worker.speculate.dflash import DFlashDrafter
from tests.support.block_layouts import DFLASH, DSPARK, deepspec
from tests.support.block_seats import BestChooser, BlockSeats
from tests.support.tiny_block_drafters import TinyBlock
from tests.support.tiny_models import VOCAB_SIZE, shared_tiny_llama

CPU = torch.device("cpu")
ZLAB = DFLASH["z-lab, nested"]


@cache
def target() -> LoadedModel:
    return load_model(shared_tiny_llama())


def tables(shift: float = 0.0) -> dict[str, torch.Tensor]:
    own = target().model.embed(torch.arange(VOCAB_SIZE)) + shift
    return {"embed_tokens.weight": own.clone(), "lm_head.weight": own.clone()}


def opened(folder: Path, backend: str | None = None) -> DFlashDrafter:
    attention = make_attention(backend) if backend else default_attention(CPU)
    return open_dflash(folder, target(), 8, torch.float32, CPU, attention)


def changed(tiny: TinyBlock, **settings: Any) -> TinyBlock:
    """With other settings; None removes one."""
    merged = {**tiny.settings, **settings}
    kept = {name: value for name, value in merged.items() if value is not None}
    return TinyBlock(**{**vars_of(tiny), "settings": kept})


def vars_of(tiny: TinyBlock) -> dict[str, Any]:
    return {name: getattr(tiny, name) for name in tiny.__dataclass_fields__}


def names_of(tiny: TinyBlock) -> list[str]:
    return [f"{tiny.prefix}{name}" for name in tiny.weights()]


@pytest.mark.parametrize("layout", DFLASH)
def test_block_tensors_without_heads_are_a_dflash(layout: str) -> None:
    names = names_of(DFLASH[layout])
    assert looks_like_dflash(names)
    assert not looks_like_dspark(names)


@pytest.mark.parametrize("layout", [name for name in DSPARK if name != "speculators"])
def test_block_tensors_with_heads_are_a_dspark_under_any_prefix(layout: str) -> None:
    names = names_of(DSPARK[layout])
    assert looks_like_dspark(names)
    assert not looks_like_dflash(names)


@pytest.mark.parametrize(
    "names",
    [
        ["fc.weight", "midlayer.hidden_norm.weight", "norm.weight"],
        ["fc.weight", "layers.0.hidden_norm.weight", "lm_head.weight"],
        ["mtp.fc.weight", "mtp.layers.0.self_attn.q_proj.weight", "mtp.norm.weight"],
        ["model.layers.61.eh_proj.weight", "model.layers.61.hnorm.weight"],
    ],
)
def test_heads_of_other_families_are_neither(names: list[str]) -> None:
    assert not looks_like_dflash(names)
    assert not looks_like_dspark(names)


def config_of(raw: Mapping[str, Any], layers: int = 36) -> BlockConfig:
    return parse_block_config(raw, replace(target().config, layers=layers))


def bare(tiny: TinyBlock, **settings: Any) -> dict[str, Any]:
    """Settings without the number of the target's layers."""
    nested = {**tiny.settings.get("dflash_config", {}), **settings}
    flat = {name: value for name, value in tiny.settings.items() if name != "dflash_config"}
    merged = {**flat, **nested, "num_target_layers": None}
    return {name: value for name, value in merged.items() if value is not None}


def test_layers_are_counted_by_their_output_or_from_the_embedding() -> None:
    assert config_of(bare(ZLAB, target_layer_ids=[-1, 9, 35])).boundaries == (0, 10, 36)
    ids = {"aux_hidden_state_layer_ids": [2, 18, 36]}
    assert config_of(bare(DFLASH["speculators"], **ids)).boundaries == (2, 18, 36)


def test_layers_that_are_not_named_are_spread_as_published() -> None:
    raw = bare(ZLAB, num_hidden_layers=5)
    raw["target_layer_ids"] = []
    assert config_of(raw).boundaries == (2, 10, 18, 26, 34)
    raw["num_hidden_layers"] = 1
    assert config_of(raw).boundaries == (19,)


def test_a_flag_decides_what_the_anchors_row_drafts_and_else_the_kind() -> None:
    assert not config_of(bare(ZLAB)).from_anchor
    assert config_of(bare(ZLAB, sample_from_anchor=True)).from_anchor
    assert config_of(bare(DSPARK["DeepSpec, vanilla"])).from_anchor
    assert not config_of(bare(DSPARK["DeepSpec, vanilla"], sample_from_anchor=False)).from_anchor
    assert not config_of(bare(DSPARK["speculators, before the flag"])).from_anchor


def test_the_librarys_differences_from_qwen3_are_filled_in() -> None:
    raw = dict(DFLASH["speculators"].settings)
    layers = dict(raw["transformer_layer_config"])
    del layers["max_position_embeddings"], layers["head_dim"]
    config = config_of({**raw, "transformer_layer_config": layers})
    assert config.layers.head_dim == 128
    assert config.layers.max_positions > 32_768


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"num_target_layers": 3}, "target of layers 3"),
        ({"vocab_size": 300}, "target of vocabulary 300"),
        ({"target_hidden_size": 64}, "target of hidden size 64"),
        ({"dflash_config": {"mask_token_id": 0, "target_layer_ids": [0, 1]}}, "block_size"),
        ({"dflash_config": {"block_size": 4, "target_layer_ids": [0, 1]}}, "mask_token_id"),
        ({"dflash_config": {"block_size": 4, "mask_token_id": 0}}, r"layers \[2, 0\]"),
        ({"target_layer_ids": [1, 2], "dflash_config": {"block_size": 4}}, r"layers \[2, 3\]"),
        ({"target_layer_ids": [0, 1], "mask_token_id": 400, "block_size": 4}, "outside"),
        ({"output_multiplier": 0.2}, "output_multiplier"),
        ({"projector_type": "domino"}, "projector_type"),
        ({"is_causal": True}, "is_causal"),
        ({"hidden_size": 64}, "embed_tokens"),
        ({"markov_rank": 5}, "missing: markov_head.markov_w1.weight"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(
    settings: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    if "mask_token_id" in settings:
        settings = {**settings, "dflash_config": None}
    folder = changed(ZLAB, **settings).write(tmp_path, tables())
    with pytest.raises(ModelError, match=reason):
        opened(folder)


def test_unknown_tensors_are_an_error(tmp_path: Path) -> None:
    """DFlash 2 has convolutions in its layers, which change what they compute."""
    convolution = {"layers.0.attention_conv.base_kernel": torch.zeros(2, 2, 48)}
    tiny = TinyBlock(**{**vars_of(ZLAB), "extra": convolution})
    with pytest.raises(ModelError, match=r"surplus: layers\.0\.attention_conv"):
        opened(tiny.write(tmp_path, tables()))


def test_a_reduced_vocabulary_needs_its_map(tmp_path: Path) -> None:
    tiny = DFLASH["speculators"]
    settings = {**tiny.settings, "draft_vocab_size": 86}
    whole = TinyBlock(settings, from_anchor=False, extra={"lm_head.weight": torch.zeros(86, 48)})
    with pytest.raises(ModelError, match="d2t is missing"):
        opened(whole.write(tmp_path, tables()))


def test_the_production_form_is_recognised_and_refused_with_what_it_needs(tmp_path: Path) -> None:
    stages = {
        "mtp.0.main_proj.weight": torch.zeros(4, 12),
        "mtp.0.main_norm.weight": torch.zeros(4),
        "mtp.0.hc_attn_fn": torch.zeros(4),
        "mtp.1.attn.attn_sink": torch.zeros(4),
        "mtp.1.ffn.experts.0.w1.weight": torch.zeros(4, 4),
        "mtp.2.markov_head.markov_w1.weight": torch.zeros(8, 2),
    }
    assert looks_like_dspark(stages)
    assert not looks_like_dflash(stages)
    save_file(stages, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelError, match=r"DeepSeek-V4.*hyper-connections, attention sinks"):
        opened(tmp_path)


@pytest.mark.parametrize(
    ("tiny", "name"),
    [(DFLASH["z-lab, flat, prefixed"], "dflash"), (DSPARK["under mtp."], "dspark")],
)
def test_a_drafters_folder_needs_no_kind(tiny: TinyBlock, name: str, tmp_path: Path) -> None:
    assert open_drafter(tiny.write(tmp_path, tables()), target(), 3).traits.name == name


def test_copies_of_the_targets_tables_are_not_kept_but_other_tables_are(tmp_path: Path) -> None:
    tiny = deepspec()
    shared = opened(tiny.write(tmp_path / "same", tables()))
    own = opened(tiny.write(tmp_path / "other", tables(shift=0.5)))
    ids = torch.tensor([4, 7])
    assert shared._model.embed == target().model.embed
    assert shared._model.logits == target().model.logits
    assert torch.equal(own._model.embed(ids), target().model.embed(ids) + 0.5)


def test_both_attention_backends_give_one_block(tmp_path: Path) -> None:
    tiny, shown = DFLASH["sliding, causal"], []
    tiny.write(tmp_path, tables())
    text = torch.randint(3, VOCAB_SIZE, (140,), generator=torch.Generator().manual_seed(2))
    for backend in ("blocks", None):
        seats, known = BlockSeats(target(), opened(tmp_path, backend), [text]), torch.tensor([129])
        seats.feed(known - 1)
        chooser = BestChooser()
        seats.propose(known, tiny.drafts, chooser)
        shown.append(torch.stack(chooser.shown))
    torch.testing.assert_close(shown[0], shown[1], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(
    "content",
    [{"temperatures": [1.0, 2.0]}, {"temperatures": [1.0, 0.0, 1.0, 1.0]}, {}, [1.0] * 4, "no"],
)
def test_a_calibration_for_another_block_is_refused(content: object, tmp_path: Path) -> None:
    assert read_temperatures(tmp_path, drafts=4) is None
    path = tmp_path / "calibration.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    with pytest.raises(ModelError, match=r"calibration\.json"):
        read_temperatures(tmp_path, drafts=4)


def test_a_calibration_without_a_confidence_head_is_refused(tmp_path: Path) -> None:
    tiny = deepspec(confidence=False, temperatures=(1.0,) * 4)
    with pytest.raises(ModelError, match="not there"):
        opened(tiny.write(tmp_path, tables()))
