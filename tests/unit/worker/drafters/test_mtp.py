"""Multi-token prediction: every published layout gives what the recipe says, worked out plainly."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from outrider_worker.model.config import ModelError
from outrider_worker.model.draft.mtp import MtpModule
from outrider_worker.model.loader import LoadedModel, load_model
from outrider_worker.speculate.checkpoints import MTP, open_drafter
from outrider_worker.speculate.device import StatefulDrafter
from outrider_worker.speculate.eagle import EagleDrafter
from outrider_worker.speculate.mtp_vanilla import VanillaMtpDrafter
from outrider_worker.speculate.pairs import PairDrafter
from tests.support.head_checkpoints import (
    Layout,
    MtpWeights,
    deepseek_layout,
    mimo_layout,
    qwen_next_layout,
    write_head,
)
from tests.support.pair_rounds import PairRounds, random_texts
from tests.support.plain_heads import PlainModule, PlainTables, drafted_by_each, drafted_by_one
from tests.support.tiny_models import make_tiny_model, random_weights, write_tiny_model
from tests.support.tiny_sparse_models import make_tiny_sparse, settings_of

_DENSE: Mapping[str, Any] = {"num_hidden_layers": 3, "tie_word_embeddings": False}
_CASES: Mapping[str, tuple[str, Layout, dict[str, Any]]] = {
    "deepseek_v3": ("deepseek_v3", deepseek_layout(3), {}),
    "nextn export": ("deepseek_v3", deepseek_layout(0), {}),
    "glm": ("qwen3", deepseek_layout(46), {}),
    "qwen3_next": ("qwen3", qwen_next_layout, {}),
    "mimo": ("qwen2", mimo_layout, {"hidden_first": True}),
}


@pytest.fixture(scope="module")
def targets(tmp_path_factory: pytest.TempPathFactory) -> dict[str, LoadedModel]:
    """One of each family."""
    folder = tmp_path_factory.mktemp("targets")
    dense = {
        family: make_tiny_model(folder / family, family, **_DENSE) for family in ("qwen2", "qwen3")
    }
    sparse = make_tiny_sparse(folder / "deepseek_v3", "deepseek_v3")
    return {name: load_model(path) for name, path in {**dense, "deepseek_v3": sparse}.items()}


def _settings(target: LoadedModel) -> dict[str, Any]:
    return json.loads((target.folder / "config.json").read_text())  # type: ignore[no-any-return]


def _tables(target: LoadedModel) -> PlainTables:
    stored = load_file(target.folder / "model.safetensors")
    return PlainTables(
        stored["model.embed_tokens.weight"].double(), stored["lm_head.weight"].double()
    )


def _first_round(
    target: LoadedModel, drafter: PairDrafter, depth: int
) -> tuple[PairRounds, Tensor]:
    """A text of 20 tokens, fed; the drafts' logits [depth, V]."""
    rounds = PairRounds(target, drafter, random_texts([20], 259), [20])
    rounds.feed()
    _, logits = rounds.propose(depth)
    return rounds, logits[:, 0]


def _text(rounds: PairRounds) -> list[int]:
    return rounds.state.history[0, :20].tolist()


def _check(logits: Tensor, plain: PlainModule, rounds: PairRounds) -> None:
    """Compare a first round's logits with the reference's."""
    hidden = rounds.features[0, :19].double()
    expected = drafted_by_one(plain.run, _text(rounds), hidden, len(logits))
    torch.testing.assert_close(logits.double(), expected, atol=1e-4, rtol=1e-4)


def _eagle(drafter: StatefulDrafter) -> EagleDrafter:
    assert isinstance(drafter, EagleDrafter)
    return drafter


@pytest.mark.parametrize("case", _CASES)
def test_a_layout_drafts_what_the_recipe_says(
    case: str, targets: dict[str, LoadedModel], tmp_path: Path
) -> None:
    family, layout, habits = _CASES[case]
    target = targets[family]
    weights = MtpWeights.random(_settings(target), seed=3)
    drafter = open_drafter(write_head(tmp_path, {}, layout(0, weights)), target, 4)
    assert isinstance(drafter, EagleDrafter)
    rounds, logits = _first_round(target, drafter, 4)

    _check(logits, weights.plain(_settings(target), _tables(target), **habits), rounds)


def test_several_modules_draft_one_token_each(
    targets: dict[str, LoadedModel], tmp_path: Path
) -> None:
    target, layout = targets["qwen3"], deepseek_layout(3)
    weights = [MtpWeights.random(_settings(target), seed) for seed in (11, 22, 33)]
    tensors = {n: t for index, each in enumerate(weights) for n, t in layout(index, each).items()}
    drafter = open_drafter(write_head(tmp_path, {}, tensors), target, 8)
    assert isinstance(drafter, VanillaMtpDrafter)
    assert drafter.traits.max_draft_tokens == 3
    rounds, logits = _first_round(target, drafter, 3)

    runs = [each.plain(_settings(target), _tables(target)).run for each in weights]
    expected = drafted_by_each(runs, _text(rounds), rounds.features[0, :19].double())
    torch.testing.assert_close(logits.double(), expected, atol=1e-4, rtol=1e-4)


def test_modules_of_the_targets_own_checkpoint(tmp_path: Path) -> None:
    """Copies of the target's tables that the module has are not kept twice."""
    settings = {**settings_of("deepseek_v3"), "num_nextn_predict_layers": 1}
    stored = load_file(make_tiny_sparse(tmp_path / "plain", "deepseek_v3") / "model.safetensors")
    weights = MtpWeights.random(settings, seed=3)
    copies = {
        "model.layers.3.embed_tokens.weight": stored["model.embed_tokens.weight"].clone(),
        "model.layers.3.shared_head.head.weight": stored["lm_head.weight"].clone(),
    }
    both = {**stored, **deepseek_layout(3)(0, weights), **copies}
    target = load_model(write_tiny_model(tmp_path / "both", settings, both))

    drafter = open_drafter(MTP, target, 2)
    assert isinstance(drafter, EagleDrafter)
    assert isinstance(drafter.head, MtpModule)
    assert drafter.head.embed == target.model.embed
    assert drafter.head.table == target.model.logits
    rounds, logits = _first_round(target, drafter, 2)
    _check(logits, weights.plain(settings, _tables(target)), rounds)


@pytest.mark.parametrize(
    ("family", "layout", "architecture"),
    [
        ("qwen3", qwen_next_layout, "Qwen3ForCausalLM"),
        ("qwen2", mimo_layout, "MiMoForCausalLM"),
    ],
)
def test_modules_under_names_of_their_own(
    family: str,
    layout: Layout,
    architecture: str,
    targets: dict[str, LoadedModel],
    tmp_path: Path,
) -> None:
    plain = targets[family]
    stored = load_file(plain.folder / "model.safetensors")
    settings = {**_settings(plain), "architectures": [architecture]}
    weights = MtpWeights.random(settings, seed=3)
    both = {**stored, **layout(0, weights)}
    target = load_model(write_tiny_model(tmp_path, settings, both))
    in_folder = open_drafter(write_head(tmp_path / "head", {}, layout(0, weights)), plain, 3)
    _, expected = _first_round(plain, _eagle(in_folder), 3)
    _, logits = _first_round(target, _eagle(open_drafter(MTP, target, 3)), 3)
    assert torch.equal(logits, expected)


def test_an_export_in_a_file_of_another_name(
    targets: dict[str, LoadedModel], tmp_path: Path
) -> None:
    target = targets["deepseek_v3"]
    weights = MtpWeights.random(_settings(target), seed=3)
    write_head(tmp_path, {}, deepseek_layout(0)(0, weights))
    (tmp_path / "model.safetensors").rename(tmp_path / "nextn_layer_parameters.safetensors")
    assert open_drafter(tmp_path, target, 2).traits.name == "mtp"


def test_tables_of_a_modules_own_are_used(targets: dict[str, LoadedModel], tmp_path: Path) -> None:
    target = targets["qwen3"]
    weights = MtpWeights.random(_settings(target), seed=3)
    tables = PlainTables(*torch.randn(2, 259, 48, generator=torch.Generator().manual_seed(1)))
    own = {
        "model.layers.3.embed_tokens.weight": tables.embedding,
        "model.layers.3.shared_head.head.weight": tables.head,
    }
    folder = write_head(tmp_path, {}, {**deepseek_layout(3)(0, weights), **own})
    rounds, logits = _first_round(target, _eagle(open_drafter(folder, target, 2)), 2)

    doubled = PlainTables(tables.embedding.double(), tables.head.double())
    _check(logits, weights.plain(_settings(target), doubled), rounds)


def test_what_is_carried_matters_from_the_second_draft_on(
    targets: dict[str, LoadedModel], tmp_path: Path
) -> None:
    target = targets["qwen3"]
    weights = MtpWeights.random(_settings(target), seed=3)
    drafter = open_drafter(write_head(tmp_path, {}, deepseek_layout(3)(0, weights)), target, 2)
    assert isinstance(drafter, EagleDrafter)
    assert isinstance(drafter.head, MtpModule)
    before = EagleDrafter(replace(drafter.head, carry_norm=False), MTP, 2)
    rounds, behind_norm = _first_round(target, drafter, 2)
    _, before_norm = _first_round(target, before, 2)

    torch.testing.assert_close(before_norm[0], behind_norm[0])
    assert (before_norm[1] - behind_norm[1]).abs().max() > 0.01
    _check(before_norm, weights.plain(_settings(target), _tables(target), carry_norm=False), rounds)


def test_a_head_that_ignores_tokens_repeats_the_target(
    targets: dict[str, LoadedModel], tmp_path: Path
) -> None:
    """It is passed the verified row's hidden state: its draft is what the target says there."""
    target = targets["qwen3"]
    weights = MtpWeights.random(_settings(target), seed=3)
    weights.parts["eh_proj.weight"] = torch.cat([torch.zeros(48, 48), torch.eye(48)], 1)
    weights.parts.update({name: torch.ones(48) for name in ("hnorm.weight", "norm.weight")})
    for name in ("self_attn.o_proj.weight", "mlp.down_proj.weight"):
        weights.layer[name].zero_()
    drafter = open_drafter(write_head(tmp_path, {}, deepseek_layout(3)(0, weights)), target, 1)
    texts = random_texts([20, 5, 90], 259)
    rounds = PairRounds(target, _eagle(drafter), texts, [20, 5, 90])
    rounds.feed()
    drafts, _ = rounds.propose(1)

    verified = rounds.features[torch.arange(3), rounds.known - 2]
    assert torch.equal(drafts.token_ids[:, 0], target.model.logits(verified).argmax(-1))


@pytest.mark.parametrize(
    "part", ["enorm", "shared_head.norm", "input_layernorm", "self_attn.k_norm"]
)
def test_a_missing_tensor_is_named(
    part: str, targets: dict[str, LoadedModel], tmp_path: Path
) -> None:
    target = targets["qwen3"]
    tensors = deepseek_layout(3)(0, MtpWeights.random(_settings(target), seed=3))
    name = f"model.layers.3.{part}.weight"
    del tensors[name]
    with pytest.raises(ModelError, match=rf"{tmp_path} .*missing: {re.escape(name)}$"):
        open_drafter(write_head(tmp_path, {}, tensors), target, 2)


def test_an_unknown_tensor_is_named(targets: dict[str, LoadedModel], tmp_path: Path) -> None:
    target = targets["qwen3"]
    tensors = deepseek_layout(3)(0, MtpWeights.random(_settings(target), seed=3))
    tensors["model.layers.3.self_attn.sinks"] = torch.zeros(3)
    with pytest.raises(ModelError, match=r"surplus: model\.layers\.3\.self_attn\.sinks"):
        open_drafter(write_head(tmp_path, {}, tensors), target, 2)


_EXPERTS = {
    "mlp.gate.weight": (4, 48),
    "mlp.experts.0.gate_proj.weight": (24, 48),
    "mlp.experts.0.up_proj.weight": (24, 48),
    "mlp.experts.0.down_proj.weight": (48, 24),
}


@pytest.mark.parametrize("layout", [deepseek_layout(3), qwen_next_layout])
def test_layers_of_another_kind_are_told_from_missing_tensors(
    layout: Layout, targets: dict[str, LoadedModel], tmp_path: Path
) -> None:
    """GLM-4.5's and Qwen3-Next's modules have experts, which a dense target's layers have not."""
    weights = MtpWeights.random(_settings(targets["qwen3"]), seed=3)
    dense = {n: t for n, t in weights.layer.items() if not n.startswith("mlp.")}
    sparse = replace(weights, layer={**dense, **random_weights(_EXPERTS, 4)})
    folder = write_head(tmp_path, {}, layout(0, sparse))
    expected = r"missing: .*mlp\.down_proj.* surplus: .*experts\.0.*kind, Qwen3ForCausalLM$"
    with pytest.raises(ModelError, match=expected):
        open_drafter(folder, targets["qwen3"], 2)


def test_dspark_under_mtps_prefix_is_no_mtp(
    targets: dict[str, LoadedModel], tmp_path: Path
) -> None:
    target = targets["qwen3"]
    names = (
        "mtp.0.main_proj.weight",
        "mtp.0.attn.wq_a.weight",
        "mtp.2.markov_head.markov_w1.weight",
    )
    with pytest.raises(ModelError, match=r"mtp\.0\.main_proj\.weight.* DSpark"):
        open_drafter(MTP, replace(target, mtp_tensors=names), 2)
    folder = write_head(tmp_path, {}, {name: torch.zeros(2, 2) for name in names})
    with pytest.raises(ModelError, match=f"{tmp_path}.*DSpark"):
        open_drafter(folder, target, 2)


def test_a_target_without_modules_says_so(targets: dict[str, LoadedModel]) -> None:
    with pytest.raises(ModelError, match="no layers behind"):
        open_drafter(MTP, targets["qwen3"], 2)


def test_tensors_of_no_known_kind_are_named(
    targets: dict[str, LoadedModel], tmp_path: Path
) -> None:
    folder = write_head(tmp_path, {}, {"decoder.weight": torch.zeros(2, 2)})
    with pytest.raises(ModelError, match=r"decoder\.weight are of no known kind"):
        open_drafter(folder, targets["qwen3"], 2)


def test_a_whole_model_is_no_head(targets: dict[str, LoadedModel]) -> None:
    folder = targets["qwen2"].folder
    with pytest.raises(ModelError, match=f"ask for draft:{folder}"):
        open_drafter(folder, targets["qwen3"], 2)
