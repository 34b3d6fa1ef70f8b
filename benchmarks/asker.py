"""A client of the whole stack: streams greedy answers and notes when their tokens come.

Knows the API. Knows neither prompts nor what is compared.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from openai import AsyncOpenAI
from openai.types import CompletionUsage

Speculation = Mapping[str, bool | None]
PLANNED: Speculation = {"enabled": None}
OFF: Speculation = {"enabled": False}
"""What a request says of speculation: as the deployment plans it, or none."""


@dataclass(frozen=True)
class Answer:
    """One answer.

    first_s, last_s: when its first and its last text came, by the same clock for all answers.
    accepted_prediction, rejected_prediction: tokens, as usage counts them.
    """

    text: str
    tokens: int
    first_s: float
    last_s: float
    accepted_prediction: int = 0
    rejected_prediction: int = 0


def tokens_per_s(answers: Sequence[Answer]) -> float:
    """Decode speed summed over answers asked at once; first tokens are prefill's and left out."""
    first_s = min(answer.first_s for answer in answers)
    last_s = max(answer.last_s for answer in answers)
    return sum(answer.tokens - 1 for answer in answers) / (last_s - first_s)


class Asker:
    """Asks the only model of a stack for answers of a fixed length."""

    def __init__(self, client: AsyncOpenAI, model: str, tokens: int) -> None:
        self._client = client
        self._model = model
        self._tokens = tokens

    @classmethod
    async def of(cls, client: AsyncOpenAI, tokens: int) -> Asker:
        """For the model that the stack serves."""
        return cls(client, (await client.models.list()).data[0].id, tokens)

    async def ask_all(self, prompts: Sequence[str], speculation: Speculation) -> list[Answer]:
        """All at once."""
        return await asyncio.gather(*(self.ask(prompt, speculation) for prompt in prompts))

    async def ask(self, prompt: str, speculation: Speculation, prediction: str = "") -> Answer:
        """prediction: what the client says it expects, empty for nothing."""
        body: dict[str, Any] = {"ignore_eos": True, "speculation": dict(speculation)}
        if prediction:
            body["prediction"] = {"type": "content", "content": prediction}
        chunks = await self._client.chat.completions.create(
            model=self._model,
            messages=[{"role": "user", "content": prompt}],
            temperature=0,
            max_tokens=self._tokens,
            stream=True,
            stream_options={"include_usage": True},
            extra_body=body,
        )
        times, text, usage = [], "", None
        async for chunk in chunks:
            usage = chunk.usage or usage
            if chunk.choices and chunk.choices[0].delta.content:
                times.append(time.perf_counter())
                text += chunk.choices[0].delta.content
        assert usage is not None, "usage was asked for"
        return Answer(text, usage.completion_tokens, times[0], times[-1], *_prediction(usage))


def _prediction(usage: CompletionUsage) -> tuple[int, int]:
    details = usage.completion_tokens_details
    if details is None:
        return 0, 0
    return details.accepted_prediction_tokens or 0, details.rejected_prediction_tokens or 0
