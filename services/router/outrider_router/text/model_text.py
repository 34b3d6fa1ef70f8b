"""Everything that turns one model's requests into token ids: tokenizer, template and limits."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from outrider_router.text.control import ContentMask
from outrider_router.text.template import ChatTemplate, TemplateError
from outrider_router.text.tokenizer import ModelTokenizer, TokenizerError


@dataclass(frozen=True)
class TextAssets:
    """A model's text files as a worker sends them; empty where the model has none."""

    tokenizer: bytes
    tokenizer_config: bytes
    chat_template: str


class ModelText:
    """One model's text side. Safe to use from several threads.

    Args:
        assets: the model's files.
        now: the local time, for templates that print a date.
        control_tokens_in_content: encode control tokens written in messages as such, as the
            library does; clients can then forge turns.

    Raises:
        TokenizerError, DecoderError, TemplateError: the files cannot be used.
    """

    def __init__(
        self,
        assets: TextAssets,
        now: Callable[[], datetime],
        control_tokens_in_content: bool = False,
    ) -> None:
        config = _json_object(assets.tokenizer_config)
        source = assets.chat_template or config.get("chat_template")
        self.tokenizer = ModelTokenizer(assets.tokenizer)
        self._template = ChatTemplate(source, config, now) if isinstance(source, str) else None
        self._library_behaviour = control_tokens_in_content

    def encode_chat(
        self, messages: Sequence[Mapping[str, Any]], add_generation_prompt: bool = True
    ) -> list[int]:
        """Ids of a conversation; only the template sets control tokens.

        Raises:
            TemplateError: the model has no chat template, or it refuses the messages.
            MaskError: the messages use up the private-use letters.
        """
        if self._template is None:
            raise TemplateError("this model has no chat template; use /v1/completions")
        if self._library_behaviour:
            text = self._template.render(messages, add_generation_prompt)
            return self.tokenizer.encode(text, add_special_tokens=False)
        control = self.tokenizer.control
        mask = ContentMask(control, [self._template.source, *texts_in(messages)])
        masked = self._template.render(mask.mask_messages(messages), add_generation_prompt)
        return self.tokenizer.encode_with_spans(mask.unmask(masked), control.find(masked))

    def encode_prompt(self, prompt: str, add_special_tokens: bool = True) -> list[int]:
        """Ids of a raw prompt as the library gives them: its writer is the template."""
        return self.tokenizer.encode(prompt, add_special_tokens)

    def encode_answer(self, text: str) -> list[int]:
        """Ids of a text as the model would answer it."""
        return self.tokenizer.encode_continuation(text)

    def least_tokens(self, characters: int) -> int:
        """Tokens that a text of this size has at least, known without encoding it."""
        return characters // self.tokenizer.most_chars_per_token


def texts_in(value: Any) -> list[str]:
    """All strings inside of nested lists and objects, keys included."""
    if isinstance(value, str):
        return [value]
    if isinstance(value, Mapping):
        return [*value, *(text for item in value.values() for text in texts_in(item))]
    if isinstance(value, list | tuple):
        return [text for item in value for text in texts_in(item)]
    return []


def _json_object(source: bytes) -> dict[str, Any]:
    if not source:
        return {}
    try:
        loaded = json.loads(source)
    except ValueError as error:
        raise TokenizerError(f"tokenizer_config.json cannot be read: {error}") from error
    return loaded if isinstance(loaded, dict) else {}
