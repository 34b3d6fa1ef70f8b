"""The calibration report: errors as defined, foretold before they are counted, rounds as served."""

from collections.abc import Sequence
from dataclasses import replace
from random import Random

import numpy as np
import pytest

from benchmarks.calibration_rounds import walked
from benchmarks.forecasts import BY_POSITION, BY_SCORE, COLD, RAW, Forecast, Learner
from outrider_planner.core.sums import Counts
from outrider_planner.core.types import DrafterCost, DrafterTraits
from outrider_worker.engine.records import DraftOutcome
from outrider_worker.speculate.ngram import NgramDrafter
from tests.support.engines import Bench, static_plan
from tests.support.laws import alone, ask

K = 2
HEAD = DrafterTraits("head", DrafterCost.AUTOREGRESSIVE, max_draft_tokens=K, score_bins=16)


def test_errors_by_hand() -> None:
    """Four drafts at 0.85, of which two hold, and two at 0.05, of which one does."""
    counts = Counts.zeros(1, 2)
    counts.grid[:, 0, 0] = 2, 2, 1
    counts.grid[:, 0, 1] = 4, 4, 2
    forecast = Forecast()
    forecast.add(np.array([[0.05, 0.85]]), counts)
    assert forecast.calibration_error() == pytest.approx((2 * 0.45 + 4 * 0.35) / 6)
    squares = 0.95**2 + 0.05**2 + 2 * 0.15**2 + 2 * 0.85**2
    assert forecast.brier() == pytest.approx(squares / 6)


def _outcome(score_bin: int, accepted: int) -> DraftOutcome:
    return DraftOutcome("head", "greedy", 9, K, (score_bin,) * K, K, accepted)


def _report(random: Random, surety: dict[int, float]) -> Sequence[DraftOutcome]:
    """Eight drafts, all or nothing of which holds, as often as its bin is good for."""
    bins = [random.choice([*surety]) for _ in range(8)]
    return [_outcome(each, K * (random.random() < surety[each])) for each in bins]


def test_what_scores_mean_is_learnt() -> None:
    """Bin 15 says 0.84 and is good for 0.4, bin 9 says 0.11 and is good for 0.1."""
    learner, random = Learner(HEAD), Random(1)
    for _ in range(120):
        learner.take(_report(random, {15: 0.4, 9: 0.1}), rounds=2)
    late = {way: each.second_half() for way, each in learner.forecasts.items()}
    assert late[RAW].calibration_error() == pytest.approx(0.44 / 2, abs=0.06)
    assert late[COLD].calibration_error() > 0.15
    assert late[BY_SCORE].calibration_error() < 0.06
    assert late[BY_SCORE].brier() < late[BY_POSITION].brier() < late[RAW].brier()
    assert learner.total.verified.sum() == 120 * 8 * K


def test_a_report_is_foretold_before_it_is_counted() -> None:
    learner = Learner(HEAD)
    learner.take([_outcome(12, K)] * 8, rounds=1)
    first = {way: each.foretold[0].tolist() for way, each in learner.forecasts.items()}
    assert first[BY_SCORE] == first[COLD]
    learner.take([_outcome(12, 0)] * 8, rounds=1)
    believed = learner.forecasts[BY_SCORE].foretold
    assert believed[1].min() > believed[0].max(), "all that came before held"


def test_only_probabilities_claim_something_by_themselves() -> None:
    claims = {
        name: RAW in Learner(replace(HEAD, name=name)).forecasts
        for name in ("head", "suffix", "ngram", "predicted")
    }
    assert claims == {"head": True, "suffix": True, "ngram": False, "predicted": False}


def test_rounds_on_paper_are_those_of_the_engine() -> None:
    spec = ask("greedy", 0, max_tokens=60, ignore_eos=True)
    bench = Bench(NgramDrafter(5), static_plan("ngram", 5), max_draft_tokens=5)
    (answer,) = bench.run(spec)
    assert answer.token_ids == alone(spec).token_ids
    served = [outcome for record in bench.records for outcome in record.outcomes]
    paper = list(walked(NgramDrafter(5), spec, answer.token_ids))
    assert sum(outcome.accepted for outcome in paper) > 5
    fields = ("request_class", "context_tokens", "asked_tokens", "bins", "verified", "accepted")
    assert [[getattr(each, name) for name in fields] for each in paper] == [
        [getattr(each, name) for name in fields] for each in served
    ]
