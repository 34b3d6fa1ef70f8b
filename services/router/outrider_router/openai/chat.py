"""`/v1/chat/completions`: messages in, an assistant's message or its deltas out."""

from collections.abc import Mapping, Sequence
from typing import Any

from outrider_router.generation import Ending
from outrider_router.openai.dialect import Answer
from outrider_router.openai.messages import template_messages
from outrider_router.openai.schema import ChatBody, parse
from outrider_router.text.model_text import ModelText, texts_in


class ChatReader:
    """Reads conversations."""

    endpoint = "chat.completions"
    prompt_param = "messages"

    def parse(self, value: Any) -> tuple[ChatBody, list[list[dict[str, Any]]]]:
        """The body, and one prompt: its messages as templates expect them."""
        body = parse(ChatBody, value)
        return body, [template_messages(body.messages)]

    def characters(self, prompt: Sequence[Mapping[str, Any]]) -> int:
        """Size of the conversation's texts."""
        return sum(map(len, texts_in(prompt)))

    def encode(self, text: ModelText, prompt: Sequence[Mapping[str, Any]]) -> list[int]:
        """Ids of the conversation in the model's template."""
        return text.encode_chat(prompt)


class ChatWriter:
    """Writes messages and deltas."""

    id_prefix = "chatcmpl-"
    object_names = ("chat.completion", "chat.completion.chunk")

    def opening(self, index: int) -> dict[str, Any] | None:
        """The role, once per choice."""
        return _chunk(index, {"role": "assistant", "content": ""})

    def delta(self, index: int, text: str) -> dict[str, Any]:
        """More content."""
        return _chunk(index, {"content": text})

    def end(self, index: int, ending: Ending) -> dict[str, Any]:
        """An empty delta with the reason."""
        return _chunk(index, {}, ending)

    def whole(self, answer: Answer) -> dict[str, Any]:
        """The whole message."""
        return {
            "index": answer.index,
            "message": {"role": "assistant", "content": answer.text, "refusal": None},
            "logprobs": None,
            "finish_reason": answer.ending.reason,
            "stop_reason": answer.ending.stop_reason,
        }


def _chunk(index: int, delta: dict[str, Any], ending: Ending | None = None) -> dict[str, Any]:
    return {
        "index": index,
        "delta": delta,
        "logprobs": None,
        "finish_reason": ending.reason if ending else None,
        "stop_reason": ending.stop_reason if ending else None,
    }
