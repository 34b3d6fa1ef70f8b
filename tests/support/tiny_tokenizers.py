"""Small real tokenizers built by the tokenizers library: byte-level as SmolLM2's, and SentencePiece
as Llama 2's, each with ChatML's control tokens and a marker that is not special.
"""

import json
from collections.abc import Iterable
from functools import lru_cache

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers
from tokenizers.trainers import BpeTrainer

SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<unk>")
MARKERS = ("<think>", "</think>")
CONTROL_TOKENS = SPECIAL_TOKENS + MARKERS

CHATML = (
    "{% for message in messages %}"
    "{% if loop.first and message['role'] != 'system' %}"
    "{{ '<|im_start|>system\nYou are a helpful assistant<|im_end|>\n' }}"
    "{% endif %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
TOKENIZER_CONFIG = {
    "tokenizer_class": "PreTrainedTokenizerFast",
    "bos_token": "<|im_start|>",
    "eos_token": {"content": "<|im_end|>"},
    "unk_token": "<unk>",
    "chat_template": CHATML,
}

_CORPUS = [
    "system user assistant You are a helpful assistant\n The capital of France is Paris.",
    "def add(a, b):\n    return a + b\n",
    "The quick brown fox jumps over the lazy dog, 12 times.",
    "Größe, naïve café, 東京は日本の首都です, привет мир, 👩‍👩‍👧 🎉",
] * 3


@lru_cache
def byte_level_json() -> bytes:
    """`tokenizer.json` of a byte-level BPE with 400 tokens."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = BpeTrainer(
        vocab_size=400,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_CORPUS, trainer)
    tokenizer.add_tokens([AddedToken(m, special=False, normalized=False) for m in MARKERS])
    return tokenizer.to_str().encode()


@lru_cache
def sentencepiece_json(prepend_scheme: str = "first") -> bytes:
    """`tokenizer.json` of a SentencePiece-like BPE with byte fallback."""
    letters = sorted({letter for text in _CORPUS for letter in text if letter.isascii()} - {" "})
    pieces = [*SPECIAL_TOKENS, *(f"<0x{byte:02X}>" for byte in range(256)), "▁", *letters]
    merges = [("▁", letter) for letter in "Tatcou"] + [("t", "h"), ("▁T", "h"), ("▁", "▁")]
    pieces += ["".join(merge) for merge in merges]
    vocab = {piece: at for at, piece in enumerate(dict.fromkeys(pieces))}
    tokenizer = Tokenizer(models.BPE(vocab, merges, unk_token="<unk>", byte_fallback=True))
    if prepend_scheme == "first":
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    else:
        tokenizer.normalizer = normalizers.Sequence(
            [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
        )
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    tokenizer.add_special_tokens([AddedToken(token, normalized=False) for token in SPECIAL_TOKENS])
    tokenizer.add_tokens([AddedToken(m, special=False, normalized=False) for m in MARKERS])
    return tokenizer.to_str().encode()


@lru_cache
def tokenizer_config_json() -> bytes:
    """`tokenizer_config.json` that goes with either."""
    return json.dumps(TOKENIZER_CONFIG).encode()


@lru_cache
def _library(source: bytes) -> Tokenizer:
    return Tokenizer.from_str(source.decode())


def encode(text: str) -> list[int]:
    """Ids of `text` in the byte-level tokenizer."""
    return _library(byte_level_json()).encode(text, add_special_tokens=False).ids


def decode(ids: Iterable[int]) -> str:
    """Text of ids in the byte-level tokenizer, control tokens shown."""
    return _library(byte_level_json()).decode(list(ids), skip_special_tokens=False)


def vocab_size(source: bytes) -> int:
    """Number of ids of a tokenizer."""
    return _library(source).get_vocab_size()
