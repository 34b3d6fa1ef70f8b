"""Conversions that both conversations of the worker use (`outrider.common.v1`)."""

from outrider.common.v1 import common_pb2 as common
from outrider_worker.engine.scheduler import SchedulerLimits
from outrider_worker.identity import EngineIdentity
from outrider_worker.speculate.drafter import DrafterCost, DrafterTraits

_COSTS = {
    DrafterCost.HOST: common.DRAFTER_COST_HOST,
    DrafterCost.AUTOREGRESSIVE: common.DRAFTER_COST_AUTOREGRESSIVE,
    DrafterCost.PARALLEL: common.DRAFTER_COST_PARALLEL,
}


def traits_to_wire(traits: DrafterTraits) -> common.DrafterTraits:
    return common.DrafterTraits(
        name=traits.name,
        cost=_COSTS[traits.cost],
        needs_hidden=traits.needs_hidden,
        max_draft_tokens=traits.max_draft_tokens,
        sparse=traits.sparse,
        score_bins=traits.score_bins,
        writes_kv=traits.writes_kv,
    )


def identity_to_wire(identity: EngineIdentity) -> common.EngineIdentity:
    return common.EngineIdentity(
        model=identity.model,
        model_digest=identity.model_digest,
        drafters=identity.drafters,
        engine_version=identity.engine_version,
        device=identity.device,
        dtype=identity.dtype,
        tensor_parallel=identity.tensor_parallel,
        quantisation=identity.quantisation,
        cpu_threads=identity.cpu_threads,
        row_ladder=identity.row_ladder,
    )


def limits_to_wire(
    limits: SchedulerLimits, max_draft_tokens: int, kv_capacity_tokens: int
) -> common.EngineLimits:
    return common.EngineLimits(
        max_running_requests=limits.max_running_requests,
        max_context_tokens=limits.max_context_tokens,
        max_rows_per_forward=limits.max_rows_per_forward,
        max_draft_tokens=max_draft_tokens,
        kv_capacity_tokens=kv_capacity_tokens,
    )
