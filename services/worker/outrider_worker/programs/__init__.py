"""What one step does on the device: tensors in, tensors out, no host in between.

    a round:  pick drafts → row table → target forward | sample → judge → commit
    then:     a prefill chunk → first tokens; a drafter's feed; drafts for the round to come

Everything a round needs of the one before it lies in the seats. Each piece is one piece of work of
a stream; none waits for the device, copies to the host or branches on a tensor.

Knows: the order of operations and their shapes. Does not know: requests, plans, how work is
launched or read (runner).

Letters: n requests of a round, b rows, W = longest draft + 1, m finished prompts, d next drafts.
"""

from outrider_worker.programs.inputs import (
    DraftInput,
    FeedInput,
    PageInput,
    PickInput,
    PrefillInput,
    RoundForward,
    RoundInput,
    SeatSize,
    Tensors,
    Wanted,
)
from outrider_worker.programs.programs import Programs

__all__ = [
    "DraftInput",
    "FeedInput",
    "PageInput",
    "PickInput",
    "PrefillInput",
    "Programs",
    "RoundForward",
    "RoundInput",
    "SeatSize",
    "Tensors",
    "Wanted",
]
