"""What workers say, from wire messages to the core's values.

Knows both shapes, and refuses what cannot be read. Judges nothing: bounds are the core's work.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from itertools import accumulate, chain

import numpy as np

from outrider.common.v1 import common_pb2 as common
from outrider.planner.v1 import planner_pb2 as wire
from outrider_planner.core.types import (
    AcceptanceCell,
    CostCurve,
    CostTable,
    DraftCostGrid,
    DrafterCost,
    DrafterCosts,
    DrafterTraits,
    EngineIdentity,
    GuardState,
    Hello,
    IntArray,
    RoundColumns,
    StepReports,
    WorkerLimits,
)


class WireError(ValueError):
    """A message that is well-formed protobuf but cannot be read."""


# Named alike here and on the wire; those of a cell follow what names it.
_ROUND_COLUMNS = tuple(item.name for item in fields(RoundColumns))
_CELL_COLUMNS = tuple(item.name for item in fields(AcceptanceCell))[4:]


def hello_from_wire(message: wire.Hello) -> Hello:
    """A hello as said; whether it can be served is checked by the core."""
    return Hello(
        deployment=message.deployment,
        worker_incarnation=message.worker_incarnation,
        identity=_identity(message.identity),
        limits=WorkerLimits(
            max_running_requests=message.limits.max_running_requests,
            max_rows_per_forward=message.limits.max_rows_per_forward,
            max_draft_tokens=message.limits.max_draft_tokens,
            max_context_tokens=message.limits.max_context_tokens,
            kv_capacity_tokens=message.limits.kv_capacity_tokens,
        ),
        row_buckets=tuple(message.row_buckets),
        pads_rows=message.pads_rows,
        drafters=tuple(map(_traits, message.drafters)),
        cost_table=_cost_table(message.cost_table) if message.HasField("cost_table") else None,
        worker_address=message.worker_address,
        protocol_version=message.protocol_version,
    )


def _identity(message: common.EngineIdentity) -> EngineIdentity:
    return EngineIdentity(
        model=message.model,
        model_digest=message.model_digest,
        drafters=tuple(message.drafters),
        engine_version=message.engine_version,
        device=message.device,
        dtype=message.dtype,
        tensor_parallel=message.tensor_parallel,
        quantisation=message.quantisation,
        cpu_threads=message.cpu_threads,
        row_ladder=tuple(message.row_ladder),
    )


def _traits(message: common.DrafterTraits) -> DrafterTraits:
    known = {item.value for item in DrafterCost}
    return DrafterTraits(
        name=message.name,
        cost=DrafterCost(message.cost if message.cost in known else 0),
        needs_hidden=message.needs_hidden,
        max_draft_tokens=message.max_draft_tokens,
        sparse=message.sparse,
        score_bins=max(message.score_bins, 1),
        writes_kv=message.writes_kv,
    )


def _cost_table(message: wire.CostTable) -> CostTable:
    return CostTable(
        target=tuple(map(_curve, message.target)),
        drafters=tuple(
            DrafterCosts(
                costs.drafter, tuple(map(_curve, costs.feed)), tuple(map(_grid, costs.draft))
            )
            for costs in message.drafters
        ),
    )


def _curve(message: wire.CostCurve) -> CostCurve:
    return CostCurve(
        context_tokens=message.context_tokens,
        rows=tuple(message.rows),
        median_us=tuple(message.median_us),
        spread_us=tuple(message.spread_us),
        samples=tuple(message.samples),
    )


def _grid(message: wire.DraftCostGrid) -> DraftCostGrid:
    return DraftCostGrid(
        context_tokens=message.context_tokens,
        requests=tuple(message.requests),
        draft_tokens=tuple(message.draft_tokens),
        median_us=tuple(message.median_us),
        spread_us=tuple(message.spread_us),
        samples=tuple(message.samples),
    )


def reports_from_wire(message: wire.StepReports) -> StepReports:
    """A report as columns.

    Raises:
        WireError: a number beyond 63 bits.
    """
    return StepReports(
        sequence=message.sequence,
        rounds=RoundColumns(*_columns([getattr(message, name)[:] for name in _ROUND_COLUMNS])),
        cells=tuple(map(_cell, message.cells)),
        guard=_guard_state(message.guard) if message.HasField("guard") else None,
        clamps=message.clamps,
        dropped_rounds=message.dropped_rounds,
    )


def _cell(message: wire.AcceptanceCell) -> AcceptanceCell:
    return AcceptanceCell(
        message.drafter,
        message.request_class,
        message.context_band,
        message.asked,
        *_columns([getattr(message, name)[:] for name in _CELL_COLUMNS]),
    )


def _guard_state(message: wire.GuardState) -> GuardState:
    return GuardState(
        tripped=message.tripped,
        ledger_tokens=message.ledger_tokens,
        threshold_tokens=message.threshold_tokens,
        sigma_tokens=message.sigma_tokens,
        plain_scale_ratio=message.plain_scale_ratio,
        trips=message.trips,
        readmissions=message.readmissions,
        lost_tokens=message.lost_tokens,
    )


def _columns(each: Sequence[list[int]]) -> list[IntArray]:
    """All columns of a message from one array: short ones cost by the call, not by the number."""
    ends = list(accumulate(map(len, each)))
    try:
        flat = np.fromiter(chain.from_iterable(each), np.int64, ends[-1])
    except OverflowError as error:
        raise WireError("a count or time beyond 63 bits") from error
    return [flat[end - len(column) : end] for column, end in zip(each, ends, strict=True)]
