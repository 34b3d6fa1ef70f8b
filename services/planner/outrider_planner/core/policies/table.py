"""``table``: a draft length by batch size, as other engines offer it.

Knows what was written in the configuration, and nothing of what was measured.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from outrider_planner.core.cost import CostModel, step_of
from outrider_planner.core.policies.base import Decision, Snapshot, draft_bound, fixed_decision
from outrider_planner.core.types import MAX_DRAFT_TOKENS, Objective, ProbeDirective, WorkerLimits

MOST_ENTRIES = 64
_FORM = f"needs n=K pairs with ascending n ≥ 1 and K of 0…{MAX_DRAFT_TOKENS}, like 1=7,8=3,32=0"


@dataclass(frozen=True, slots=True)
class TablePolicy:
    """Drafts K from this many requests on; below the first entry as the first one says.

    A plan holds steps of n, and an n between two steps is served by the larger one: thresholds
    act exactly at steps, and a little early between them.
    """

    requests: tuple[int, ...]
    draft_tokens: tuple[int, ...]

    @classmethod
    def parse(cls, text: str) -> TablePolicy:
        """From ``1=7,8=3,32=0``.

        Raises:
            ValueError: not of that form.
        """
        entries = [entry.partition("=") for entry in text.split(",")]
        numbers = [part.strip() for left, _, right in entries for part in (left, right)]
        if len(entries) > MOST_ENTRIES or not all(
            part.isdecimal() and len(part) <= 6 for part in numbers
        ):
            raise ValueError(_FORM)
        requests = tuple(map(int, numbers[::2]))
        lengths = tuple(map(int, numbers[1::2]))
        ascending = requests[0] >= 1 and all(a < b for a, b in pairwise(requests))
        if not ascending or max(lengths) > MAX_DRAFT_TOKENS:
            raise ValueError(_FORM)
        return cls(requests, lengths)

    @property
    def name(self) -> str:
        entries = zip(self.requests, self.draft_tokens, strict=True)
        return "table:" + ",".join(f"{n}={length}" for n, length in entries)

    def length(self, requests: int) -> int:
        """K at this n."""
        return self.draft_tokens[max(bisect_right(self.requests, requests) - 1, 0)]

    def decide(
        self, snapshot: Snapshot, cost: CostModel | None, limits: WorkerLimits, objective: Objective
    ) -> Decision:
        """Bounded by what each drafter and the worker can do."""
        lengths = [snapshot.bounds.capped(self.length(n)) for n in snapshot.ladder]
        drafters = tuple(
            fixed_decision(
                item.traits.name,
                snapshot.ladder,
                draft_bound(item.traits, limits),
                lengths,
                limits,
            )
            for item in snapshot.drafters
        )
        step = int(step_of(snapshot.ladder, np.array([max(snapshot.present_requests, 1)]))[0])
        now = max((int(item.draft_tokens[step]) for item in drafters), default=0)
        reason = f"{self.name}: {now} drafts at n={snapshot.ladder[step]}, by configuration"
        return Decision(drafters, ProbeDirective(), reason, snapshot.bounds.class_rules)
