"""The seams for drafters that live on the device and draft between two rounds without the host.

Knows the values that pass them and the protocols; knows no drafter's insides. Nothing behind these
seams may wait for the device: no copy to the host, no branch on a tensor's value, no shape that
depends on one. So a round can be launched before the last one was read.

Letters: n requests of the round, N seats (line N is the null seat of padding rows), L tokens of
history kept, P pages of the longest context, d drafts at most, V the target's vocabulary,
F the width of a feature, b rows fed.
"""

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from torch import Tensor

from outrider_worker.attention.base import Rows
from outrider_worker.speculate.drafter import DrafterTraits


@dataclass(frozen=True, slots=True)
class Chosen:
    """One more draft of each request, as it was drawn from the drafter's logits."""

    token_ids: Tensor
    """[n] int64"""
    confidence: Tensor
    """[n] float32 in 0…1, the drafter's own belief that the target agrees, given all before."""


class Chooser(Protocol):
    """How a draft is drawn from a drafter's logits. It belongs to the verifier, not to the drafter:
    sampler match wants the noise the target will use, rejection sampling wants a law it can keep.
    """

    def choose(self, logits: Tensor, step: int) -> Chosen:
        """The draft number `step` (0 is the first) of every request of the batch.

        logits: [n, V] of the drafter; tokens it cannot draft are −inf. The draft is written into
        the text behind what is known, so that the next step's penalties see it.
        """
        ...


@dataclass(frozen=True, slots=True)
class DraftBatch:
    """The seats of one round, as they stand when it has been committed."""

    seats: Tensor
    """[n] int64, lines of `history`"""
    history: Tensor
    """[N+1, L] int64, prompt and output. A caller that knows how long the longest text can be may
    pass a view of fewer columns; what lies at and behind `known` is anything."""
    known: Tensor
    """[n] int64, tokens known, the anchor included; 0 for a padding row."""
    limit: Tensor
    """[n] int64 ≥ 0, drafts each request may get: its room and caps."""
    page_table: Tensor | None = None
    """[N+1, P] int64, for drafters that keep keys and values: theirs lie in the same slots as the
    target's, in a pool of their own. Slots known−1 … known+d−2 are reserved for them."""
    chooser: Chooser | None = None
    """For drafters that have logits."""


@dataclass(frozen=True, slots=True)
class DeviceDrafts:
    """What was drafted; entries at and behind a request's length are anything valid."""

    token_ids: Tensor
    """[n, d] int64"""
    lengths: Tensor
    """[n] int64, at most d and the request's limit"""
    bins: Tensor
    """[n, d] int64, score bins 0…15"""


class DeviceDrafter(Protocol):
    """Proposes tokens where the target runs. Like every drafter it changes speed, never text."""

    @property
    def traits(self) -> DrafterTraits: ...

    def propose(self, batch: DraftBatch, tokens: int) -> DeviceDrafts:
        """At most `tokens` drafts for each request, in tables of d = `tokens` columns."""
        ...


@dataclass(frozen=True, slots=True)
class FeatureSpec:
    """Which of the target's hidden states a drafter reads at every position.

    boundaries: the residual stream after so many blocks, 0 being the embedding and the number of
        layers the last block's output *before* the final norm; several are concatenated in this
        order. Empty: the hidden state after the final norm, alone.
    """

    boundaries: tuple[int, ...] = ()

    def width(self, hidden_size: int) -> int:
        """F, entries of one position's feature."""
        return hidden_size * max(1, len(self.boundaries))


@dataclass(frozen=True, slots=True)
class FedRows:
    """Committed positions that a drafter has not seen: one row each, for requests `seats` [n].

    A row at position i has the token there, the token behind it, and the target's feature of i.
    Rows of a request are consecutive, the last one is at known − 2: the anchor at known − 1 has no
    feature before the target has run over it.
    """

    rows: Rows
    """[b]; padding rows (at the end) have length 0 and write to the null page."""
    next_ids: Tensor
    """[b] int64, the token at position i + 1; 0 for padding rows."""
    features: Tensor | None
    """[b, F] in the model's dtype, for drafters that have a FeatureSpec."""
    seats: Tensor
    """[n] int64"""
    counts: Tensor
    """[n] int64, rows of each request, 0 for one that has nothing new."""
    last: Tensor
    """[n] int64, flat index of each request's last row; of a request without rows, any index."""

    @property
    def wanted_features(self) -> Tensor:
        """[b, F], for a drafter that has a FeatureSpec."""
        assert self.features is not None, "a drafter with a FeatureSpec is fed features"
        return self.features


@dataclass(frozen=True, slots=True)
class StateSize:
    """Device memory of a drafter's state, beside its weights.

    token_bytes: for every slot of the pool, whoever owns its page.
    seat_bytes: for every seat, the null seat among them, whether somebody sits there or not.
    """

    token_bytes: int
    seat_bytes: int = 0


@runtime_checkable
class DraftsSomeTokens(Protocol):
    """What a drafter offers besides whose vocabulary may be smaller than the target's."""

    @property
    def draft_ids(self) -> Tensor | None:
        """[C] int64, the only tokens it ever drafts; None for all."""
        ...


@runtime_checkable
class StatefulDrafter(DeviceDrafter, Protocol):
    """A device drafter whose state is a function of the committed tokens and their features.

    It is fed every committed position once, in order, before it proposes. What `propose` writes
    into the slots behind the committed ones is scratch: whoever is fed there overwrites it.
    State that is not in pages is kept by seat ([N+1, …]) and set whole by the first feed of a
    request, which is the one whose first row is at position 0 or behind a cached beginning.
    """

    @property
    def feature_spec(self) -> FeatureSpec | None:
        """None: the tokens are enough."""
        ...

    @property
    def state_size(self) -> StateSize:
        """What `allocate` takes."""
        ...

    def allocate(self, seats: int, pages: int) -> None:
        """Make room: `seats` N, `pages` of the pool, the null page among them."""
        ...

    def feed(self, fed: FedRows) -> None:
        """Take in what is new."""
        ...
