"""What a model folder may hold, and what is said about one that does not fit."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from outrider_worker.kv import KvPool
from outrider_worker.model import ModelError, load_model, resolve_model
from outrider_worker.model.checkpoint import Checkpoint
from outrider_worker.model.config import Llama3Scaling, read_config
from tests.support.tiny_models import make_tiny_llama
from tests.unit.worker.tensors.row_tables import random_text, rows_of

WEIGHTS = "model.safetensors"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make_tiny_llama(tmp_path / "tiny")


def edit(path: Path, **changes: Any) -> None:
    """Replace entries of a JSON file; None removes."""
    value = {**json.loads(path.read_text()), **changes}
    path.write_text(json.dumps({k: v for k, v in value.items() if v is not None}))


def logits_of(folder: Path) -> torch.Tensor:
    model = load_model(folder).model
    pool = KvPool.of_pages(model.config, 2, torch.float32)
    return model.logits(model.forward(rows_of([random_text(9)], [[1]], [(0, range(9))]), pool))


def test_the_configuration_is_read(folder: Path) -> None:
    config = read_config(folder)
    assert (config.layers, config.query_heads, config.kv_heads, config.head_dim) == (2, 3, 1, 16)
    assert config.eos_ids == (2, 0)
    assert config.bos_id == 1
    assert config.rope_scaling is None


def test_eos_falls_back_to_the_model_configuration(folder: Path) -> None:
    (folder / "generation_config.json").unlink()
    assert read_config(folder).eos_ids == (2,)
    edit(folder / "config.json", eos_token_id=None)
    assert read_config(folder).eos_ids == ()


def test_rotary_settings_of_both_generations_are_read(folder: Path) -> None:
    scaling = {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    edit(folder / "config.json", rope_theta=5e5, rope_scaling=scaling)
    older = read_config(folder)
    newer_settings = {**scaling, "rope_theta": 5e5}
    edit(folder / "config.json", rope_theta=None, rope_scaling=None, rope_parameters=newer_settings)
    newer = read_config(folder)
    assert older.rope_scaling == newer.rope_scaling == Llama3Scaling(8.0, 1.0, 4.0, 8192)
    assert older.rope_theta == newer.rope_theta == 5e5


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"architectures": ["GizmoForCausalLM"]}, "GizmoForCausalLM.*known: LlamaForCausalLM"),
        ({"architectures": None}, "names no architecture"),
        ({"hidden_size": None}, "hidden_size must be a positive whole number, not None"),
        ({"num_hidden_layers": 0}, "num_hidden_layers must be a positive"),
        ({"hidden_act": "relu"}, "hidden_act 'relu'"),
        ({"num_attention_heads": 3, "num_key_value_heads": 2}, "3 query heads cannot share 2"),
        ({"head_dim": 15}, "even head size"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 2.0}}, "'yarn' is not supported"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 2.0}}, "llama3 .* lacks"),
    ],
)
def test_settings_that_cannot_be_honoured(
    folder: Path, changes: dict[str, Any], message: str
) -> None:
    edit(folder / "config.json", **changes)
    with pytest.raises(ModelError, match=message):
        load_model(folder)


def test_eos_ids_that_are_no_ids(folder: Path) -> None:
    edit(folder / "generation_config.json", eos_token_id=["</s>"])
    with pytest.raises(ModelError, match="eos_token_id must hold token ids"):
        read_config(folder)


def test_all_misfits_are_listed_at_once(folder: Path) -> None:
    tensors = load_file(folder / WEIGHTS)
    del tensors["model.norm.weight"]
    tensors["model.layers.0.mlp.extra.weight"] = torch.zeros(2)
    tensors["model.layers.1.mlp.up_proj.weight"] = torch.zeros(3, 48)
    save_file(tensors, folder / WEIGHTS)
    with pytest.raises(ModelError) as caught:
        load_model(folder)
    message = str(caught.value)
    assert "missing: model.norm.weight" in message
    assert "surplus: model.layers.0.mlp.extra.weight" in message
    assert "model.layers.1.mlp.up_proj.weight is (3, 48), expected (96, 48)" in message


def test_a_stored_tied_head_is_no_misfit(folder: Path) -> None:
    before = logits_of(folder)
    tensors = load_file(folder / WEIGHTS)
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()
    save_file(tensors, folder / WEIGHTS)
    assert torch.equal(logits_of(folder), before)


def test_a_checkpoint_in_shards_is_the_same_model(folder: Path) -> None:
    before = logits_of(folder)
    tensors = load_file(folder / WEIGHTS)
    (folder / WEIGHTS).unlink()
    shards = {"a.safetensors": dict(list(tensors.items())[::2])}
    shards["b.safetensors"] = dict(list(tensors.items())[1::2])
    for name, part in shards.items():
        save_file(part, folder / name)
    weight_map = {tensor: name for name, part in shards.items() for tensor in part}
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": weight_map}))
    assert torch.equal(logits_of(folder), before)
    (folder / "b.safetensors").unlink()
    with pytest.raises(ModelError, match=r"b\.safetensors cannot be read"):
        load_model(folder)
    index.write_text("{}")
    with pytest.raises(ModelError, match=r"index\.json cannot be read"):
        load_model(folder)


@pytest.mark.parametrize("keep", [0, 7, 100, -40])
def test_a_truncated_weight_file(folder: Path, keep: int) -> None:
    path = folder / WEIGHTS
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(ModelError, match=r"model\.safetensors cannot be read"):
        load_model(folder)


def test_pickles_are_never_read(folder: Path) -> None:
    tensors = load_file(folder / WEIGHTS)
    torch.save(tensors, folder / "pytorch_model.bin")
    (folder / WEIGHTS).unlink()
    with pytest.raises(ModelError, match="no safetensors"):
        load_model(folder)


def test_broken_or_missing_configuration(folder: Path) -> None:
    (folder / "config.json").write_text("{")
    with pytest.raises(ModelError, match=r"config\.json cannot be read"):
        load_model(folder)
    (folder / "config.json").write_text("[]")
    with pytest.raises(ModelError, match="no JSON object"):
        load_model(folder)
    (folder / "config.json").unlink()
    with pytest.raises(ModelError, match=r"config\.json does not exist"):
        load_model(folder)


def test_progress_runs_from_little_to_all(folder: Path) -> None:
    seen: list[tuple[str, float]] = []
    load_model(folder, progress=lambda step, done: seen.append((step, done)))
    shares = [done for _, done in seen]
    assert {step for step, _ in seen} == {"loading weights"}
    assert shares == sorted(shares)
    assert shares[-1] == 1.0


def test_tensors_are_converted_on_reading(folder: Path) -> None:
    with Checkpoint(folder) as checkpoint:
        assert checkpoint.tensor("model.norm.weight", torch.bfloat16).dtype is torch.bfloat16


def test_local_paths_are_taken_as_they_are(folder: Path) -> None:
    assert resolve_model(str(folder)) == folder


@pytest.mark.parametrize("spec", ["./nowhere", "/nowhere/at/all", "missing.gguf", "a/b/c"])
def test_paths_that_do_not_exist(spec: str) -> None:
    with pytest.raises(ModelError, match="does not exist"):
        resolve_model(spec)


def test_a_hub_id_without_a_network(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(ModelError, match="'some-org/some-model' is no local folder"):
        resolve_model("some-org/some-model")


def test_the_demo_model_that_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ModelError, match="outrider fetch-model demo"):
        resolve_model("demo")


def test_a_file_that_is_no_model(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("hello")
    with pytest.raises(ModelError, match=r"neither a model folder nor a \.gguf file"):
        load_model(tmp_path / "notes.txt")
