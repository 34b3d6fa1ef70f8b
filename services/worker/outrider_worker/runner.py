"""Runs forwards: makes tensors of row tables, launches them, hands results back.

The only place between the engine's lists and the model's tensors, and the only one that copies
results to the host. A launch returns at once with a handle; on a CPU without an asynchronous
device the work is done by then, and `read` only hands it over. Measures the device's time.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

import torch
from torch import Tensor

from outrider_worker.attention.base import Rows
from outrider_worker.engine.tables import ForwardTable, RoundTable, SampleRow
from outrider_worker.engine.types import NULL_PAGE
from outrider_worker.kv import KvPool
from outrider_worker.model.base import CausalLM
from outrider_worker.sampling import SamplingTable, sample
from outrider_worker.speculate.verify import Verifier

ResultT = TypeVar("ResultT")


@dataclass(frozen=True, slots=True)
class RoundResult:
    """By request, in the table's order: accepted drafts, and accepted + 1 emitted tokens."""

    accepted: list[int]
    emitted: list[list[int]]
    target_s: float


@dataclass(frozen=True, slots=True)
class PrefillResult:
    """Tokens of the wanted rows, in the table's order."""

    token_ids: list[int]
    target_s: float


class Launched(Generic[ResultT]):
    """A forward in flight. `read` waits for it and copies its result to the host, once."""

    def __init__(self, read: Callable[[], ResultT]) -> None:
        self._read = read

    def read(self) -> ResultT:
        return self._read()


class Runner:
    """One model with its pool on one device."""

    def __init__(self, model: CausalLM, pool: KvPool, verifier: Verifier) -> None:
        self._model = model
        self._pool = pool
        self._verifier = verifier

    def launch_round(self, table: RoundTable) -> Launched[RoundResult]:
        """Verify forward: every row's token is sampled, drafts are judged against them."""
        started_s = time.perf_counter()
        with torch.inference_mode():
            samples = self._forward(table.forward)
            accepted, emitted = self._judge(table, samples)
            result = RoundResult(accepted, emitted, time.perf_counter() - started_s)
        return Launched(lambda: result)

    def launch_prefill(self, table: ForwardTable) -> Launched[PrefillResult]:
        """Prefill forward: writes K/V, samples only where a request's last known token is."""
        started_s = time.perf_counter()
        with torch.inference_mode():
            token_ids = self._forward(table).tolist()
            result = PrefillResult(token_ids, time.perf_counter() - started_s)
        return Launched(lambda: result)

    def _forward(self, table: ForwardTable) -> Tensor:
        """[wanted rows] int64, the target's own token at each."""
        hidden = self._model.forward(_rows(table), self._pool)
        if not table.samples:
            return torch.empty(0, dtype=torch.int64)
        if len(table.samples) < table.rows:
            hidden = hidden[torch.tensor([wanted.row for wanted in table.samples])]
        return sample(self._model.logits(hidden), _sampling_table(table.samples))

    def _judge(self, table: RoundTable, samples: Tensor) -> tuple[list[int], list[list[int]]]:
        """Lay flat samples out as [n, K+1], judge, and cut each row to what it emits."""
        lengths = [len(draft) for draft in table.drafts]
        width = max(lengths)
        requests = len(lengths)
        sequence = torch.tensor(table.forward.sequence)
        place = torch.cat([torch.arange(length + 1) for length in lengths])
        padded = torch.zeros(requests, width + 1, dtype=torch.int64)
        padded[sequence, place] = samples
        drafts = torch.tensor(
            [[*draft, *[0] * (width - len(draft))] for draft in table.drafts], dtype=torch.int64
        ).view(requests, width)
        verdict = self._verifier.verify(padded, drafts, torch.tensor(lengths))
        accepted: list[int] = verdict.accepted.tolist()
        emitted: list[list[int]] = verdict.emitted.tolist()
        return accepted, [row[: count + 1] for row, count in zip(emitted, accepted, strict=True)]


def _rows(table: ForwardTable) -> Rows:
    positions = torch.tensor(table.positions)
    longest = max(len(pages) for pages in table.pages)
    page_table = [[*pages, *[NULL_PAGE] * (longest - len(pages))] for pages in table.pages]
    return Rows(
        token_ids=torch.tensor(table.token_ids),
        positions=positions,
        slots=torch.tensor(table.slots),
        sequence=torch.tensor(table.sequence),
        lengths=positions + 1,
        page_table=torch.tensor(page_table),
    )


def _sampling_table(samples: list[SampleRow]) -> SamplingTable:
    params = [wanted.params for wanted in samples]
    return SamplingTable(
        temperature=torch.tensor([p.temperature for p in params], dtype=torch.float32),
        top_k=torch.tensor([p.top_k for p in params]),
        top_p=torch.tensor([p.top_p for p in params], dtype=torch.float32),
        seed=torch.tensor([_signed(p.seed) for p in params]),
        choice=torch.tensor([wanted.choice_index for wanted in samples]),
        index=torch.tensor([wanted.index for wanted in samples]),
    )


def _signed(seed: int) -> int:
    """The 64 bits of a seed as torch's int64 holds them."""
    return seed - (1 << 64) if seed >= 1 << 63 else seed
