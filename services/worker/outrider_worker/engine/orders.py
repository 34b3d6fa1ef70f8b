"""What the host decides about one step before it is launched. Pure values; the runner obeys them.

Nothing here is a token the device already has: a round is ordered by seats and lengths, so that it
can be launched before the one ahead of it has been read.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

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
    given: places in `seats` whose drafts the host made.
    """

    seats: Sequence[SeatPages]
    drafts: Sequence[tuple[int, ...]] | None
    caps: Sequence[int]
    verify_tokens: int
    width: int
    scores: PickScores | None = None
    given: Sequence[int] = ()

    @property
    def rows(self) -> int:
        """Rows of the target forward: as many as there are, or can be."""
        return len(self.seats) + self.verify_tokens


@dataclass(frozen=True, slots=True)
class ChunkOrder:
    """`tokens` positions of a seat's known text from `start` on; the last emits if it completes.

    feeds: a drafter with a state takes them in too.
    """

    seat: SeatPages
    start: int
    tokens: int
    completes: bool
    feeds: bool = False


@dataclass(frozen=True, slots=True)
class FeedOrder:
    """What is committed in `seats` and new to the drafter with a state: `rows` at most, in all."""

    seats: Sequence[SeatPages]
    rows: int


@dataclass(frozen=True, slots=True)
class DraftOrder:
    """Drafts a device drafter makes for the next round, at most asks[i] for seats[i]."""

    drafter: str
    seats: Sequence[SeatPages]
    asks: Sequence[int]
    tokens: int


@dataclass(frozen=True, slots=True)
class StepOrder:
    """What follows a round's forward in the same step, in this order."""

    chunks: Sequence[ChunkOrder] = ()
    feed: FeedOrder | None = None
    drafts: Sequence[DraftOrder] = ()

    @property
    def empty(self) -> bool:
        return not self.chunks and self.feed is None and not self.drafts

    @property
    def pages(self) -> list[SeatPages]:
        """Pages that must be known, each seat's once."""
        lines = [chunk.seat for chunk in self.chunks]
        lines += self.feed.seats if self.feed else []
        lines += [line for order in self.drafts for line in order.seats]
        return list({line.seat: line for line in lines}.values())


def pick_scores(requests: Sequence[Request], plan: Plan) -> PickScores:
    """The ranking that `plan` gives the drafts of `requests`, each drafter's by its own maps."""
    rows: dict[tuple[str, str], int] = {}
    classes = [(request.drafter, request.spec.request_class) for request in requests]
    class_row = tuple(rows.setdefault(key, len(rows)) for key in classes)
    weights: Mapping[str, float] = plan.class_weights
    return PickScores(
        version=plan.version,
        maps=tuple(plan.score_maps.get(key) for key in rows),
        class_row=class_row,
        weight=tuple(weights.get(name, 1.0) for _, name in classes),
    )
