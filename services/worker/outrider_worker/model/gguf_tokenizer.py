"""The tokenizer inside a GGUF file, written as tokenizer.json and tokenizer_config.json.

Knows: byte-level BPE vocabularies and how their families cut text into words.
Does not know: weights, or how text is encoded (the router does that, with the files).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    pre_tokenizers,
    processors,
)

from outrider_worker.model.config import ModelError

_CONTROL, _USER_DEFINED = 3, 4
"""Token types of the GGUF format that are matched whole."""

_END_MARKS = frozenset(
    {"<|endoftext|>", "<|im_end|>", "<|end_of_text|>", "<|eot_id|>", "<|eom_id|>", "</s>"}
)
"""Control tokens that end a text or a turn, whatever the file's one eos id says."""

_LLAMA3_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def write_tokenizer(folder: Path, metadata: Mapping[str, Any]) -> None:
    """Write the two tokenizer files. Raises ModelError for a tokenizer of another kind."""
    tokens: list[str] = _required(metadata, "tokens")
    tokenizer = _byte_level_bpe(tokens, _required(metadata, "merges"), metadata)
    specials = _tokens_of_type(metadata, tokens, _CONTROL)
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in specials])
    added = _tokens_of_type(metadata, tokens, _USER_DEFINED)
    tokenizer.add_tokens([AddedToken(t, normalized=False) for t in added])
    if _adds_bos(metadata):
        bos = _required(metadata, "bos_token_id")
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{tokens[bos]} $A", special_tokens=[(tokens[bos], bos)]
        )
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = json.dumps(_settings(metadata, tokens), indent=2, ensure_ascii=False)
    (folder / "tokenizer_config.json").write_text(settings, encoding="utf-8")


def end_ids(metadata: Mapping[str, Any]) -> list[int]:
    """Every token id that ends a text: the file's eos first, then known end marks."""
    tokens: list[str] = _required(metadata, "tokens")
    types = metadata.get("tokenizer.ggml.token_type", [])
    named = [metadata.get(f"tokenizer.ggml.{name}_token_id") for name in ("eos", "eot")]
    marks = [id for id, kind in enumerate(types) if kind == _CONTROL and tokens[id] in _END_MARKS]
    return list(dict.fromkeys(id for id in [*named, *marks] if id is not None))


def _required(metadata: Mapping[str, Any], name: str) -> Any:
    try:
        return metadata[f"tokenizer.ggml.{name}"]
    except KeyError:
        raise ModelError(f"the GGUF file lacks tokenizer.ggml.{name}") from None


def _byte_level_bpe(tokens: list[str], merges: list[str], metadata: Mapping[str, Any]) -> Tokenizer:
    kind = _required(metadata, "model")
    if kind != "gpt2":
        raise ModelError(f"GGUF tokenizer {kind!r} is not supported, only byte-level BPE ('gpt2')")
    family = metadata.get("tokenizer.ggml.pre", "default")
    if family not in _WORDS:
        known = ", ".join(sorted(_WORDS))
        raise ModelError(f"GGUF pre-tokenizer {family!r} is not supported; known: {known}")
    try:
        model = models.BPE(
            vocab={token: id for id, token in enumerate(tokens)},
            merges=[_pair(merge) for merge in merges],
            ignore_merges=_WORDS[family] is _llama3_words,
        )
    except Exception as error:  # the library has no type of its own for this
        raise ModelError(f"the GGUF file's vocabulary does not fit its merges: {error}") from error
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = _WORDS[family]()
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _pair(merge: str) -> tuple[str, str]:
    left, _, right = merge.partition(" ")
    return left, right


def _gpt2_words() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)


def _single_digit_words() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), _gpt2_words()])


def _llama3_words() -> pre_tokenizers.PreTokenizer:
    words = pre_tokenizers.Split(Regex(_LLAMA3_WORDS), behavior="isolated")
    return pre_tokenizers.Sequence(
        [words, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )


_WORDS: Mapping[str, Callable[[], pre_tokenizers.PreTokenizer]] = {
    "default": _gpt2_words,
    "gpt-2": _gpt2_words,
    "smollm": _single_digit_words,
    "llama-bpe": _llama3_words,
    "llama3": _llama3_words,
}


def _tokens_of_type(metadata: Mapping[str, Any], tokens: list[str], kind: int) -> list[str]:
    types = metadata.get("tokenizer.ggml.token_type", [])
    return [token for token, its in zip(tokens, types, strict=False) if its == kind]


def _adds_bos(metadata: Mapping[str, Any]) -> bool:
    family_adds = metadata.get("tokenizer.ggml.pre") in ("llama-bpe", "llama3")
    return bool(metadata.get("tokenizer.ggml.add_bos_token", family_adds))


def _settings(metadata: Mapping[str, Any], tokens: list[str]) -> dict[str, Any]:
    """tokenizer_config.json."""
    named = {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding"}
    ids = {short: metadata.get(f"tokenizer.ggml.{long}_token_id") for short, long in named.items()}
    settings: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "add_bos_token": _adds_bos(metadata),
        "clean_up_tokenization_spaces": False,
        "model_max_length": metadata.get("llama.context_length"),
    }
    settings |= {f"{short}_token": tokens[id] for short, id in ids.items() if id is not None}
    if template := metadata.get("tokenizer.chat_template"):
        settings["chat_template"] = template
    return settings
