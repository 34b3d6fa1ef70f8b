"""Tiny models that call tools: for each family a chat template and a tokenizer with its markers.

The templates say no more than the router needs to know a family by, and what tests look for.
"""

import json
from collections.abc import Sequence
from functools import lru_cache

from tokenizers import AddedToken, Tokenizer

from tests.support import tiny_tokenizers as tiny

_TURNS = (
    "{% if tools %}{{ '<|im_start|>system\n' + (tools | tojson) + '<|im_end|>\n' }}{% endif %}"
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content }}"
    "{% for call in m.tool_calls or [] %}CALL{% endfor %}{{ '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' + opening }}{% endif %}"
)


def template(call: str, opening: str = "") -> str:
    """A template that shows earlier calls as `call` and opens the answer with `opening`."""
    return "{% set opening = " + json.dumps(opening) + " %}" + _TURNS.replace("CALL", call)


_FUNCTION = "{{ call.function | tojson }}"
HERMES = template(f"<tool_call>\n{_FUNCTION}\n</tool_call>")
THINKING = template(f"<tool_call>{_FUNCTION}</tool_call>", "<think>\n") + "{# </think> #}"
LLAMA = template(f"<|python_tag|>{_FUNCTION}")
MISTRAL = template(f"[TOOL_CALLS] [{_FUNCTION}]")
DEEPSEEK = template(
    "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>{{ call.function.name }}\n"
    "```json\n{{ call.function.arguments }}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>"
)


@lru_cache
def tokenizer_json(special: Sequence[str] = (), markers: Sequence[str] = ()) -> bytes:
    """The byte-level tokenizer with further special tokens and further markers."""
    tokenizer = Tokenizer.from_str(tiny.byte_level_json().decode())
    tokenizer.add_special_tokens([AddedToken(text, normalized=False) for text in special])
    tokenizer.add_tokens([AddedToken(text, special=False, normalized=False) for text in markers])
    return tokenizer.to_str().encode()


def encode(source: bytes, text: str) -> list[int]:
    """Ids of a text in one of these tokenizers, its markers as tokens."""
    return Tokenizer.from_str(source.decode()).encode(text, add_special_tokens=False).ids
