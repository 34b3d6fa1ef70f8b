"""What a model folder may hold, and what is said about one that does not fit."""

import json
import weakref
from fnmatch import fnmatch
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from outrider_worker.kv import KvPool
from outrider_worker.model import ModelError, load_model, resolve_model
from outrider_worker.model.checkpoint import Checkpoint
from tests.support.tiny_models import make_tiny_llama
from tests.unit.worker.tensors.row_tables import random_text, rows_of

WEIGHTS = "model.safetensors"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make_tiny_llama(tmp_path / "tiny")


def logits_of(folder: Path) -> torch.Tensor:
    model = load_model(folder).model
    pool = KvPool.of_pages(model.config, 2, torch.float32)
    return model.logits(model.forward(rows_of([random_text(9)], [[1]], [(0, range(9))]), pool))


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


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_other_float_types_are_converted(folder: Path, dtype: torch.dtype) -> None:
    stored = {name: tensor.to(dtype) for name, tensor in load_file(folder / WEIGHTS).items()}
    save_file(stored, folder / WEIGHTS)
    converted = logits_of(folder)
    save_file({name: tensor.float() for name, tensor in stored.items()}, folder / WEIGHTS)
    assert torch.equal(logits_of(folder), converted)


def test_numbers_that_are_no_floats(folder: Path) -> None:
    tensors = load_file(folder / WEIGHTS)
    name = "model.layers.0.mlp.up_proj.weight"
    save_file({**tensors, name: tensors[name].to(torch.int8)}, folder / WEIGHTS)
    with pytest.raises(ModelError, match=rf"stored in an unknown way: {name} is I8"):
        load_model(folder)


def test_drafting_layers_are_recognised_and_left_alone(tmp_path: Path) -> None:
    folder = make_tiny_llama(tmp_path, num_nextn_predict_layers=2)
    before = logits_of(folder)
    drafting = {"model.layers.2.enorm.weight", "model.layers.3.eh_proj.weight"}
    behind = {name: torch.zeros(4) for name in (*drafting, "model.layers.4.enorm.weight")}
    tensors = load_file(folder / WEIGHTS)
    save_file({**tensors, **behind}, folder / WEIGHTS)
    with pytest.raises(ModelError, match=r"surplus: model\.layers\.4\.enorm\.weight$"):
        load_model(folder)
    del behind["model.layers.4.enorm.weight"]
    save_file({**tensors, **behind}, folder / WEIGHTS)
    assert load_model(folder).mtp_tensors == tuple(sorted(drafting))
    assert torch.equal(logits_of(folder), before)


def test_weights_do_not_pile_up_while_loading(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make_tiny_llama(tmp_path, num_hidden_layers=6)
    per_layer = sum(name.startswith("model.layers.0.") for name in load_file(folder / WEIGHTS))
    alive: weakref.WeakSet[torch.Tensor] = weakref.WeakSet()
    most = 0

    def watched(self: Checkpoint, name: str, dtype: torch.dtype) -> torch.Tensor:
        nonlocal most
        tensor = read(self, name, dtype)
        alive.add(tensor)
        most = max(most, len(alive))
        return tensor

    read = Checkpoint.tensor
    monkeypatch.setattr(Checkpoint, "tensor", watched)
    load_model(folder)
    assert 1 < most <= 1 + per_layer


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


def test_weights_come_from_the_hub_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Some repositories hold a second copy, in the authors' own layout."""
    files = ["config.json", "model.safetensors", "consolidated.safetensors", "original/params.json"]
    fetched: list[str] = []

    def download(spec: str, allow_patterns: list[str], ignore_patterns: list[str]) -> str:
        for file in [*files, "pytorch_model.bin"]:
            wanted = any(fnmatch(file, pattern) for pattern in allow_patterns)
            if wanted and not any(fnmatch(file, pattern) for pattern in ignore_patterns):
                fetched.append(file)
        return str(tmp_path)

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    assert resolve_model("some-org/some-model") == tmp_path
    assert fetched == ["config.json", "model.safetensors"]


def test_the_demo_model_that_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ModelError, match="outrider fetch-model demo"):
        resolve_model("demo")


def test_a_file_that_is_no_model(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("hello")
    with pytest.raises(ModelError, match=r"neither a model folder nor a \.gguf file"):
        load_model(tmp_path / "notes.txt")
