"""What a drafter's state takes is what it says before it takes it: so it can be paid for."""

import pytest
from torch import Tensor

from outrider_worker.kv import PAGE_TOKENS, KvPool
from tests.support.neural_drafters import KINDS

SEATS, PAGES, K = 5, 7, 6


def _held_bytes(drafter: object) -> int:
    """Of its pool, and of what it keeps by seat; page numbers are not worth counting."""
    held = 0
    for value in vars(drafter).values():
        if isinstance(value, KvPool):
            held += sum(each.nbytes for each in (*value.keys, *value.values))
        elif isinstance(value, Tensor) and value.is_floating_point():
            held += value.nbytes
    return held


@pytest.mark.parametrize("kind", KINDS)
def test_a_drafter_takes_the_memory_that_it_announces(kind: str) -> None:
    drafter = KINDS[kind](K)
    size = drafter.state_size
    drafter.allocate(SEATS, PAGES)
    announced = size.token_bytes * PAGE_TOKENS * PAGES + size.seat_bytes * (SEATS + 1)
    assert _held_bytes(drafter) == announced > 0
