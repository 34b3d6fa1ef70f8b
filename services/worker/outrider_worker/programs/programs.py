"""All programs of one device under one name, for whoever launches them."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from outrider_worker.feeding import FeatureShape, Feeding
from outrider_worker.graphs import make_forwards
from outrider_worker.kv import KvPool
from outrider_worker.model.base import CausalLM
from outrider_worker.programs.drafts import draft, feed
from outrider_worker.programs.inputs import (
    DraftInput,
    FeedInput,
    PageInput,
    PrefillInput,
    RoundForward,
    RoundInput,
    SeatSize,
    Tensors,
)
from outrider_worker.programs.parts import Parts
from outrider_worker.programs.prefill import prefill
from outrider_worker.programs.rounds import forward_round, judge_round
from outrider_worker.sampling import SeatSampling
from outrider_worker.seats import SeatState
from outrider_worker.speculate.device import DeviceDrafter, StatefulDrafter
from outrider_worker.speculate.verify import Verifier


class Programs(Parts):
    """One model's programs over its seats."""

    @classmethod
    def over(
        cls,
        model: CausalLM,
        pool: KvPool,
        size: SeatSize,
        verifier: Verifier,
        drafters: Sequence[DeviceDrafter] = (),
        processed_logprobs: bool = False,
    ) -> Programs:
        """With empty seats of `size`, and forwards launched as the pool's device does it.

        A drafter with a state is given its memory here, as many pages as `pool` has.
        """
        device = pool.keys[0].device
        state = SeatState.allocate(
            size.seats, size.max_context_tokens, size.max_draft_tokens, device
        )
        shape = FeatureShape(model.config.hidden_size, pool.dtype, device)
        feeding = _feeding(drafters, size, pool.pages, shape)
        return cls(
            model=model,
            forwards=make_forwards(
                model,
                pool,
                state.page_table,
                size.max_rows,
                feeding.boundaries if feeding else (),
            ),
            pool=pool,
            seats=state,
            sampling=SeatSampling(size.seats, device),
            verifier=verifier,
            drafters={drafter.traits.name: drafter for drafter in drafters},
            feeding=feeding,
            processed_logprobs=processed_logprobs,
        )

    def show_pages(self, change: PageInput) -> None:
        """Bring the page table up to date."""
        self.seats.write_pages(change.seats, change.columns, change.pages)

    def forward_round(self, order: RoundInput) -> RoundForward:
        """See programs.rounds."""
        return forward_round(self, order)

    def judge_round(self, order: RoundInput, run: RoundForward, masks: Tensor | None) -> Tensors:
        """See programs.rounds."""
        return judge_round(self, order, run, masks)

    def prefill(self, order: PrefillInput, masks: Tensor | None) -> Tensors:
        """See programs.prefill."""
        return prefill(self, order, masks)

    def feed(self, order: FeedInput) -> None:
        """See programs.drafts."""
        feed(self, order)

    def draft(self, orders: Sequence[DraftInput]) -> Tensors:
        """See programs.drafts."""
        return draft(self, orders)


def _feeding(
    drafters: Sequence[DeviceDrafter], size: SeatSize, pages: int, shape: FeatureShape
) -> Feeding | None:
    """For the drafter that has a state, if there is one. Raises ValueError where two have."""
    stateful = [drafter for drafter in drafters if isinstance(drafter, StatefulDrafter)]
    if not stateful:
        return None
    if len(stateful) > 1:
        names = ", ".join(drafter.traits.name for drafter in stateful)
        raise ValueError(f"one drafter with a state can be served beside others, not {names}")
    stateful[0].allocate(size.seats, pages)
    return Feeding.allocate(stateful[0], size.seats, size.max_draft_tokens + 1, shape)
