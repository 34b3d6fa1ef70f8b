"""Whose outcomes count: one request or one key cannot teach the planner alone.

Knows caps on what leaves this worker in one report (planner.md, "Between planner and worker").
Does not know what is counted. What is left out is spread evenly, so the rest shows the same.
"""

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from statistics import median

from outrider_worker.engine.records import DraftOutcome

MOST_PER_REQUEST = 32
# With so many active keys, one of them is at most this part of its class.
KEYS = 4
# A key with far fewer samples than the others is not active: it must not silence them.
_ACTIVE_RATIO = 1 / 8


def fair(
    outcomes: Iterable[DraftOutcome], cell_of: Callable[[DraftOutcome], Hashable]
) -> list[DraftOutcome]:
    """At most 32 outcomes per request and cell, then at most a quarter of a class per key."""
    kept = [
        outcome
        for group in _groups(outcomes, lambda each: (cell_of(each), each.request))
        for outcome in _spread(group, MOST_PER_REQUEST)
    ]
    by_class = _groups(kept, lambda each: (each.drafter, each.request_class))
    return [outcome for group in by_class for outcome in _balanced(group)]


def most_per_key(counts: Iterable[int]) -> int | None:
    """The largest cap under which no key has more than a quarter of what is left.

    None with fewer than four active keys, and where no key has too much.
    """
    falling = sorted(counts, reverse=True)
    if not falling:
        return None
    active = sum(count >= _ACTIVE_RATIO * median(falling) for count in falling)
    if active < KEYS or falling[0] * KEYS <= sum(falling):
        return None
    # With the largest `cut` keys at the cap and the others whole: cap · KEYS = cut · cap + others.
    for cut in range(1, KEYS):
        cap = sum(falling[cut:]) // (KEYS - cut)
        if cap >= falling[cut]:
            break
    return max(cap, 1)


def _balanced(outcomes: Sequence[DraftOutcome]) -> list[DraftOutcome]:
    by_key = _groups(outcomes, lambda each: each.tenant_salt)
    most = most_per_key(len(group) for group in by_key)
    if most is None:
        return list(outcomes)
    return [outcome for group in by_key for outcome in _spread(group, most)]


def _groups(
    outcomes: Iterable[DraftOutcome], key: Callable[[DraftOutcome], Hashable]
) -> list[list[DraftOutcome]]:
    found: defaultdict[Hashable, list[DraftOutcome]] = defaultdict(list)
    for outcome in outcomes:
        found[key(outcome)].append(outcome)
    return list(found.values())


def _spread(outcomes: Sequence[DraftOutcome], most: int) -> Sequence[DraftOutcome]:
    """At most so many, evenly over all."""
    if len(outcomes) <= most:
        return outcomes
    return [outcomes[place * len(outcomes) // most] for place in range(most)]
