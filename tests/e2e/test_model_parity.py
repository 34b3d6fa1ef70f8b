"""The demo model, from its GGUF file, against the reference library in float32."""

from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer
from torch import Tensor

from outrider_worker.attention.base import Rows
from outrider_worker.kv import PAGE_TOKENS, KvPool
from outrider_worker.model import LoadedModel, load_model, resolve_model
from outrider_worker.numerics import probe_batch_invariance

pytestmark = pytest.mark.e2e

PROMPTS = [
    "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n",
    "def reverse(text: str) -> str:\n    return",
    "In 1969, 3 astronauts flew to the moon — née, ☃, 12345 — and " * 6,
]


@cache
def demo() -> LoadedModel:
    return load_model(resolve_model("demo"))


@cache
def reference() -> Any:
    from transformers import LlamaForCausalLM

    return LlamaForCausalLM.from_pretrained(demo().folder, dtype=torch.float32)


@cache
def tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(demo().folder / "tokenizer.json"))


class Run:
    """One sequence of the demo model."""

    def __init__(self, pages: int = 8) -> None:
        self._model = demo().model
        self._pool = KvPool.of_pages(demo().config, pages + 1, torch.float32)
        self._pages = torch.arange(1, pages + 1)[None]
        self._length = 0

    def feed(self, tokens: list[int]) -> Tensor:
        positions = torch.arange(self._length, self._length + len(tokens))
        self._length += len(tokens)
        rows = Rows(
            token_ids=torch.tensor(tokens),
            positions=positions,
            slots=self._pages[0][positions // PAGE_TOKENS] * PAGE_TOKENS + positions % PAGE_TOKENS,
            sequence=torch.zeros_like(positions),
            lengths=positions + 1,
            page_table=self._pages,
        )
        return self._model.logits(self._model.forward(rows, self._pool))

    def greedy(self, prompt: list[int], count: int) -> list[int]:
        tokens = [int(self.feed(prompt)[-1].argmax())]
        while len(tokens) < count:
            tokens.append(int(self.feed(tokens[-1:])[-1].argmax()))
        return tokens


@pytest.mark.parametrize("prompt", PROMPTS)
def test_logits_agree(prompt: str) -> None:
    ids = tokenizer().encode(prompt).ids
    with torch.inference_mode():
        expected = reference()(torch.tensor([ids])).logits[0]
    torch.testing.assert_close(Run().feed(ids), expected, rtol=0, atol=1e-3)


def test_greedy_tokens_agree() -> None:
    ids = tokenizer().encode(PROMPTS[1]).ids
    text = reference().generate(
        torch.tensor([ids]),
        attention_mask=torch.ones(1, len(ids), dtype=torch.int64),
        max_new_tokens=64,
        min_new_tokens=64,
        do_sample=False,
        eos_token_id=None,
        pad_token_id=2,
    )
    assert Run().greedy(ids, 64) == text[0, len(ids) :].tolist()


def test_the_capital_of_france() -> None:
    answer = Run().greedy(tokenizer().encode(PROMPTS[0]).ids, 10)
    assert "Paris" in tokenizer().decode(answer)
    assert set(answer) & set(demo().config.eos_ids)


def test_the_converted_tokenizer_agrees_with_the_reference_library() -> None:
    from transformers import AutoTokenizer

    theirs = AutoTokenizer.from_pretrained(Path(demo().folder))
    messages = [{"role": "user", "content": "What is the capital of France?"}]
    chat = str(theirs.apply_chat_template(messages, tokenize=False, add_generation_prompt=True))
    for text in (*PROMPTS, chat):
        assert tokenizer().encode(text).ids == theirs(text)["input_ids"]
    assert chat.startswith("<|im_start|>system\nYou are a helpful AI assistant named SmolLM")
    assert tokenizer().encode("<|im_start|>Hello 42<|im_end|>").ids == [1, 19556, 216, 36, 34, 2]
    assert demo().config.eos_ids == (2, 0)


def test_this_machine_is_batch_invariant() -> None:
    report = probe_batch_invariance(demo().model)
    assert report.ok, report.summary()
