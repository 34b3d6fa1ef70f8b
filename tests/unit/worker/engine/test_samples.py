"""One request or one key cannot teach the planner alone, and what is left out is spread evenly."""

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider_worker.engine.records import DraftOutcome
from outrider_worker.engine.samples import KEYS, MOST_PER_REQUEST, fair, most_per_key
from outrider_worker.engine.types import RequestKey


def outcome(request: str = "r", salt: bytes = b"", **changes: object) -> DraftOutcome:
    plain = DraftOutcome(
        drafter="x",
        request_class="greedy",
        context_tokens=10,
        asked_tokens=2,
        bins=(1, 1),
        verified=2,
        accepted=1,
        request=RequestKey("router", request),
        tenant_salt=salt,
    )
    return replace(plain, **changes)  # type: ignore[arg-type]


def band(each: DraftOutcome) -> int:
    return each.context_tokens // 1000


def test_a_request_gives_at_most_32_samples_of_a_cell_evenly_spread() -> None:
    outcomes = [outcome(accepted=place % 3, asked_tokens=place) for place in range(320)]
    kept = fair([*outcomes, *[outcome("other")] * 5], band)
    of_first = [each.asked_tokens for each in kept if each.request == RequestKey("router", "r")]
    assert of_first == list(range(0, 320, 10))
    assert len(kept) == MOST_PER_REQUEST + 5


def test_another_cell_and_another_choice_have_samples_of_their_own() -> None:
    near, far = [outcome()] * 50, [outcome(context_tokens=1500)] * 50
    other_choice = RequestKey("router", "r", choice_index=1)
    choice = [replace(outcome(), request=other_choice)] * 50
    assert len(fair([*near, *far, *choice], band)) == 3 * MOST_PER_REQUEST


def loads(*counts: int) -> list[DraftOutcome]:
    """Outcomes by key, each from requests of their own."""
    return [
        outcome(f"{key}-{place}", bytes([key]))
        for key, count in enumerate(counts)
        for place in range(count)
    ]


@pytest.mark.parametrize(
    ("counts", "kept"),
    [
        ((1000, 10, 10, 10), (10, 10, 10, 10)),
        ((1000, 30, 20, 20, 20), (30, 30, 20, 20, 20)),
        ((1000, 900, 20, 20, 20), (30, 30, 20, 20, 20)),
        ((20, 20, 20, 20), (20, 20, 20, 20)),
        ((1000, 10, 10), (1000, 10, 10)),
        ((100, 100, 100, 1), (100, 100, 100, 1)),
        ((50,), (50,)),
    ],
)
def test_a_key_is_at_most_a_quarter_of_a_class_with_four_active(
    counts: tuple[int, ...], kept: tuple[int, ...]
) -> None:
    """The fourth of three equal loads and one sample is not active, and silences nobody."""
    found = Counter(each.tenant_salt[0] for each in fair(loads(*counts), band))
    assert tuple(found[key] for key in range(len(counts))) == kept


@given(st.lists(st.integers(1, 500), min_size=1, max_size=12))
def test_the_cap_leaves_no_key_more_than_its_part(counts: list[int]) -> None:
    most = most_per_key(counts)
    if most is None:
        return
    capped = [min(count, most) for count in counts]
    assert len(counts) >= KEYS
    assert max(capped) * KEYS <= sum(capped) + KEYS * KEYS
    assert sum(capped) > 0


def test_classes_are_balanced_apart() -> None:
    sampled = [replace(each, request_class="sampled") for each in loads(40, 1)]
    found = Counter(each.request_class for each in fair([*loads(40, 8, 8, 8), *sampled], band))
    assert found == {"greedy": 32, "sampled": 41}
