"""Steps of the ladder are searched in chunks; how they are cut changes no decision."""

import numpy as np
import pytest

from outrider_planner.core import stage
from outrider_planner.core.cost import CostModel, request_ladder
from outrider_planner.core.gain import gain_model
from outrider_planner.core.histogram import Estimates
from outrider_planner.core.pools import CONVOLVED_UP_TO
from outrider_planner.core.search import decide

LADDER = request_ladder(96)
POSITIONS, BINS = 6, 4


def costs(padded: bool) -> CostModel:
    rows = np.arange(LADDER[-1] * (1 + POSITIONS) + 1)
    edges = tuple(range(16, int(rows[-1]) + 17, 16)) if padded else ()
    launched = 16 * np.ceil(rows / 16) if padded else rows
    seconds = 5e-3 + 2e-5 * launched + 1e-8 * launched**2
    steps = np.arange(POSITIONS + 1) * np.ones((len(LADDER), 1))
    return CostModel(
        ladder=LADDER,
        target_s=seconds,
        feed_s={"drafter": np.zeros(rows.size)},
        draft_s={"drafter": 2e-4 * steps},
        host_s=np.zeros(len(LADDER)),
        context_s=np.zeros(len(LADDER)),
        edges=edges,
    )


def estimates(seed: int) -> Estimates:
    rng = np.random.default_rng(seed)
    survival = np.sort(rng.random((1, POSITIONS, BINS)), axis=2)
    return Estimates(
        survival=np.minimum.accumulate(survival, axis=1),
        length=np.exp(np.cumsum(np.log(rng.uniform(0.6, 1.0, (1, POSITIONS))), axis=1)),
        bin_share=np.full((1, POSITIONS, BINS), 1.0 / BINS),
        class_share=np.ones(1),
        verified=1e3,
    )


@pytest.mark.parametrize("padded", [False, True])
def test_every_step_is_in_one_chunk_and_pools_of_few_and_many_are_apart(padded: bool) -> None:
    found = stage.chunks(costs(padded))
    assert [place for steps in found for place in range(steps.start, steps.stop)] == list(
        range(len(LADDER))
    )
    for steps in found:
        few = {n <= CONVOLVED_UP_TO for n in LADDER[steps]}
        assert len(few) == 1
        assert steps.stop - steps.start <= stage.STEPS_AT_ONCE


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("padded", [False, True])
def test_decisions_are_the_same_one_step_at_a_time(
    monkeypatch: pytest.MonkeyPatch, sparse: bool, padded: bool
) -> None:
    cost = costs(padded)
    for seed in range(12):
        gain = gain_model(estimates(seed), sparse)
        together = decide("drafter", gain, cost, None)
        with monkeypatch.context() as patched:
            patched.setattr(stage, "STEPS_AT_ONCE", 1)
            apart = decide("drafter", gain, cost, None)
        np.testing.assert_array_equal(together.draft_tokens, apart.draft_tokens)
        np.testing.assert_array_equal(together.verify_tokens, apart.verify_tokens)
