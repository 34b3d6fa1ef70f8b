"""Everything that turns one model's requests into token ids: tokenizer, template and limits."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from outrider_router.text.continuation import up_to_mark, with_end_marked
from outrider_router.text.control import ContentMask
from outrider_router.text.reasoning import opens_thinking, thinking_markers_of
from outrider_router.text.template import (
    ChatTemplate,
    Conversation,
    TemplateError,
    with_parsed_arguments,
)
from outrider_router.text.tokenizer import ModelTokenizer, TokenizerError
from outrider_router.text.tool_formats import tool_format_of


@dataclass(frozen=True)
class TextAssets:
    """A model's text files as a worker sends them; empty where the model has none."""

    tokenizer: bytes
    tokenizer_config: bytes
    chat_template: str


@dataclass(frozen=True)
class EncodedChat:
    """A conversation's tokens, and whether they end within the model's thinking."""

    ids: list[int]
    thinking_open: bool = False


class ModelText:
    """One model's text side. Safe to use from several threads.

    Attributes:
        thinking: the markers of the model's thinking, None if its template knows none.
        tool_format: how the model calls tools, None if its template teaches no format known here.

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
        template = self._template.source if self._template else ""
        self.thinking = thinking_markers_of(template)
        self.tool_format = tool_format_of(template)

    def encode_chat(self, chat: Conversation, most_tokens: int | None = None) -> EncodedChat:
        """Ids of a conversation; only the template sets control tokens.

        Raises:
            TemplateError: the model has no chat template, or it refuses the messages.
            MaskError: the messages use up the private-use letters.
            TooManyTokens: more than `most_tokens`.
        """
        if self._template is None:
            raise TemplateError("this model has no chat template; use /v1/completions")
        chat = self._with_arguments(chat)
        if self._library_behaviour:
            text = _rendered(self._template, chat)
            ids = self.tokenizer.encode(text, False, most_tokens)
            return EncodedChat(ids, opens_thinking(text, self.thinking))
        control = self.tokenizer.control
        mask = ContentMask(control, _texts_of(self._template, chat))
        masked = _rendered(self._template, _masked(chat, mask))
        text, spans = mask.unmask(masked), control.find(masked)
        ids = self.tokenizer.encode_with_spans(text, spans, most_tokens)
        return EncodedChat(ids, opens_thinking(masked, self.thinking))

    def _with_arguments(self, chat: Conversation) -> Conversation:
        """Earlier calls with their arguments as objects, unless this template wants their text."""
        if self.tool_format is not None and self.tool_format.arguments_as_text:
            return chat
        return replace(chat, messages=[with_parsed_arguments(m) for m in chat.messages])

    def encode_prompt(
        self, prompt: str, add_special_tokens: bool = True, most_tokens: int | None = None
    ) -> list[int]:
        """Ids of a raw prompt as the library gives them: its writer is the template.

        Raises:
            TooManyTokens: more than `most_tokens`.
        """
        return self.tokenizer.encode(prompt, add_special_tokens, most_tokens)

    def encode_answer(self, text: str, most_tokens: int | None = None) -> list[int]:
        """Ids of a text as the model would answer it.

        Raises:
            TooManyTokens: more than `most_tokens`.
        """
        return self.tokenizer.encode_continuation(text, most_tokens)

    def least_tokens(self, characters: int) -> int:
        """Tokens that a text of this size has at least, as far as its size alone tells."""
        most = self.tokenizer.most_chars_per_token
        return 0 if most is None else characters // most


def texts_in(value: Any) -> list[str]:
    """All strings inside of nested lists and objects, keys included."""
    if isinstance(value, str):
        return [value]
    if isinstance(value, Mapping):
        return [*value, *(text for item in value.values() for text in texts_in(item))]
    if isinstance(value, list | tuple):
        return [text for item in value for text in texts_in(item)]
    return []


def _texts_of(template: ChatTemplate, chat: Conversation) -> list[str]:
    """Every text that may come together in the prompt."""
    return [template.source, *texts_in([chat.messages, chat.tools, chat.variables])]


def _rendered(template: ChatTemplate, chat: Conversation) -> str:
    """The prompt, up to where the model goes on."""
    if not chat.continue_final_message:
        return template.render(chat)
    marked, mark = with_end_marked(chat, _texts_of(template, chat))
    return up_to_mark(template.render(marked), mark)


def _masked(chat: Conversation, mask: ContentMask) -> Conversation:
    """The conversation as the template gets it: nothing a client wrote can form a control token."""
    return replace(
        chat,
        messages=mask.mask_messages(chat.messages),
        tools=mask.mask_value(chat.tools),
        variables=mask.mask_value(chat.variables),
    )


def _json_object(source: bytes) -> dict[str, Any]:
    if not source:
        return {}
    try:
        loaded = json.loads(source)
    except ValueError as error:
        raise TokenizerError(f"tokenizer_config.json cannot be read: {error}") from error
    return loaded if isinstance(loaded, dict) else {}
