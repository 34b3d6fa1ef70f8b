"""EAGLE-3: every published layout and variant gives what the recipe says, worked out plainly."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from outrider_worker.model.config import ModelError
from outrider_worker.model.draft.eagle3 import Eagle3Head
from outrider_worker.model.draft.eagle3_config import tap_boundaries
from outrider_worker.model.loader import LoadedModel, load_model
from outrider_worker.model.settings_json import JsonSettings
from outrider_worker.speculate.checkpoints import open_drafter
from outrider_worker.speculate.eagle import EagleDrafter
from tests.support.head_checkpoints import DRAFT_SETTINGS, Eagle3Weights, write_head
from tests.support.pair_rounds import PairRounds, random_texts
from tests.support.plain_heads import PlainTables, drafted_by_one
from tests.support.tiny_models import VOCAB_SIZE, make_tiny_llama, random_weights

_LAYERS = 6
_SPEC_FORGE = {
    **DRAFT_SETTINGS,
    "architectures": ["LlamaForCausalLMEagle3"],
    "draft_vocab_size": 100,
    "tie_word_embeddings": True,
}
_NESTED = {
    "speculators_model_type": "eagle3",
    "transformer_layer_config": DRAFT_SETTINGS,
    "draft_vocab_size": 100,
    "eagle_aux_hidden_state_layer_ids": [2, 3, 6],
}


@dataclass(frozen=True)
class Case:
    """A file, and what its reference is told."""

    config: Mapping[str, Any]
    boundaries: tuple[int, ...] = (2, 3, 3)
    weights: Mapping[str, Any] = field(default_factory=dict)
    stored: Mapping[str, str] = field(default_factory=dict)
    habits: Mapping[str, Any] = field(default_factory=dict)
    norms: tuple[str, ...] = ()
    own_embedding: bool = False
    window: int | None = None


_CASES: Mapping[str, Case] = {
    "SafeAILab": Case({**_SPEC_FORGE, "architectures": ["LlamaForCausalLM"]}),
    "SpecForge with embedding": Case(
        {**_SPEC_FORGE, "eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 2, 4]}},
        boundaries=(2, 3, 5),
        own_embedding=True,
    ),
    "model prefix": Case(_SPEC_FORGE, stored={"prefix": "model."}),
    "speculators": Case(
        {**_NESTED, "norm_before_residual": True},
        boundaries=(2, 3, 6),
        stored={"first_layer": "layers.0"},
        habits={"norm_before_residual": True},
    ),
    "speculators 3.1": Case(
        {**_NESTED, "norm_output": True, "fc_norm": True},
        boundaries=(2, 3, 6),
        stored={"first_layer": "layers.0"},
        habits={"norm_output": True},
        norms=("fc_norm.0.weight", "fc_norm.1.weight", "fc_norm.2.weight"),
    ),
    "gpt-oss": Case(
        {**_SPEC_FORGE, "eagle_config": {"norm_before_fc": True}}, norms=("input_norm.weight",)
    ),
    "sliding window": Case(
        {**_SPEC_FORGE, "layer_types": ["sliding_attention"], "sliding_window": 8}, window=8
    ),
    "two layers": Case({**_SPEC_FORGE, "num_hidden_layers": 2}, weights={"layers": 2}),
    "DeepSpec": Case(
        {
            **DRAFT_SETTINGS,
            "architectures": ["Qwen3Eagle3Model"],
            "target_layer_ids": [0, 1, 2, 3, 5],
        },
        boundaries=(1, 2, 3, 4, 6),
        weights={"taps": 5, "draft_vocab_size": VOCAB_SIZE, "qk_norm": True},
        stored={"first_layer": "layers.0"},
        own_embedding=True,
    ),
}


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    folder = tmp_path_factory.mktemp("target")
    return load_model(make_tiny_llama(folder, num_hidden_layers=_LAYERS))


def _made(case: Case) -> tuple[Eagle3Weights, dict[str, Tensor], Tensor]:
    """The weights, what is stored of them, and an embedding for those that have their own."""
    weights = Eagle3Weights.random(**case.weights)
    size = {"fc_norm": (48,), "input_norm": (3 * 48,)}
    norms = {name: size[name.split(".")[0]] for name in case.norms}
    weights.around.update(random_weights(norms, 40))
    embedding = random_weights({"embed_tokens.weight": (VOCAB_SIZE, 48)}, 41)
    reduced = weights.draft_vocab_size < VOCAB_SIZE
    stored = {
        **weights.stored(**case.stored),
        **(weights.maps(VOCAB_SIZE) if reduced else {}),
        **(embedding if case.own_embedding else {}),
    }
    return weights, stored, embedding["embed_tokens.weight"]


@pytest.mark.parametrize("name", _CASES)
def test_a_layout_drafts_what_the_recipe_says(
    name: str, target: LoadedModel, tmp_path: Path
) -> None:
    case = _CASES[name]
    weights, stored, embedding = _made(case)
    drafter = open_drafter(write_head(tmp_path, case.config, stored), target, 4)
    assert isinstance(drafter, EagleDrafter)
    assert drafter.feature_spec.boundaries == case.boundaries
    rounds = PairRounds(target, drafter, random_texts([20], VOCAB_SIZE), [20])
    rounds.feed()
    _, logits = rounds.propose(4)

    shared = load_file(target.folder / "model.safetensors")["model.embed_tokens.weight"]
    kept = weights.kept_ids(VOCAB_SIZE)
    head = torch.full((VOCAB_SIZE, 48), float("nan")).double()
    head[kept] = weights.around["lm_head.weight"].double()
    tables = PlainTables((embedding if case.own_embedding else shared).double(), head)
    settings = {**DRAFT_SETTINGS, "sliding_window": case.window}
    plain = replace(weights.plain(tables, **case.habits), settings=settings)

    def run(token_ids: Any, hidden: Tensor) -> tuple[Tensor, Tensor]:
        carried, found = plain.run(token_ids, hidden)
        return carried, found.nan_to_num(float("-inf"))

    text = rounds.state.history[0, :20].tolist()
    expected = drafted_by_one(run, text, plain.fuse(rounds.features[0, :19].double()), 4)
    torch.testing.assert_close(logits[:, 0].double(), expected, atol=1e-4, rtol=1e-4)
    outside = torch.ones(VOCAB_SIZE, dtype=torch.bool).index_fill_(0, kept, False)
    assert bool((logits[..., outside] == float("-inf")).all())


@pytest.mark.parametrize(
    ("settings", "layers", "boundaries"),
    [
        ({"eagle_aux_hidden_state_layer_ids": [1, 29, 57]}, 61, (2, 30, 58)),
        ({"eagle_aux_hidden_state_layer_ids": [2, 18, 33]}, 36, (2, 18, 33)),
        ({"eagle_aux_hidden_state_layer_ids": [24, 30, 36]}, 36, (24, 30, 36)),
        ({"target_layer_ids": [1, 9, 17, 25, 33]}, 36, (2, 10, 18, 26, 34)),
        ({"target_layer_ids": [0, 9, 17, 25, 35]}, 36, (1, 10, 18, 26, 36)),
        ({}, 32, (2, 16, 29)),
    ],
)
def test_taps_are_counted_in_blocks_before_them(
    settings: dict[str, Any], layers: int, boundaries: tuple[int, ...]
) -> None:
    assert tap_boundaries(JsonSettings(settings), layers) == boundaries


def test_taps_outside_of_the_target_are_refused(target: LoadedModel, tmp_path: Path) -> None:
    _, stored, _ = _made(Case(_SPEC_FORGE))
    config = {**_SPEC_FORGE, "eagle_aux_hidden_state_layer_ids": [2, 18, 33]}
    folder = write_head(tmp_path, config, stored)
    with pytest.raises(ModelError, match=rf"{tmp_path}: .*\[2, 18, 33\] blocks .* has 6"):
        open_drafter(folder, target, 4)


def test_a_head_that_ignores_tokens_repeats_the_target(target: LoadedModel, tmp_path: Path) -> None:
    """The last tap is what the target's final norm is given: so the two say the same."""
    weights, stored, _ = _made(Case({}, weights={"draft_vocab_size": VOCAB_SIZE}))
    shared = load_file(target.folder / "model.safetensors")
    stored["fc.weight"] = torch.cat([torch.zeros(48, 96), torch.eye(48)], 1)
    stored["norm.weight"] = shared["model.norm.weight"].clone()
    stored["lm_head.weight"] = shared["model.embed_tokens.weight"].clone()
    for name in ("self_attn.o_proj.weight", "mlp.down_proj.weight"):
        stored[f"midlayer.{name}"] = torch.zeros_like(weights.layers[0][name])
    config = {**DRAFT_SETTINGS, "eagle_aux_hidden_state_layer_ids": [2, 3, 6]}
    drafter = open_drafter(write_head(tmp_path, config, stored), target, 1)
    assert isinstance(drafter, EagleDrafter)
    assert isinstance(drafter.head, Eagle3Head)
    assert drafter.head.table == target.model.logits
    rounds = PairRounds(target, drafter, random_texts([20, 5, 90], VOCAB_SIZE), [20, 5, 90])
    rounds.feed()
    drafts, _ = rounds.propose(1)

    at_final_norm = rounds.features[torch.arange(3), rounds.known - 2][:, 96:].double()
    normed = torch.nn.functional.rms_norm(
        at_final_norm, (48,), shared["model.norm.weight"].double(), eps=1e-5
    )
    verified = target.model.logits(normed.float()).argmax(-1)
    assert torch.equal(drafts.token_ids[:, 0], verified)


@pytest.mark.parametrize(
    ("missing", "config"),
    [
        ("midlayer.hidden_norm.weight", {}),
        ("midlayer.mlp.up_proj.weight", {}),
        ("norm.weight", {}),
        ("lm_head.weight", {}),
        ("input_norm.weight", {"norm_before_fc": True}),
        ("fc_norm.2.weight", {"fc_norm": True}),
    ],
)
def test_a_missing_tensor_is_named(
    missing: str, config: dict[str, Any], target: LoadedModel, tmp_path: Path
) -> None:
    stored = {"midlayer.mlp.up_proj.weight": torch.zeros(80, 48), **_made(Case(_SPEC_FORGE))[1]}
    if "fc_norm" in config:
        stored |= random_weights({f"fc_norm.{tap}.weight": (48,) for tap in range(2)})
    stored.pop(missing, None)
    with pytest.raises(ModelError, match=rf"{tmp_path} .*missing: {missing}$"):
        open_drafter(write_head(tmp_path, {**_SPEC_FORGE, **config}, stored), target, 2)


@pytest.mark.parametrize("surplus", ["input_norm.weight", "layers.3.mlp.up_proj.weight", "lm_bias"])
def test_an_unknown_tensor_is_named(surplus: str, target: LoadedModel, tmp_path: Path) -> None:
    stored = {**_made(Case(_SPEC_FORGE))[1], surplus: torch.zeros(144)}
    with pytest.raises(ModelError, match=f"surplus: {surplus}"):
        open_drafter(write_head(tmp_path, _SPEC_FORGE, stored), target, 2)


def test_maps_of_the_vocabulary_must_agree(target: LoadedModel, tmp_path: Path) -> None:
    stored = _made(Case(_SPEC_FORGE))[1]
    folder = write_head(tmp_path / "a", _SPEC_FORGE, {**stored, "t2d": ~stored["t2d"]})
    with pytest.raises(ModelError, match="a: d2t and t2d do not name the same tokens"):
        open_drafter(folder, target, 2)
    beyond = {**stored, "d2t": stored["d2t"] + VOCAB_SIZE}
    with pytest.raises(ModelError, match="d2t does not map 100 outputs into a vocabulary of 259"):
        open_drafter(write_head(tmp_path / "b", _SPEC_FORGE, beyond), target, 2)
    twice = {name: tensor for name, tensor in stored.items() if name != "t2d"}
    twice["d2t"] = stored["d2t"].index_fill(0, torch.tensor([7]), int(stored["d2t"][6]) - 1)
    with pytest.raises(ModelError, match="d: d2t maps two outputs to one token"):
        open_drafter(write_head(tmp_path / "d", _SPEC_FORGE, twice), target, 2)
    without = {name: tensor for name, tensor in stored.items() if name != "d2t"}
    with pytest.raises(ModelError, match="d2t is missing"):
        open_drafter(write_head(tmp_path / "c", _SPEC_FORGE, without), target, 2)


@pytest.mark.parametrize("rows", [VOCAB_SIZE - 3, VOCAB_SIZE + 5])
def test_a_vocabulary_padded_differently_is_fitted(
    rows: int, target: LoadedModel, tmp_path: Path
) -> None:
    weights, stored, _ = _made(Case({}, weights={"draft_vocab_size": rows}))
    stored.pop("d2t", None)
    stored.pop("t2d", None)
    config = {**DRAFT_SETTINGS, "vocab_size": rows}
    own = random_weights({"embed_tokens.weight": (rows, 48)}, 1)
    drafter = open_drafter(write_head(tmp_path, config, {**stored, **own}), target, 3)
    assert isinstance(drafter, EagleDrafter)
    rounds = PairRounds(target, drafter, [[5, VOCAB_SIZE - 1, 9, 12]], [4])
    rounds.feed()
    drafts, logits = rounds.propose(3)
    assert logits.shape[-1] == VOCAB_SIZE
    assert bool(logits[..., : min(rows, VOCAB_SIZE)].isfinite().all())
    assert bool((logits[..., rows:] == float("-inf")).all())
    assert int(drafts.token_ids.max()) < min(rows, VOCAB_SIZE)
    assert weights.draft_vocab_size == rows


def test_another_targets_head_is_refused(target: LoadedModel, tmp_path: Path) -> None:
    stored = _made(Case(_SPEC_FORGE))[1]
    folder = write_head(tmp_path, {**_SPEC_FORGE, "target_hidden_size": 64}, stored)
    with pytest.raises(ModelError, match="hidden size 64, this one has 48"):
        open_drafter(folder, target, 2)


def test_drafts_end_where_the_heads_context_does(target: LoadedModel, tmp_path: Path) -> None:
    stored = _made(Case(_SPEC_FORGE))[1]
    config = {**_SPEC_FORGE, "max_position_embeddings": 64}
    drafter = open_drafter(write_head(tmp_path, config, stored), target, 4)
    assert isinstance(drafter, EagleDrafter)
    rounds = PairRounds(target, drafter, random_texts([200] * 4, VOCAB_SIZE), [50, 62, 64, 150])
    rounds.feed()
    drafts, _ = rounds.propose(4)
    assert drafts.lengths.tolist() == [4, 3, 1, 0]
