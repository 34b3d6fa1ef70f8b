"""How an answer is written: what chat completions and completions share, and where they differ.

A dialect knows the shape of one choice; the frame around it is the same for both.
"""

from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from outrider_router.generation import Delta, Ending
from outrider_router.openai.schema import GenerationBody
from outrider_router.text.model_text import ModelText

# What one endpoint calls a prompt: messages, or a string or token ids.
Prompt = TypeVar("Prompt")


@dataclass(frozen=True)
class Answer:
    """One choice's whole answer."""

    index: int
    text: str
    token_ids: tuple[int, ...]
    ending: Ending


@dataclass(frozen=True)
class Usage:
    """Tokens of a request; prompts count once however many choices they have.

    Completion tokens are those delivered: rejected prediction tokens are none of them.
    """

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    accepted_prediction_tokens: int
    rejected_prediction_tokens: int

    def as_json(self) -> dict[str, Any]:
        """The `usage` object."""
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
            "prompt_tokens_details": {"cached_tokens": self.cached_tokens},
            "completion_tokens_details": {
                "reasoning_tokens": 0,
                "accepted_prediction_tokens": self.accepted_prediction_tokens,
                "rejected_prediction_tokens": self.rejected_prediction_tokens,
            },
        }


class Reader(Protocol[Prompt]):
    """One endpoint's way with requests.

    Attributes:
        endpoint: name for logs.
        prompt_param: field that holds the prompt, for errors.
    """

    endpoint: str
    prompt_param: str

    def parse(self, value: Any) -> tuple[GenerationBody, list[Prompt]]:
        """The checked body and its prompts, not yet tokens.

        Raises:
            ApiError: 400.
        """
        ...

    def characters(self, prompt: Prompt) -> int:
        """Size of one prompt's text."""
        ...

    def encode(self, text: ModelText, prompt: Prompt) -> list[int]:
        """Token ids of one prompt; runs in a thread."""
        ...


class Writer(Protocol):
    """One endpoint's way of writing choices.

    Attributes:
        id_prefix: begins the ids of answers.
        object_names: `object` of a whole answer and of a chunk.
    """

    id_prefix: str
    object_names: tuple[str, str]

    def opening(self, index: int) -> dict[str, Any] | None:
        """The choice object that begins a stream, if there is one."""
        ...

    def delta(self, index: int, text: str) -> dict[str, Any]:
        """The choice object of a chunk of text."""
        ...

    def end(self, index: int, ending: Ending) -> dict[str, Any]:
        """The choice object of a chunk that ends a choice; it carries no text."""
        ...

    def whole(self, answer: Answer) -> dict[str, Any]:
        """The choice object of a complete answer."""
        ...


@dataclass(frozen=True)
class Frame:
    """What stands around the choices of one answer."""

    writer: Writer
    answer_id: str
    created_s: int
    model: str
    fingerprint: str
    service_tier: str | None
    with_usage: bool
    with_token_ids: bool

    def chunk(self, choices: list[dict[str, Any]], usage: Usage | None = None) -> dict[str, Any]:
        """A chunk; where usage is asked for, all but the last carry null."""
        extra = {"usage": usage.as_json() if usage else None} if self.with_usage else {}
        return self._outer(self.writer.object_names[1]) | {"choices": choices} | extra

    def body(self, choices: list[dict[str, Any]], usage: Usage) -> dict[str, Any]:
        """A complete answer."""
        outer = self._outer(self.writer.object_names[0])
        return outer | {"choices": choices, "usage": usage.as_json()}

    def delta(self, delta: Delta) -> list[dict[str, Any]]:
        """The choices of the chunks that one delta becomes: its text, then its ending."""
        choices = []
        if delta.text or (self.with_token_ids and delta.token_ids):
            choices.append(self._with_ids(self.writer.delta(delta.index, delta.text), delta))
        if delta.ending:
            choices.append(self.writer.end(delta.index, delta.ending))
        return choices

    def whole(self, answer: Answer) -> dict[str, Any]:
        """The choice object of a complete answer."""
        return self._with_ids(self.writer.whole(answer), answer)

    def _with_ids(self, choice: dict[str, Any], source: Delta | Answer) -> dict[str, Any]:
        return choice | ({"token_ids": list(source.token_ids)} if self.with_token_ids else {})

    def _outer(self, object_name: str) -> dict[str, Any]:
        outer: dict[str, Any] = {
            "id": self.answer_id,
            "object": object_name,
            "created": self.created_s,
            "model": self.model,
            "system_fingerprint": self.fingerprint,
        }
        return outer | ({"service_tier": self.service_tier} if self.service_tier else {})
