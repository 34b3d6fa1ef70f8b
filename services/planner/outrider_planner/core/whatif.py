"""What a plan would be under another policy, objective, cost or acceptance; nothing is changed.

Knows how a question alters the basis of a worker's latest decision, and compares the answer with
the running plan under the same assumptions. Bounded: one decision over one ladder.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from outrider_planner.core.cells import Cell, steady
from outrider_planner.core.cost import CostModel, CostTracker
from outrider_planner.core.gain import gain_model
from outrider_planner.core.histogram import Estimates
from outrider_planner.core.planning import Basis
from outrider_planner.core.policies import Decision, Policy, UnknownPolicyError
from outrider_planner.core.policies.base import DrafterStatistics
from outrider_planner.core.policies.rules import class_weights
from outrider_planner.core.settings import SettingsError
from outrider_planner.core.settings_book import Settled
from outrider_planner.core.shared_costs import with_table
from outrider_planner.core.types import ClassRule, CostTable, FloatArray, Hello, Objective

MOST_COST_RATIO = 100.0


@dataclass(frozen=True, slots=True)
class CostRatios:
    """Factors on T, E, D and c; 1 leaves the pass as it is."""

    target: float = 1.0
    feed: float = 1.0
    draft: float = 1.0
    host: float = 1.0


@dataclass(frozen=True, slots=True)
class Question:
    """What to assume instead; whatever is left out stays as it is.

    ``acceptance``: survival by position, for a drafter by name: P(first j drafts all accepted).
    ``cost_table`` replaces the worker's, corrections included; ``cost_ratios`` scale the result.
    """

    policy: str | None = None
    objective: Objective | None = None
    latency_bound_s: float | None = None
    max_draft_tokens: int | None = None
    cost_table: CostTable | None = None
    cost_ratios: CostRatios = field(default_factory=CostRatios)
    acceptance: Mapping[str, tuple[float, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Answer:
    """By ladder step: what would be done, and what the running plan does, both under the
    question's assumptions. A cell is None where there is no drafter."""

    policy: str
    objective: str
    reason: str
    ladder: tuple[int, ...]
    cells: tuple[Cell | None, ...]
    running: tuple[Cell | None, ...]


def answer(
    question: Question,
    basis: Basis,
    running: Decision,
    hello: Hello,
    parse: Callable[[str], Policy],
) -> Answer:
    """Decides under the question's assumptions.

    Raises:
        SettingsError: an unknown policy or drafter, a value out of bounds, or no costs at all.
        CostTableError: the table does not fit the worker.
    """
    settled = _settled(question, basis.settled, parse)
    cost = _cost(question, basis, hello)
    if cost is None:
        raise SettingsError("no cost table was measured: give cost_table to price a round")
    drafters = _drafters(question, basis.snapshot.drafters, settled.bounds.class_rules)
    snapshot = replace(basis.snapshot, drafters=drafters, bounds=settled.bounds, previous=None)
    asked = replace(basis, snapshot=snapshot, cost=cost, settled=settled)
    decision = asked.decide()
    steps = range(len(cost.ladder))
    return Answer(
        policy=settled.policy.name,
        objective=asked.objective.value,
        reason=decision.reason,
        ladder=cost.ladder,
        cells=tuple(steady(decision, drafters, cost, step) for step in steps),
        running=tuple(steady(running, drafters, cost, step) for step in steps),
    )


def _settled(question: Question, present: Settled, parse: Callable[[str], Policy]) -> Settled:
    names = ("policy", "objective", "latency_bound_s", "max_draft_tokens")
    given = {name: getattr(question, name) for name in names}
    settings = replace(
        present.settings, **{name: value for name, value in given.items() if value is not None}
    )
    if question.policy is None:
        return Settled(settings, present.policy)
    try:
        return Settled(settings, parse(question.policy))
    except UnknownPolicyError as error:
        raise SettingsError(str(error)) from error


def _cost(question: Question, basis: Basis, hello: Hello) -> CostModel | None:
    cost = basis.cost
    if question.cost_table is not None:
        tracker = CostTracker(with_table(hello, question.cost_table), basis.snapshot.ladder)
        measured, cost = cost, tracker.model()
        if measured is not None and cost is not None:
            cost = replace(cost, host_s=measured.host_s)
    return None if cost is None else _scaled(cost, question.cost_ratios)


def _scaled(cost: CostModel, ratios: CostRatios) -> CostModel:
    for name in CostRatios.__slots__:
        if not 1.0 / MOST_COST_RATIO <= getattr(ratios, name) <= MOST_COST_RATIO:
            bounds = f"{1.0 / MOST_COST_RATIO:g}…{MOST_COST_RATIO:g}"
            raise SettingsError(f"cost_ratios.{name} must be {bounds}")
    return replace(
        cost,
        target_s=ratios.target * cost.target_s,
        context_s=ratios.target * cost.context_s,
        feed_s={name: ratios.feed * seconds for name, seconds in cost.feed_s.items()},
        draft_s={name: ratios.draft * seconds for name, seconds in cost.draft_s.items()},
        host_s=ratios.host * cost.host_s,
    )


def _drafters(
    question: Question,
    drafters: tuple[DrafterStatistics, ...],
    rules: tuple[ClassRule, ...],
) -> tuple[DrafterStatistics, ...]:
    unknown = sorted(question.acceptance.keys() - {item.traits.name for item in drafters})
    if unknown:
        raise SettingsError(f"acceptance of unknown drafter {', '.join(unknown)}")
    return tuple(
        _assumed(item, question.acceptance[item.traits.name], rules)
        if item.traits.name in question.acceptance
        else item
        for item in drafters
    )


def _assumed(
    known: DrafterStatistics, given: tuple[float, ...], rules: tuple[ClassRule, ...]
) -> DrafterStatistics:
    """Statistics of a drafter with this survival in every class, whose scores say nothing.

    Positions beyond those given continue with the last conditional. How many drafts there are
    stays as it is: a sparse drafter's pool, and that of a class whose rule caps it.
    """
    values = np.array(given, dtype=np.float64)
    if not values.size or not ((values >= 0) & (values <= 1)).all() or (np.diff(values) > 0).any():
        raise SettingsError(
            f"acceptance of {known.traits.name!r} must be probabilities that do not rise: "
            "P(first j drafts all accepted) by position"
        )
    classes, believed = known.classes, known.estimates
    if believed is None:
        classes, believed = ("default",), _of_one_class(known)
    survival = _continued(values, known.gain.positions)[None, :, None]
    found = replace(believed, survival=np.broadcast_to(survival, believed.survival.shape))
    gain = gain_model(found, known.gain.sparse, class_weights(classes, rules))
    return replace(known, gain=gain, classes=classes, estimates=found)


def _of_one_class(known: DrafterStatistics) -> Estimates:
    shape = (1, known.gain.positions, 1)
    return Estimates(
        survival=np.zeros(shape),
        length=known.gain.length_survival[None, :],
        bin_share=np.ones(shape),
        class_share=np.ones(1),
        verified=known.verified,
    )


def _continued(values: FloatArray, positions: int) -> FloatArray:
    before = values[-2] if values.size > 1 else 1.0
    ratio = values[-1] / before if before > 0 else 0.0
    beyond = values[-1] * ratio ** np.arange(1, max(positions - values.size, 0) + 1)
    return np.concatenate([values, beyond])[:positions]
