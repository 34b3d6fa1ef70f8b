"""Row tables for tests: which positions of which sequences run together, on which pages."""

from collections.abc import Mapping, Sequence

import torch

from outrider_worker.attention.base import Rows
from outrider_worker.engine.types import NULL_PAGE
from outrider_worker.kv import PAGE_TOKENS

Span = tuple[int, range]
"""A sequence and the positions of it that run."""


def rows_of(
    texts: Sequence[Sequence[int]], pages: Sequence[Sequence[int]], spans: Sequence[Span]
) -> Rows:
    """One row per position of every span; texts and pages are per sequence."""
    sequence = [which for which, positions in spans for _ in positions]
    position = [at for _, positions in spans for at in positions]
    longest = max(len(own) for own in pages)
    table = [[*own, *[NULL_PAGE] * (longest - len(own))] for own in pages]
    slots = [
        pages[which][at // PAGE_TOKENS] * PAGE_TOKENS + at % PAGE_TOKENS
        for which, at in zip(sequence, position, strict=True)
    ]
    positions = torch.tensor(position)
    return Rows(
        token_ids=torch.tensor([texts[w][at] for w, at in zip(sequence, position, strict=True)]),
        positions=positions,
        slots=torch.tensor(slots),
        sequence=torch.tensor(sequence),
        lengths=positions + 1,
        page_table=torch.tensor(table),
    )


def random_text(length: int, seed: int = 0, vocabulary: int = 259) -> list[int]:
    """Token ids that are no special tokens."""
    generator = torch.Generator().manual_seed(seed)
    ids: list[int] = torch.randint(3, vocabulary, (length,), generator=generator).tolist()
    return ids


def without(rows: Rows, **changes: torch.Tensor) -> Rows:
    """`rows` with some columns replaced."""
    columns: Mapping[str, torch.Tensor] = {
        name: getattr(rows, name)
        for name in ("token_ids", "positions", "slots", "sequence", "lengths", "page_table")
    }
    return Rows(**{**columns, **changes})
