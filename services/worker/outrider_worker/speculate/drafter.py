"""The drafter seam: what every way of guessing the next tokens has to offer.

Knows the protocol, the traits and the registry of names; knows no drafter's insides.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from importlib import import_module
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Protocol

from outrider_worker.engine.types import Draft, RequestKey

if TYPE_CHECKING:
    from torch import Tensor


class DrafterCost(Enum):
    """How a drafter's time is spent."""

    HOST = "host"
    AUTOREGRESSIVE = "autoregressive"
    PARALLEL = "parallel"


@dataclass(frozen=True, slots=True)
class DrafterTraits:
    """A drafter's abilities, declared once.

    sparse: often proposes fewer drafts than asked for. score_bins: bins in use, 1 without scores.
    writes_kv: writes K/V of its own into the pages.
    """

    name: str
    cost: DrafterCost
    max_draft_tokens: int
    needs_hidden: bool = False
    sparse: bool = False
    score_bins: int = 1
    writes_kv: bool = False


@dataclass(frozen=True, slots=True)
class Ask:
    """A request that wants at most `tokens` drafts."""

    key: RequestKey
    tokens: int


class Drafter(Protocol):
    """Proposes tokens; the target decides. A drafter can only change speed, never text.

    `features` are the target's hidden states of the tokens handed over, [tokens, width], for
    drafters whose traits need them; None for the others.
    """

    @property
    def traits(self) -> DrafterTraits: ...

    def prefill(
        self, key: RequestKey, token_ids: Sequence[int], features: "Tensor | None" = None
    ) -> None:
        """Start (or go on with the next chunk of) a request's committed history."""
        ...

    def propose(self, asks: Sequence[Ask]) -> list[Draft]:
        """One draft for each ask, in order, no longer than asked; empty ones are allowed."""
        ...

    def observe(
        self, key: RequestKey, token_ids: Sequence[int], features: "Tensor | None" = None
    ) -> None:
        """Append what a round really committed."""
        ...

    def release(self, key: RequestKey) -> None:
        """Forget a request; a key that is unknown is no error."""
        ...


DrafterFactory = Callable[[int], Drafter]
"""Builds a drafter from the deployment's longest draft length, in tokens."""

_BUILT_IN: Mapping[str, str] = {
    "ngram": "outrider_worker.speculate.ngram:NgramDrafter",
}
NO_DRAFTER = "none"


class UnknownDrafter(ValueError):
    """The name is neither built in nor announced by an installed package."""


def known_drafters() -> list[str]:
    """Names that `load_drafter` takes."""
    outside = {point.name for point in entry_points(group="outrider.drafters")}
    return sorted({NO_DRAFTER, *_BUILT_IN, *outside})


def load_drafter(name: str, max_draft_tokens: int) -> Drafter | None:
    """The drafter of that name, imported only now; None for "none".

    Raises:
        UnknownDrafter: with the names that are known.
    """
    if name == NO_DRAFTER:
        return None
    if name in _BUILT_IN:
        module, attribute = _BUILT_IN[name].split(":")
        factory: DrafterFactory = getattr(import_module(module), attribute)
        return factory(max_draft_tokens)
    for point in entry_points(group="outrider.drafters"):
        if point.name == name:
            outside: DrafterFactory = point.load()
            return outside(max_draft_tokens)
    raise UnknownDrafter(f"unknown drafter {name!r}: known are {', '.join(known_drafters())}")
