"""`/v1/completions`: raw prompts in, their continuations out.

A prompt is text, tokens, or a list of either; each prompt gets `n` choices, in order. Who writes a
raw prompt writes its control tokens as well, so they are encoded as such.
"""

from typing import Any

from outrider_router.generation import Ending
from outrider_router.openai.caps import DEFAULT_CAPS, Caps
from outrider_router.openai.dialect import SHORT_CHARACTERS, Answer, CallIds, Encoded
from outrider_router.openai.errors import unsupported
from outrider_router.openai.logprobs import completion_logprobs
from outrider_router.openai.schema import CompletionBody, parse
from outrider_router.text.model_text import ModelText
from outrider_router.text.parts import Part, content_of
from outrider_router.text.pieces import TooManyTokens


class CompletionReader:
    """Reads raw prompts, in requests of a size that `caps` allows."""

    endpoint = "completions"
    prompt_param = "prompt"

    def __init__(self, caps: Caps = DEFAULT_CAPS) -> None:
        self._caps = caps

    def parse(self, value: Any) -> tuple[CompletionBody, list[str | list[int]]]:
        """The body and its prompts."""
        body = parse(CompletionBody, value, self._caps)
        if body.echo and body.logprobs is not None:
            # A prompt's own logprobs would be part of the answer.
            raise unsupported("echo", "together with logprobs is not supported")
        return body, body.prompt

    def characters(self, prompt: str | list[int]) -> int:
        """Size of the prompt's text; tokens have none."""
        return len(prompt) if isinstance(prompt, str) else 0

    def is_short(self, prompt: str | list[int]) -> bool:
        """Little text; tokens take no work, however many."""
        return not isinstance(prompt, str) or len(prompt) <= SHORT_CHARACTERS

    def encode(self, text: ModelText, prompt: str | list[int], most_tokens: int | None) -> Encoded:
        """Ids of the prompt; tokens are taken as they are."""
        if isinstance(prompt, str):
            return Encoded(text.encode_prompt(prompt, most_tokens=most_tokens), text=prompt)
        if most_tokens is not None and len(prompt) > most_tokens:
            raise TooManyTokens(len(prompt))
        return Encoded(prompt)


class CompletionWriter:
    """Writes continuations."""

    id_prefix = "cmpl-"
    object_names = ("text_completion", "text_completion")
    one_prompt = False
    logprobs = staticmethod(completion_logprobs)

    def opening(self, index: int) -> dict[str, Any] | None:
        """Nothing: a text has no role."""
        return None

    def delta(self, index: int, part: Part, _ids: CallIds) -> dict[str, Any]:
        """More text."""
        return _choice(index, content_of([part]))

    def end(self, index: int, ending: Ending) -> dict[str, Any]:
        """No text and the reason."""
        return _choice(index, "", ending)

    def whole(self, answer: Answer, _ids: CallIds) -> dict[str, Any]:
        """The whole continuation."""
        return _choice(answer.index, content_of(answer.parts), answer.ending)


def _choice(index: int, text: str, ending: Ending | None = None) -> dict[str, Any]:
    return {
        "index": index,
        "text": text,
        "logprobs": None,
        "finish_reason": ending.reason if ending else None,
        "stop_reason": ending.stop_reason if ending else None,
    }
