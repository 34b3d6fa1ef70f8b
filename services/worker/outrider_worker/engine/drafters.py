"""A worker's drafters, and which of them drafts for a request.

Knows: what is loaded, where it works, what a request asks for. Does not know: plans, rounds, how
any of them drafts.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from outrider_worker.engine.types import RequestSpec
from outrider_worker.speculate.device import DeviceDrafter, StatefulDrafter
from outrider_worker.speculate.drafter import PREDICTED, Drafter, DrafterTraits


@dataclass(frozen=True)
class Drafters:
    """Drafters on the host and on the device, in order of preference among equals.

    One name in both places (n-gram) is one drafter that can work in either. At most one of those
    on the device has a state.
    """

    hosts: Sequence[Drafter] = ()
    devices: Sequence[DeviceDrafter] = ()
    host: Mapping[str, Drafter] = field(init=False)
    device: Mapping[str, DeviceDrafter] = field(init=False)

    def __post_init__(self) -> None:
        for name, drafters in (("host", self.hosts), ("device", self.devices)):
            object.__setattr__(self, name, {each.traits.name: each for each in drafters})

    @property
    def names(self) -> tuple[str, ...]:
        """Each once."""
        return tuple(dict.fromkeys([*self.device, *self.host]))

    @property
    def traits(self) -> tuple[DrafterTraits, ...]:
        """What is declared of each, in the order of `names`; the host's of one in both places."""
        return tuple(self.traits_of(name) for name in self.names)

    @property
    def max_tokens(self) -> int:
        """K, the longest draft of any; 0 without a drafter."""
        return max((traits.max_draft_tokens for traits in self.traits), default=0)

    @property
    def stateful(self) -> StatefulDrafter | None:
        """The one that has to be fed."""
        found = (each for each in self.devices if isinstance(each, StatefulDrafter))
        return next(found, None)

    @property
    def lookahead_pools(self) -> dict[str, int]:
        """For the prefix cache: whose state depends on tokens behind, and on how many."""
        found = {traits.name: traits.lookahead_tokens for traits in self.traits}
        return {name: tokens for name, tokens in found.items() if tokens}

    def traits_of(self, name: str) -> DrafterTraits:
        """KeyError for a name that is not loaded."""
        return (self.host.get(name) or self.device[name]).traits

    def choose(self, spec: RequestSpec) -> str:
        """Who drafts for a request: the one it names; what its client predicts; the one that has
        been trained; the first of the others. Empty where there is none."""
        if spec.speculation.drafter in self.names:
            return spec.speculation.drafter
        if spec.prediction_ids and PREDICTED in self.host:
            return PREDICTED
        if self.stateful is not None:
            return self.stateful.traits.name
        return self._first_without_state

    def after_prediction(self, spec: RequestSpec) -> str:
        """Who goes on for a request whose answer has left its prediction for good.

        That is who would have drafted without one, but for a drafter with a state: its state would
        have had to be kept up all the time, or the whole text be run over again. Empty where nobody
        can, and where the request asked for no other drafter.
        """
        return "" if spec.speculation.drafter == PREDICTED else self._first_without_state

    @property
    def _first_without_state(self) -> str:
        state = self.stateful.traits.name if self.stateful else ""
        return next((name for name in self.names if name not in (PREDICTED, state)), "")
