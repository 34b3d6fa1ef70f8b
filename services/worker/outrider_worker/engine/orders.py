"""What the host decides about one step before it is launched. Pure values; the runner obeys them.

Nothing here is a token the device already has: a round is ordered by seats and lengths, so that it
can be launched before the one ahead of it has been read.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from outrider_worker.engine.plans import Plan, ScoreMap
from outrider_worker.engine.types import Request


@dataclass(frozen=True, slots=True)
class SeatPages:
    """The pages of a seat, as they must be known before its rows run."""

    seat: int
    pages: Sequence[int]


@dataclass(frozen=True, slots=True)
class PickScores:
    """How drafts on the device are ranked: a map for each class, and each request's class and
    weight. None stands for a class without a map."""

    version: int
    maps: tuple[ScoreMap | None, ...]
    class_row: tuple[int, ...]
    weight: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class RoundOrder:
    """One verify round over `seats`.

    drafts: the drafts to verify, all of them, where the host has read or made them. None: they are
        on the device, unread, and picked there.
    caps: drafts verified at most, by request (its reserved slots).
    verify_tokens: V, drafts verified in all at most.
    width: the longest any request's drafts can be.
    """

    seats: Sequence[SeatPages]
    drafts: Sequence[tuple[int, ...]] | None
    caps: Sequence[int]
    verify_tokens: int
    width: int
    scores: PickScores | None = None

    @property
    def rows(self) -> int:
        """Rows of the target forward: as many as there are, or can be."""
        return len(self.seats) + self.verify_tokens


@dataclass(frozen=True, slots=True)
class ChunkOrder:
    """`tokens` positions of a seat's known text from `start` on; the last emits if it completes."""

    seat: SeatPages
    start: int
    tokens: int
    completes: bool


@dataclass(frozen=True, slots=True)
class DraftOrder:
    """Drafts the device makes for the next round, at most asks[i] for seats[i]."""

    seats: Sequence[int]
    asks: Sequence[int]
    tokens: int


@dataclass(frozen=True, slots=True)
class StepOrder:
    """What follows a round's forward in the same step."""

    chunks: Sequence[ChunkOrder] = field(default_factory=tuple)
    drafts: DraftOrder | None = None


def pick_scores(requests: Sequence[Request], plan: Plan, drafter: str) -> PickScores:
    """The ranking that `plan` gives the drafts of `requests`."""
    rows: dict[str, int] = {}
    classes = [request.spec.request_class for request in requests]
    class_row = tuple(rows.setdefault(name, len(rows)) for name in classes)
    weights: Mapping[str, float] = plan.class_weights
    return PickScores(
        version=plan.version,
        maps=tuple(plan.score_maps.get((drafter, name)) for name in rows),
        class_row=class_row,
        weight=tuple(weights.get(name, 1.0) for name in classes),
    )
