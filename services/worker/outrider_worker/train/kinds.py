"""The kinds of heads that can be trained, by name.

Knows: what each reads of its target, how one is made. Does not know: data, training.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from torch import Tensor

from outrider_worker.model.config import ModelConfig
from outrider_worker.train.batches import Columns
from outrider_worker.train.heads import Eagle3Head, MtpEagleHead, TrainedHead
from outrider_worker.train.target import TargetWeights


@dataclass(frozen=True)
class Kind:
    """One kind of head."""

    name: str
    stored: Callable[[int], tuple[int, ...]]
    """Blocks of the target → boundaries that a training set stores, the last one of them all last.
    """
    taps: int
    """How many of them, from the first on, the head is fed; 0: the last alone."""
    make: Callable[[TargetWeights, Tensor], TrainedHead]
    fitted: bool
    """Whether `initial.fit_joint` begins it, from the boundary stored last but one."""

    def columns(self, config: ModelConfig) -> Columns:
        """Of what a training set stores."""
        d, m = config.hidden_size, len(self.stored(config.layers))
        last = slice((m - 1) * d, m * d)
        return Columns(
            features=slice(0, self.taps * d) if self.taps else last,
            last=last,
            before=slice((m - 2) * d, (m - 1) * d) if self.fitted else None,
        )


def eagle3_taps(layers: int) -> tuple[int, ...]:
    """The reference's taps, inputs of these layers (Li et al. 2025, and its code)."""
    return 2, layers // 2, max(0, layers - 3)


KINDS: Mapping[str, Kind] = {
    kind.name: kind
    for kind in (
        Kind("mtp-eagle", lambda layers: (layers - 1, layers), 0, MtpEagleHead, fitted=True),
        Kind(
            "eagle3",
            lambda layers: (*eagle3_taps(layers), layers),
            3,
            lambda target, kept_ids: Eagle3Head(target, kept_ids, taps=3),
            fitted=False,
        ),
    )
}
