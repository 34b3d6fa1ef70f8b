"""`/v1/chat/completions`: messages in, an assistant's message or its deltas out."""

from collections.abc import Mapping, Sequence
from typing import Any

from outrider_router.generation import Ending
from outrider_router.openai.caps import DEFAULT_CAPS, Caps
from outrider_router.openai.dialect import SHORT_CHARACTERS, Answer, CallIds, Encoded
from outrider_router.openai.errors import invalid
from outrider_router.openai.logprobs import chat_logprobs
from outrider_router.openai.messages import template_messages, template_variables
from outrider_router.openai.schema import ChatBody, parse
from outrider_router.openai.tools import tool_use_of
from outrider_router.text.model_text import ModelText, texts_in
from outrider_router.text.parts import CallArguments, CallBegun, Content, Part, Reasoning
from outrider_router.text.template import Conversation

_FEW_MESSAGES = 8


class ChatReader:
    """Reads conversations of a size that `caps` allows."""

    endpoint = "chat.completions"
    prompt_param = "messages"

    def __init__(self, caps: Caps = DEFAULT_CAPS) -> None:
        self._caps = caps

    def parse(self, value: Any) -> tuple[ChatBody, list[Conversation]]:
        """The body, and one prompt: what the model's template is given."""
        body = parse(ChatBody, value, self._caps)
        use = tool_use_of(body)
        return body, [conversation_of(body, use.rendered if use else None)]

    def characters(self, prompt: Conversation) -> int:
        """Size of the conversation's texts."""
        texts = texts_in([prompt.messages, prompt.tools, prompt.variables])
        return sum(map(len, texts))

    def is_short(self, prompt: Conversation) -> bool:
        """A few messages with little text, and nothing else for the template to walk through."""
        few = len(prompt.messages) <= _FEW_MESSAGES and not prompt.tools and not prompt.variables
        return few and self.characters(prompt) <= SHORT_CHARACTERS

    def encode(self, text: ModelText, prompt: Conversation, most_tokens: int | None) -> Encoded:
        """Ids of the conversation in the model's template."""
        chat = text.encode_chat(prompt, most_tokens)
        return Encoded(chat.ids, chat.thinking_open)


def conversation_of(body: ChatBody, tools: Sequence[Mapping[str, Any]] | None) -> Conversation:
    """What the template is given.

    Raises:
        ApiError: 400, naming the field.
    """
    if body.continue_final_message and body.add_generation_prompt:
        text = "add_generation_prompt and continue_final_message exclude each other"
        raise invalid(text, "continue_final_message")
    return Conversation(
        template_messages(body.messages),
        tools,
        template_variables(body.chat_template_kwargs, body.reasoning_effort),
        not body.continue_final_message and body.add_generation_prompt is not False,
        bool(body.continue_final_message),
    )


class ChatWriter:
    """Writes messages and deltas."""

    id_prefix = "chatcmpl-"
    object_names = ("chat.completion", "chat.completion.chunk")
    one_prompt = True
    logprobs = staticmethod(chat_logprobs)

    def opening(self, index: int) -> dict[str, Any] | None:
        """The role, once per choice."""
        return _chunk(index, {"role": "assistant", "content": ""})

    def delta(self, index: int, part: Part, ids: CallIds) -> dict[str, Any]:
        """More of the message."""
        match part:
            case Content(text):
                return _chunk(index, {"content": text})
            case Reasoning(text):
                return _chunk(index, {"reasoning_content": text})
            case CallBegun(call, name):
                function = {"name": name, "arguments": ""}
                head = {"index": call, "id": ids.of(index, call), "type": "function"}
                return _chunk(index, {"tool_calls": [head | {"function": function}]})
            case CallArguments(call, text):
                more = {"index": call, "function": {"arguments": text}}
                return _chunk(index, {"tool_calls": [more]})

    def end(self, index: int, ending: Ending) -> dict[str, Any]:
        """An empty delta with the reason."""
        return _chunk(index, {}, ending)

    def whole(self, answer: Answer, ids: CallIds) -> dict[str, Any]:
        """The whole message."""
        return {
            "index": answer.index,
            "message": _message(answer, ids),
            "logprobs": None,
            "finish_reason": answer.ending.reason,
            "stop_reason": answer.ending.stop_reason,
        }


def _message(answer: Answer, ids: CallIds) -> dict[str, Any]:
    content = "".join(part.text for part in answer.parts if isinstance(part, Content))
    thoughts = "".join(part.text for part in answer.parts if isinstance(part, Reasoning))
    arguments = _arguments(answer.parts)
    calls = [
        {
            "id": ids.of(answer.index, part.call),
            "type": "function",
            "function": {"name": part.name, "arguments": arguments.get(part.call, "")},
        }
        for part in answer.parts
        if isinstance(part, CallBegun)
    ]
    return {
        "role": "assistant",
        "content": content if content or not calls else None,
        "refusal": None,
        **({"reasoning_content": thoughts} if thoughts else {}),
        **({"tool_calls": calls} if calls else {}),
    }


def _arguments(parts: Sequence[Part]) -> Mapping[int, str]:
    """Of each call; an answer's parts are joined, so that each has all of them in one part."""
    return {part.call: part.text for part in parts if isinstance(part, CallArguments)}


def _chunk(index: int, delta: dict[str, Any], ending: Ending | None = None) -> dict[str, Any]:
    return {
        "index": index,
        "delta": delta,
        "logprobs": None,
        "finish_reason": ending.reason if ending else None,
        "stop_reason": ending.stop_reason if ending else None,
    }
