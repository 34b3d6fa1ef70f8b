"""GGUF files written by the reference library come back as the models they were made of."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer

from outrider_worker.model import ModelError, load_model
from outrider_worker.model.gguf import converted_folder
from outrider_worker.model.gguf_config import model_config
from outrider_worker.model.gguf_tokenizer import write_tokenizer
from outrider_worker.model.gguf_weights import ShardWriter
from tests.support.tiny_models import BOS, EOS, UNK, make_tiny_llama

NAMES = {
    "embed_tokens": "token_embd",
    "q_proj": "attn_q",
    "k_proj": "attn_k",
    "v_proj": "attn_v",
    "o_proj": "attn_output",
    "gate_proj": "ffn_gate",
    "up_proj": "ffn_up",
    "down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "norm": "output_norm",
}
HEADS = {"q_proj": 3, "k_proj": 1}


def gguf_name(name: str) -> str:
    parts = name.split(".")
    layer = f"blk.{parts[2]}." if parts[1] == "layers" else ""
    return f"{layer}{NAMES[parts[-2]]}.{parts[-1]}"


def as_stored(name: str, tensor: torch.Tensor) -> np.ndarray[Any, np.dtype[np.float32]]:
    """GGUF keeps the two dimensions of a rotary pair side by side in q and k."""
    heads = HEADS.get(name.split(".")[-2])
    if heads:
        tensor = tensor.unflatten(0, (heads, 2, -1)).transpose(1, 2).flatten(0, 2)
    return tensor.contiguous().numpy()


def write_gguf(
    path: Path,
    source: Path,
    *,
    architecture: str = "llama",
    quantise: gguf.GGMLQuantizationType | None = None,
    extend: Callable[[gguf.GGUFWriter], None] = lambda writer: None,
) -> Path:
    """The tiny model in `source` as a GGUF file with a byte-level tokenizer."""
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_block_count(2)
    writer.add_context_length(1024)
    writer.add_embedding_length(48)
    writer.add_feed_forward_length(96)
    writer.add_head_count(3)
    writer.add_head_count_kv(1)
    writer.add_key_length(16)
    writer.add_rope_freq_base(10_000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    tokens = json.loads((source / "tokenizer.json").read_text())["model"]["vocab"]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    # The last two bytes make room for what the merges make.
    writer.add_token_list([*sorted(tokens, key=tokens.get)[:-2], "he", "ll"])
    writer.add_token_types([3, 3, 3] + [1] * (len(tokens) - 3))
    writer.add_token_merges(["h e", "l l"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_chat_template("{{ messages }}")
    extend(writer)
    for name, tensor in load_file(source / "model.safetensors").items():
        values = as_stored(name, tensor)
        if quantise is not None and values.ndim == 2 and values.shape[1] % 32 == 0:
            packed = gguf.quants.quantize(values, quantise)
            writer.add_tensor(gguf_name(name), packed, raw_dtype=quantise)
        else:
            writer.add_tensor(gguf_name(name), values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return make_tiny_llama(tmp_path / "source")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "outrider" / "models"


def test_weights_come_back_bit_for_bit(source: Path, tmp_path: Path) -> None:
    folder = converted_folder(write_gguf(tmp_path / "tiny.gguf", source))
    original, converted = (load_file(f / "model.safetensors") for f in (source, folder))
    assert original.keys() == converted.keys()
    assert all(torch.equal(original[name], converted[name]) for name in original)


def test_the_converted_model_is_the_same_model(source: Path, tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "tiny.gguf", source)
    loaded, original = load_model(path), load_model(source)
    assert loaded.config.eos_ids == (2, 0)
    assert loaded.config.rms_eps == pytest.approx(original.config.rms_eps)
    for name in ("layers", "query_heads", "kv_heads", "head_dim", "vocab_size", "rope_theta"):
        assert getattr(loaded.config, name) == getattr(original.config, name)


def test_quantised_weights_are_dequantised_exactly(source: Path, tmp_path: Path) -> None:
    q8 = gguf.GGMLQuantizationType.Q8_0
    folder = converted_folder(write_gguf(tmp_path / "tiny.gguf", source, quantise=q8))
    name = "model.layers.1.mlp.down_proj.weight"
    weight = load_file(source / "model.safetensors")[name].numpy()
    expected = gguf.quants.dequantize(gguf.quants.quantize(weight, q8), q8)
    assert np.array_equal(load_file(folder / "model.safetensors")[name].numpy(), expected)


def test_the_tokenizer_keeps_specials_whole_and_reads_its_own_writing(
    source: Path, tmp_path: Path
) -> None:
    folder = converted_folder(write_gguf(tmp_path / "tiny.gguf", source))
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    text = f"{BOS}user\nhello 12 née ☃{EOS}"
    ids = tokenizer.encode(text).ids
    assert ids[0] == 1
    assert ids[-1] == 2
    assert {257, 258} <= set(ids), "merges are applied"
    assert tokenizer.decode(ids, skip_special_tokens=False) == text
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    assert settings["chat_template"] == "{{ messages }}"
    assert (settings["bos_token"], settings["eos_token"], settings["unk_token"]) == (BOS, EOS, UNK)


def kept(cache: Path) -> list[str]:
    """What a cache holds, without the empty files by which processes take turns."""
    return [file.name for file in cache.iterdir() if file.suffix != ".lock"]


def test_a_second_use_finds_the_folder_and_another_file_does_not(
    source: Path, tmp_path: Path, cache: Path
) -> None:
    path = write_gguf(tmp_path / "tiny.gguf", source)
    steps: list[str] = []
    first = converted_folder(path, lambda step, done: steps.append(step))
    assert {"reading GGUF metadata", "converting GGUF weights"} <= set(steps)
    steps.clear()
    assert converted_folder(path, lambda step, done: steps.append(step)) == first
    assert steps == []
    other = write_gguf(path, make_tiny_llama(tmp_path / "other", seed=9))
    assert converted_folder(other) != first
    assert not any(name.startswith(".") for name in kept(cache))


def test_a_failed_conversion_leaves_nothing_behind(
    source: Path, tmp_path: Path, cache: Path
) -> None:
    path = write_gguf(
        tmp_path / "odd.gguf",
        source,
        extend=lambda writer: writer.add_tensor("blk.0.gizmo.weight", np.zeros(4, np.float32)),
    )
    with pytest.raises(ModelError, match=r"do not have: blk\.0\.gizmo\.weight"):
        converted_folder(path)
    assert kept(cache) == []


@pytest.mark.parametrize("pieces", [b"", b"GGUF", b"not a gguf file at all" * 10])
def test_files_that_are_no_gguf(tmp_path: Path, pieces: bytes) -> None:
    path = tmp_path / "broken.gguf"
    path.write_bytes(pieces)
    with pytest.raises(ModelError, match=r"broken\.gguf is no readable GGUF file"):
        converted_folder(path)


def test_a_truncated_file(source: Path, tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "short.gguf", source)
    path.write_bytes(path.read_bytes()[:-5000])
    with pytest.raises(ModelError, match=r"short\.gguf is no readable GGUF file"):
        converted_folder(path)


def test_other_architectures(source: Path, tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "other.gguf", source, architecture="mamba")
    with pytest.raises(ModelError, match="architecture 'mamba' is not supported"):
        converted_folder(path)


@pytest.mark.parametrize(
    ("extend", "message"),
    [
        (lambda w: w.add_expert_count(8), "experts"),
        (lambda w: w.add_rope_scaling_type(gguf.RopeScalingType.YARN), "'yarn' is not supported"),
        (
            lambda w: w.add_tensor("rope_freqs.weight", np.array([1, 3, 2, 1] * 2, np.float32)),
            "not those of Llama 3",
        ),
    ],
)
def test_settings_that_cannot_be_honoured(
    source: Path, tmp_path: Path, extend: Callable[[gguf.GGUFWriter], None], message: str
) -> None:
    with pytest.raises(ModelError, match=message):
        converted_folder(write_gguf(tmp_path / "odd.gguf", source, extend=extend))


METADATA = {
    "general.architecture": "llama",
    "llama.block_count": 2,
    "llama.context_length": 1024,
    "llama.embedding_length": 48,
    "llama.feed_forward_length": 96,
    "llama.attention.head_count": 3,
    "llama.attention.layer_norm_rms_epsilon": 1e-5,
    "tokenizer.ggml.tokens": [],
}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"llama.embedding_length": None}, r"lacks llama\.embedding_length"),
        ({"llama.rope.scaling.type": "linear"}, r"lacks llama\.rope\.scaling\.factor"),
        ({"llama.attention.head_count": 0}, "head_count must be a positive whole number, not 0"),
        ({"llama.feed_forward_length": [96, 48]}, r"feed_forward_length .* not \[96, 48\]"),
        ({"llama.rope.dimension_count": 8}, "rotate a part of each head"),
    ],
)
def test_settings_that_are_missing_or_wrong_are_named(
    changes: dict[str, Any], message: str
) -> None:
    tensors = {"token_embd.weight": np.zeros((48, 259))}
    assert model_config(METADATA, tensors, None)["head_dim"] == 16
    with pytest.raises(ModelError, match=message):
        model_config(METADATA | changes, tensors, None)


def test_a_file_without_embeddings_or_the_token_it_adds(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"lacks the tensor token_embd\.weight"):
        model_config(METADATA, {}, None)
    words = {"model": "gpt2", "tokens": ["a"], "merges": [], "add_bos_token": True}
    metadata = {f"tokenizer.ggml.{name}": value for name, value in words.items()}
    with pytest.raises(ModelError, match=r"lacks tokenizer\.ggml\.bos_token_id"):
        write_tokenizer(tmp_path, metadata)


def test_rotary_divisors_of_llama_3_are_recognised(source: Path, tmp_path: Path) -> None:
    frequencies = 10_000.0 ** -(np.arange(8) / 8)
    kept = np.clip((8192 * frequencies / (2 * np.pi) - 1) / 3, 0, 1)
    divisors = (1 / (kept + (1 - kept) / 32)).astype(np.float32)
    path = write_gguf(
        tmp_path / "llama3.gguf",
        source,
        extend=lambda writer: writer.add_tensor("rope_freqs.weight", divisors),
    )
    rope = json.loads((converted_folder(path) / "config.json").read_text())["rope_parameters"]
    assert rope["rope_type"] == "llama3"
    assert rope["factor"] == pytest.approx(32.0, rel=1e-3)


def test_large_models_are_written_in_shards(tmp_path: Path) -> None:
    writer = ShardWriter(tmp_path, shard_bytes=1000)
    tensors = {f"t{i}": np.full(100, i, np.float32) for i in range(5)}
    for name, values in tensors.items():
        writer.add(name, values)
    writer.close()
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    files = set(index["weight_map"].values())
    assert len(files) == 3
    assert index["metadata"]["total_size"] == 2000
    for name, values in tensors.items():
        stored = load_file(tmp_path / index["weight_map"][name])[name]
        assert np.array_equal(stored.numpy(), values)
