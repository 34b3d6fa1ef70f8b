"""What stands around the choices of an answer, whole or streamed, whichever the endpoint is.

Knows the objects that both endpoints share; a choice itself is the dialect's to write.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from outrider_router.generation import Delta, Ending
from outrider_router.openai.dialect import Answer, CallIds, Writer
from outrider_router.openai.logprobs import ChoiceLogprobs
from outrider_router.openai.rounds import rounds_json
from outrider_router.text.parts import Content, Part, Reasoning
from outrider_router.text.spelling import Spelling


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
