"""Which numbers this machine computes with, and whether rows leave one another alone on it.

Knows: data types a device handles, and how to catch a forward whose bits depend on company.
Does not know: how to mend one. The start-up code decides what a failed probe means.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from outrider_worker.attention.base import Rows
from outrider_worker.kv import PAGE_TOKENS, KvPool
from outrider_worker.linear import has_prepacked_linear
from outrider_worker.model.base import CausalLM

_NAMES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}

_CONTEXT = PAGE_TOKENS + 6
"""Tokens of the probed text: one full block and a part of one."""

_ROW_COUNTS = (2, 3, 8, 17, 65)
"""Row counts that the probed row is computed among: below, at and across kernels' block sizes."""


def choose_dtype(device: torch.device, requested: str = "auto") -> torch.dtype:
    """The data type to run in: as requested, or what the device does best ("auto").

    CPUs run float32: few have bfloat16 instructions, and emulation is several times slower.
    Raises ValueError for an unknown name, or one that the device cannot run.
    """
    if requested == "auto":
        native = device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
        return torch.bfloat16 if native else torch.float32
    if requested not in _NAMES:
        raise ValueError(f"no data type {requested!r}; known: auto, {', '.join(_NAMES)}")
    dtype = _NAMES[requested]
    if device.type == "cpu" and dtype is not torch.float32:
        raise ValueError(f"{requested} is not served on CPUs, only float32")
    return dtype


@dataclass(frozen=True)
class InvarianceCheck:
    """One way of computing the probed row, compared bit for bit with computing it in its prompt."""

    name: str
    equal: bool
    largest_difference: float


@dataclass(frozen=True)
class InvarianceReport:
    """What the probe found."""

    prepacked_linear: bool
    """False: this build of torch lacks the row-invariant product, and plain ones are used."""
    checks: tuple[InvarianceCheck, ...]

    @property
    def ok(self) -> bool:
        """A row's logits were the same in all company."""
        return not self.failed

    @property
    def failed(self) -> tuple[InvarianceCheck, ...]:
        return tuple(check for check in self.checks if not check.equal)

    def summary(self) -> str:
        """One line for logs."""
        if self.ok:
            return f"batch invariant: {len(self.checks)} checks, bit for bit"
        faults = ", ".join(f"{c.name} (by {c.largest_difference:.1e})" for c in self.failed)
        hint = "" if self.prepacked_linear else "; oneDNN's prepacked product is missing"
        return f"not batch invariant: {faults}{hint}"


@torch.inference_mode()
def probe_batch_invariance(
    model: CausalLM,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
    row_counts: Sequence[int] = _ROW_COUNTS,
) -> InvarianceReport:
    """Compute the last row of one text in different company and compare its logits bit for bit.

    The reference is the row within its whole prompt. Against it: in a second prefill chunk, alone,
    among `row_counts` rows of other sequences, and on other pages. Takes as long as 300
    rows of prefill, with a small pool of its own.
    """
    probe = _Probe(model, dtype, torch.device(device), max(row_counts))
    reference = probe.in_prompt()
    checks = tuple(
        InvarianceCheck(name, torch.equal(row, reference), float((row - reference).abs().max()))
        for name, row in probe.variants(row_counts)
    )
    return InvarianceReport(has_prepacked_linear(), checks)


class _Probe:
    """One text in a pool: sequence 0 in order, sequence 1 for variants on scattered pages."""

    def __init__(
        self, model: CausalLM, dtype: torch.dtype, device: torch.device, most_rows: int
    ) -> None:
        self._model = model
        self._device = device
        generator = torch.Generator().manual_seed(0)
        vocabulary = model.config.vocab_size
        self._text = torch.randint(vocabulary, (_CONTEXT,), generator=generator).to(device)
        self._neighbours = torch.randint(vocabulary, (most_rows,), generator=generator).to(device)
        # Pages 1 and 2 hold the text, 4 and 3 hold it again, 5 and on one neighbour each.
        own = torch.tensor([[1, 2], [4, 3]], device=device)
        others = torch.arange(5, 5 + most_rows, device=device)[:, None]
        self._pages = torch.cat([own, others * torch.tensor([1, 0], device=device)])
        self._pool = KvPool.of_pages(model.config, 5 + most_rows, dtype, device)

    def in_prompt(self) -> Tensor:
        return self._last(self._text_rows(0, 0, _CONTEXT))

    def variants(self, row_counts: Sequence[int]) -> Iterator[tuple[str, Tensor]]:
        last = self._text_rows(0, _CONTEXT - 1, _CONTEXT)
        yield "alone", self._last(last)
        for count in row_counts:
            yield f"among {count} rows", self._last(self._among(last, count))
        self._last(self._text_rows(1, 0, _CONTEXT - 3))
        yield (
            "in a second chunk, on other pages",
            self._last(self._text_rows(1, _CONTEXT - 3, _CONTEXT)),
        )

    def _last(self, rows: Rows) -> Tensor:
        """Logits of the last row, computed together with those of all others."""
        return self._model.logits(self._model.forward(rows, self._pool))[-1]

    def _text_rows(self, sequence: int, start: int, end: int) -> Rows:
        positions = torch.arange(start, end, device=self._device)
        return self._rows(self._text[start:end], positions, torch.full_like(positions, sequence))

    def _among(self, last: Rows, count: int) -> Rows:
        """`last` behind `count` − 1 first tokens of other sequences."""
        others = torch.arange(count - 1, device=self._device)
        return self._rows(
            torch.cat([self._neighbours[: count - 1], last.token_ids]),
            torch.cat([torch.zeros_like(others), last.positions]),
            torch.cat([others + 2, last.sequence]),
        )

    def _rows(self, token_ids: Tensor, positions: Tensor, sequence: Tensor) -> Rows:
        page = self._pages[sequence, positions // PAGE_TOKENS]
        return Rows(
            token_ids=token_ids,
            positions=positions,
            slots=page * PAGE_TOKENS + positions % PAGE_TOKENS,
            sequence=sequence,
            lengths=positions + 1,
            page_table=self._pages,
        )
