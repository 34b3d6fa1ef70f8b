"""`/v1/completions`: raw prompts in, their continuations out.

A prompt is text, tokens, or a list of either; each prompt gets `n` choices, in order. Who writes a
raw prompt writes its control tokens as well, so they are encoded as such.
"""

from typing import Any

from outrider_router.generation import Ending
from outrider_router.openai.dialect import Answer
from outrider_router.openai.schema import CompletionBody, parse
from outrider_router.text.model_text import ModelText


class CompletionReader:
    """Reads raw prompts."""

    endpoint = "completions"
    prompt_param = "prompt"

    def parse(self, value: Any) -> tuple[CompletionBody, list[str | list[int]]]:
        """The body and its prompts."""
        body = parse(CompletionBody, value)
        return body, body.prompt

    def characters(self, prompt: str | list[int]) -> int:
        """Size of the prompt's text; tokens have none."""
        return len(prompt) if isinstance(prompt, str) else 0

    def encode(self, text: ModelText, prompt: str | list[int]) -> list[int]:
        """Ids of the prompt; tokens are taken as they are."""
        return text.encode_prompt(prompt) if isinstance(prompt, str) else prompt


class CompletionWriter:
    """Writes continuations."""

    id_prefix = "cmpl-"
    object_names = ("text_completion", "text_completion")

    def opening(self, index: int) -> dict[str, Any] | None:
        """Nothing: a text has no role."""
        return None

    def delta(self, index: int, text: str) -> dict[str, Any]:
        """More text."""
        return _choice(index, text)

    def end(self, index: int, ending: Ending) -> dict[str, Any]:
        """No text and the reason."""
        return _choice(index, "", ending)

    def whole(self, answer: Answer) -> dict[str, Any]:
        """The whole continuation."""
        return _choice(answer.index, answer.text, answer.ending)


def _choice(index: int, text: str, ending: Ending | None = None) -> dict[str, Any]:
    return {
        "index": index,
        "text": text,
        "logprobs": None,
        "finish_reason": ending.reason if ending else None,
        "stop_reason": ending.stop_reason if ending else None,
    }
