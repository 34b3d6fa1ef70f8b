"""The published experiment: Qwen3-14B on one H200, 256 concurrent requests, three workloads.

Knows what was published of literal `lightspec` against a static length of 11, and the acceptance
curves and fixed round time with which it shows those numbers here. The constants were found by
`python -m benchmarks.planner_published`, which also prints the residuals.

Fitted per workload: the logit of the first conditional acceptance, its change per position, and
the deviation between requests; for all of them: the fixed time of a round.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from outrider_planner.core.types import FloatArray
from outrider_planner.sim.acceptance import Domain, Spread, sigmoid
from outrider_planner.sim.baselines import Step, Truth
from outrider_planner.sim.claims import Claim, claim_of
from outrider_planner.sim.contenders import in_parallel, run_of
from outrider_planner.sim.scenarios import Scenario, steady
from outrider_planner.sim.world import Lengths

REQUESTS = 256
LONG, SHORT = 11, 3


@dataclass(frozen=True, slots=True)
class Published:
    """Gains of `lightspec` over a static length of 11: rows as a divisor, throughput as a ratio,
    acceptance (accepted / verified) as a difference."""

    name: str
    rows_divisor: float
    throughput: float
    acceptance: float


WORKLOADS = (
    Published("first", 3.2, 1.64, 0.43),
    Published("second", 1.8, 1.39, 0.29),
    Published("third", 1.5, 1.089, 0.19),
)
# At K = 3 it was never below static, and this much above it on the first workload.
SHORT_GAIN = 1.14


@dataclass(frozen=True, slots=True)
class Fit:
    """One workload's acceptance: logit of the conditional at position j is level + slope · j."""

    level: float
    slope: float
    request: float


FIXED_MS = 80
FITS = (Fit(1.298, -0.149, 0.488), Fit(1.471, 0.074, 1.346), Fit(3.043, -0.170, 0.466))


def workload(fit: Fit, draft_tokens: int, fixed_ms: int = FIXED_MS) -> Scenario:
    """The experiment's steady load with one workload's text."""
    logits: FloatArray = fit.level + fit.slope * np.arange(LONG, dtype=np.float64)
    conditional = sigmoid(logits)
    domain = Domain.of("workload", tuple(conditional.tolist()))
    return steady(
        f"h200_14b+{fixed_ms}ms",
        REQUESTS,
        (domain,),
        name=f"published:K={draft_tokens}",
        spread=Spread(request=fit.request),
        lengths=Lengths(persistent=True),
        draft_tokens=draft_tokens,
        rounds=600,
        skip_rounds=400,
        warm=False,
    )


def expected(scenario: Scenario, chains: int = 2048) -> Published:
    """What the best (d, V) does against verifying all of K, by enumeration over batches.

    Literal `lightspec` tries every pair once, so that is where it ends at a steady load.
    """
    step = Truth(scenario, chains).step(REQUESTS)
    rates = step.rates()
    length, column = np.unravel_index(int(rates.argmax()), rates.shape)
    full = int(np.searchsorted(step.verify, REQUESTS * scenario.draft_tokens))
    return _against(step, (int(length), int(column)), (scenario.draft_tokens, full))


def _against(step: Step, ours: tuple[int, int], static: tuple[int, int]) -> Published:
    rows = step.requests + step.verify
    rates = step.rates()
    acceptance = step.gain / np.maximum(step.verify, 1)
    return Published(
        "expected",
        float(rows[static[1]] / rows[ours[1]]),
        float(rates[ours] / rates[static]),
        float(acceptance[ours] - acceptance[static]),
    )


def measured(scenario: Scenario, seed: int) -> dict[str, FloatArray]:
    """Rate, rows and acceptance of every contender in one repetition."""
    found = {}
    for contender in ("two_stage", "lightspec", f"static:{scenario.draft_tokens}"):
        length = 250 if contender.startswith("static:") else scenario.rounds
        run = run_of(
            replace(scenario, rounds=length, skip_rounds=50 if length == 250 else 400),
            contender,
            seed,
        )
        first = run.scenario.skip_rounds
        verified = run.column("verified")[first:]
        accepted = run.column("expected_tokens")[first:] - run.column("requests")[first:]
        rows = verified.mean() + REQUESTS
        acceptance = accepted.sum() / max(verified.sum(), 1.0)
        found[contender] = np.array([run.rate(), rows, acceptance])
    return found


def published_claims(seeds: int, processes: int) -> list[Claim]:
    """Ours against literal `lightspec` in the six cells, and how well the fit shows what was
    published."""
    cells = [(length, place) for length in (LONG, SHORT) for place in range(len(WORKLOADS))]
    jobs = [
        (workload(FITS[place], length), seed) for length, place in cells for seed in range(seeds)
    ]
    each = in_parallel(measured, jobs, processes)
    claims = []
    for cell, (length, place) in enumerate(cells):
        found = each[cell * seeds : (cell + 1) * seeds]
        name, ours, theirs, static = (
            WORKLOADS[place].name,
            *(
                np.stack([one[contender] for one in found])
                for contender in ("two_stage", "lightspec", f"static:{length}")
            ),
        )
        note = _shown(WORKLOADS[place], length, theirs.mean(axis=0), static.mean(axis=0))
        text = f"published experiment, {name} workload, K = {length}, against lightspec"
        claims.append(claim_of(text, 1.0, ours[:, 0] / theirs[:, 0], note=note))
    return claims


def _shown(wanted: Published, length: int, theirs: FloatArray, static: FloatArray) -> str:
    """What `lightspec` shows here against what was published of it."""
    shown = f"lightspec / static {theirs[0] / static[0]:.3f}"
    if length == SHORT:
        first = f" (published {SHORT_GAIN})" if wanted is WORKLOADS[0] else " (published ≥ 1)"
        return shown + first
    return (
        f"{shown} (published {wanted.throughput}), rows ÷ {static[1] / theirs[1]:.2f} "
        f"({wanted.rows_divisor}), acceptance {theirs[2] - static[2]:+.3f} "
        f"({wanted.acceptance:+.2f})"
    )
