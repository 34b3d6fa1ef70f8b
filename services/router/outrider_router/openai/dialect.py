"""How an answer is written: what chat completions and completions share, and where they differ.

A dialect knows the shape of one choice; the frame around it is the same for both.
"""

import secrets
import string
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, TypeVar

from outrider_router.generation import Delta, Ending
from outrider_router.openai.logprobs import ChoiceLogprobs, TokenEntry
from outrider_router.openai.rounds import rounds_json
from outrider_router.openai.schema import GenerationBody
from outrider_router.text.model_text import ModelText
from outrider_router.text.parts import Content, Part, Reasoning
from outrider_router.text.spelling import Spelling
from outrider_router.types import Round, TokenLogprobs

SHORT_CHARACTERS = 1000
"""Up to so many, a prompt is encoded in less than half a millisecond."""

# What one endpoint calls a prompt: a conversation, or a string or token ids.
Prompt = TypeVar("Prompt")


@dataclass(frozen=True)
class Encoded:
    """A prompt as tokens, as raw text where it has one, and whether it ends within thinking."""

    ids: list[int]
    thinking_open: bool = False
    text: str = ""


@dataclass(frozen=True)
class Answer:
    """One choice's whole answer."""

    index: int
    parts: tuple[Part, ...]
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...]
    ending: Ending
    rounds: tuple[Round, ...] = ()


@dataclass(frozen=True)
class Usage:
    """Tokens of a request; prompts count once however many choices they have.

    Completion tokens are those delivered: rejected prediction tokens are none of them.
    """

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    reasoning_tokens: int
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
                "reasoning_tokens": self.reasoning_tokens,
                "accepted_prediction_tokens": self.accepted_prediction_tokens,
                "rejected_prediction_tokens": self.rejected_prediction_tokens,
            },
        }


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


@dataclass(frozen=True)
class Frame:
    """What stands around the choices of one answer.

    Attributes:
        prompt_ids: of each choice, where the client wants to see token ids.
        echo: text of each choice's prompt, where it shall stand before the answer.
        logprobs: one for each choice, where the client wants logprobs.
        spelling: of tokens, where the client wants to know how each came about.
        call_ids: ids of tool calls.
        named_call: the client named the tool, so a call is how the answer was meant to stop.
        with_reasoning: false leaves the model's thinking out.
    """

    writer: Writer
    answer_id: str
    created_s: int
    model: str
    fingerprint: str
    service_tier: str | None
    with_usage: bool
    prompt_ids: Sequence[Sequence[int]] = ()
    echo: Sequence[str] = ()
    logprobs: Sequence[ChoiceLogprobs] = ()
    spelling: Spelling | None = None
    call_ids: CallIds = field(default_factory=CallIds)
    named_call: bool = False
    with_reasoning: bool = True

    @property
    def tells_tokens(self) -> bool:
        """Chunks say something about the tokens in them, beside the text that these make."""
        return bool(self.prompt_ids or self.logprobs or self.spelling)

    def opening(self, index: int) -> dict[str, Any] | None:
        """A chunk that begins a choice's stream, if there is one."""
        choice = self.writer.opening(index)
        if choice is None and (self.echo or self.prompt_ids):
            choice = self.writer.delta(index, Content(self._echo(index)), self.call_ids)
        if choice is None:
            return None
        return self.chunk([self._with_prompt_ids(choice, index)]) | self._shared_prompt_ids()

    def chunk(
        self, choices: list[dict[str, Any]], ending: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        """A chunk; where usage is asked for, all but the last carry null."""
        extra = {"usage": None} if self.with_usage else {}
        return self._outer(self.writer.object_names[1]) | {"choices": choices} | (ending or extra)

    def body(self, choices: list[dict[str, Any]], ending: dict[str, Any]) -> dict[str, Any]:
        """A complete answer; `ending` is what follows its choices."""
        outer = self._outer(self.writer.object_names[0]) | self._shared_prompt_ids()
        return outer | {"choices": choices} | ending

    def delta(self, delta: Delta) -> list[dict[str, Any]]:
        """The choices of the chunks that one delta becomes: its parts, then its ending.

        Logprobs, token ids and rounds go with the first part.
        """
        parts = self._shown(delta.parts)
        if not parts and delta.token_ids and self.tells_tokens:
            parts = (Content(""),)
        choices = [self.writer.delta(delta.place, part, self.call_ids) for part in parts]
        if choices:
            choices[0] = self._with_tokens(choices[0], delta.place, delta)
        if delta.ending:
            choices.append(self.writer.end(delta.place, self._ending(delta.ending)))
        return choices

    def whole(self, answer: Answer) -> dict[str, Any]:
        """The choice object of a complete answer."""
        echo = (Content(self._echo(answer.index)),) if self.echo else ()
        parts = (*echo, *self._shown(answer.parts))
        shown = replace(answer, parts=parts, ending=self._ending(answer.ending))
        choice = self._with_tokens(self.writer.whole(shown, self.call_ids), answer.index, answer)
        return self._with_prompt_ids(choice, answer.index)

    def _shown(self, parts: tuple[Part, ...]) -> tuple[Part, ...]:
        if self.with_reasoning:
            return parts
        return tuple(part for part in parts if not isinstance(part, Reasoning))

    def _ending(self, ending: Ending) -> Ending:
        named = self.named_call and ending.reason == "tool_calls"
        return replace(ending, reason="stop") if named else ending

    def _echo(self, index: int) -> str:
        return self.echo[index] if self.echo else ""

    def _with_tokens(
        self, choice: dict[str, Any], index: int, source: Delta | Answer
    ) -> dict[str, Any]:
        if self.logprobs and source.token_ids:
            spelled = self.logprobs[index].entries(source.token_ids, source.logprobs)
            choice = choice | {"logprobs": self.writer.logprobs(spelled)}
        if self.spelling and source.token_ids:
            told = rounds_json(source.token_ids, source.rounds, self.spelling)
            choice = choice | {"speculation_rounds": told}
        return choice | ({"token_ids": list(source.token_ids)} if self.prompt_ids else {})

    def _with_prompt_ids(self, choice: dict[str, Any], index: int) -> dict[str, Any]:
        if not self.prompt_ids or self.writer.one_prompt:
            return choice
        return choice | {"prompt_token_ids": list(self.prompt_ids[index])}

    def _shared_prompt_ids(self) -> dict[str, Any]:
        shared = self.prompt_ids and self.writer.one_prompt
        return {"prompt_token_ids": list(self.prompt_ids[0])} if shared else {}

    def _outer(self, object_name: str) -> dict[str, Any]:
        outer: dict[str, Any] = {
            "id": self.answer_id,
            "object": object_name,
            "created": self.created_s,
            "model": self.model,
            "system_fingerprint": self.fingerprint,
        }
        return outer | ({"service_tier": self.service_tier} if self.service_tier else {})
