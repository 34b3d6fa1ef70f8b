"""Where chat completions and completions differ: how requests are read and choices written.

A dialect knows the shape of one choice; the frame around it, in `openai.frame`, is the same for
both.
"""

import secrets
import string
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from outrider_router.generation import Ending
from outrider_router.openai.logprobs import TokenEntry
from outrider_router.openai.schema import GenerationBody
from outrider_router.text.model_text import ModelText
from outrider_router.text.parts import Part
from outrider_router.types import Round, TokenLogprobs

SHORT_CHARACTERS = 1000
"""Up to so many, a prompt is encoded in less than half a millisecond."""

# What one endpoint calls a prompt: a conversation, or a string or token ids.
Prompt = TypeVar("Prompt")


@dataclass(frozen=True)
class Encoded:
    """A prompt as tokens, as the raw text that it is where it is one, and whether it ends within
    thinking.
    """

    ids: list[int]
    thinking_open: bool = False
    text: str | None = None


@dataclass(frozen=True)
class Answer:
    """One choice's whole answer."""

    index: int
    parts: tuple[Part, ...]
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...]
    ending: Ending
    rounds: tuple[Round, ...] = ()


class CallIds:
    """Ids of one answer's tool calls, made when they are first asked for.

    Args:
        characters: their length, where the model's template insists on one.
    """

    def __init__(self, characters: int | None = None) -> None:
        self._characters = characters
        self._known: dict[tuple[int, int], str] = {}

    def of(self, choice: int, call: int) -> str:
        """The id of one call of one choice."""
        place = (choice, call)
        if place not in self._known:
            self._known[place] = self._new()
        return self._known[place]

    def _new(self) -> str:
        if self._characters is None:
            return "call_" + secrets.token_hex(12)
        letters = string.ascii_letters + string.digits
        return "".join(secrets.choice(letters) for _ in range(self._characters))


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

    def is_short(self, prompt: Prompt) -> bool:
        """Encoding it takes less time than handing it to a thread would."""
        ...

    def encode(self, text: ModelText, prompt: Prompt, most_tokens: int | None) -> Encoded:
        """One prompt as tokens; runs in a thread unless the prompt is short.

        Raises:
            TooManyTokens: more than `most_tokens`.
        """
        ...


class Writer(Protocol):
    """One endpoint's way of writing choices.

    Attributes:
        id_prefix: begins the ids of answers.
        object_names: `object` of a whole answer and of a chunk.
        one_prompt: all choices have the same prompt.
    """

    id_prefix: str
    object_names: tuple[str, str]
    one_prompt: bool

    def opening(self, index: int) -> dict[str, Any] | None:
        """The choice object that begins a stream, if there is one."""
        ...

    def delta(self, index: int, part: Part, ids: CallIds) -> dict[str, Any]:
        """The choice object of a chunk with more of the answer."""
        ...

    def end(self, index: int, ending: Ending) -> dict[str, Any]:
        """The choice object of a chunk that ends a choice; it carries no text."""
        ...

    def whole(self, answer: Answer, ids: CallIds) -> dict[str, Any]:
        """The choice object of a complete answer."""
        ...

    def logprobs(self, entries: Sequence[TokenEntry]) -> dict[str, Any]:
        """The `logprobs` object of some tokens."""
        ...
