"""Rows, columns and a toy language for tests of the sampling chain."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from outrider_worker.engine.types import SamplingParams
from outrider_worker.sampling import (
    DrawColumns,
    SampledRows,
    SeatSampling,
    Stages,
    sample,
    stages_of,
)

END_IDS = frozenset({1})


def columns(rows: int, **values: Any) -> DrawColumns:
    """Equal rows but for `index`, which counts up; values or whole tensors replace the defaults."""

    def full(name: str, default: float, dtype: torch.dtype) -> Tensor:
        value = values.get(name, default)
        return value if isinstance(value, Tensor) else torch.full((rows,), value, dtype=dtype)

    return DrawColumns(
        temperature=full("temperature", 1.0, torch.float32),
        top_k=full("top_k", 0, torch.int64),
        top_p=full("top_p", 1.0, torch.float32),
        min_p=full("min_p", 0.0, torch.float32),
        seed=full("seed", 42, torch.int64),
        choice=full("choice", 0, torch.int64),
        index=values.get("index", torch.arange(rows)),
    )


@dataclass(frozen=True)
class Batch:
    """One row for each of some requests, request i in seat i."""

    rows: SampledRows
    table: SeatSampling
    stages: Stages

    def sample(self, logits: Tensor, mask: Tensor | None = None, **how: Any) -> list[int]:
        stages = self.stages if mask is None else self.stages | Stages.MASK
        tokens: list[int] = sample(logits, self.rows, self.table, stages, mask, **how).tolist()
        return tokens

    def take(self, rows: Sequence[int]) -> "Batch":
        return Batch(self.rows.take(torch.tensor(rows, dtype=torch.int64)), self.table, self.stages)


def batch(
    params: Sequence[SamplingParams],
    histories: Sequence[Sequence[int]] | None = None,
    prompt_tokens: Sequence[int] | None = None,
    longest: int = 48,
) -> Batch:
    """Requests at the ends of their histories; what lies behind these is no token at all."""
    count = len(params)
    histories = histories or [[0]] * count
    prompts = torch.tensor([*(prompt_tokens or [1] * count), 0])
    state = torch.full((count + 1, longest), -7)
    for seat, history in enumerate(histories):
        state[seat, : len(history)] = torch.tensor(history, dtype=torch.int64)
    known = torch.tensor([len(history) for history in histories])
    table, stages = SeatSampling(count), Stages.NONE
    for seat, each in enumerate(params):
        table.put(seat, each, 0, END_IDS)
        stages |= stages_of(each)
    rows = SampledRows(torch.arange(count), known, known - prompts[:count], state, prompts)
    return Batch(rows, table, stages)


class Toy:
    """A language of V tokens where the logits depend on the last token alone."""

    def __init__(self, logits: Tensor) -> None:
        self._logits = logits

    def generate(
        self,
        params: SamplingParams,
        drafts: Sequence[int] = (),
        depth: int = 0,
        prompt: Sequence[int] = (2, 3),
    ) -> list[int]:
        """A request's tokens up to its end, `depth` drafts a round, sampler match.

        drafts: what is drafted at each index of the output.
        """
        room = params.max_tokens + depth + 1
        state = torch.zeros(2, len(prompt) + room, dtype=torch.int64)
        state[0, : len(prompt)] = torch.tensor(prompt)
        prompt_tokens = torch.tensor([len(prompt), 0])
        table, output = SeatSampling(1), list[int]()
        table.put(0, params, 0, END_IDS)
        while len(output) < params.max_tokens:
            known = len(prompt) + len(output)
            draft = list(drafts[len(output) : len(output) + depth])
            state[0, known : known + len(draft)] = torch.tensor(draft, dtype=torch.int64)
            seen = known + torch.arange(len(draft) + 1)
            seat = torch.zeros_like(seen)
            rows = SampledRows(seat, seen, seen - len(prompt), state, prompt_tokens)
            logits = self._logits[state[0, seen - 1]]
            samples = sample(logits, rows, table, stages_of(params)).tolist()
            agreed = [a == b for a, b in zip(samples, draft, strict=False)] + [False]
            emitted = samples[: agreed.index(False) + 1]
            state[0, known : known + len(emitted)] = torch.tensor(emitted)
            for token in emitted:
                if token in END_IDS or len(output) == params.max_tokens:
                    return output
                output.append(token)
        return output
