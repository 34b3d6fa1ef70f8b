"""Which workers may join: a hello's shape, names and bounds.

Knows what a usable hello looks like; says in words what is wrong with any other. Does not know
who is connected.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from functools import lru_cache

from outrider_planner.core.bounds import is_label
from outrider_planner.core.cost import request_ladder
from outrider_planner.core.types import (
    MAX_BINS,
    MAX_DRAFT_TOKENS,
    PROTOCOL_VERSION,
    CostCurve,
    CostTable,
    DraftCostGrid,
    EngineIdentity,
    Hello,
)

_MOST_REQUESTS = 8192
_MOST_ROWS = 65_536
_MOST_DRAFTERS = 8
_MOST_CELLS = 8192
# Steps of the ladder × draft lengths × row counts of one search: a second or so of the event loop.
_MOST_CANDIDATES = 1 << 23


class HelloRefusedError(ValueError):
    """A hello that cannot be served; the text is for whoever runs the worker."""


class ProtocolVersionError(HelloRefusedError):
    """The worker speaks another version of the contract."""


class CapacityError(HelloRefusedError):
    """The planner already serves as many deployments or workers as it is allowed to."""


class NameTakenError(HelloRefusedError):
    """Another living worker calls itself the same."""


def check_hello(hello: Hello) -> None:
    """Accepts a usable hello.

    Raises:
        ProtocolVersionError: another protocol version.
        HelloRefusedError: the text names everything that is wrong.
    """
    if hello.protocol_version != PROTOCOL_VERSION:
        raise ProtocolVersionError(
            f"protocol version {hello.protocol_version} is not served; "
            f"this planner speaks version {PROTOCOL_VERSION}"
        )
    faults = list(_faults(hello))
    if faults:
        raise HelloRefusedError("malformed hello: " + "; ".join(faults))


@lru_cache(maxsize=4096)
def statistics_digest(identity: EngineIdentity) -> str:
    """Names what makes acceptance comparable; another model or drafter starts cold."""
    parts = (
        identity.model,
        identity.model_digest,
        identity.quantisation,
        identity.engine_version,
        *identity.drafters,
    )
    return hashlib.blake2b("\0".join(parts).encode(), digest_size=8).hexdigest()


def _faults(hello: Hello) -> Iterator[str]:
    for what in ("deployment", "worker_incarnation"):
        if not is_label(getattr(hello, what)):
            yield f"{what} must be 1 to 64 letters, digits or ._/@+- characters"
    limits = hello.limits
    if not 1 <= limits.max_running_requests <= _MOST_REQUESTS:
        yield f"max_running_requests must be 1…{_MOST_REQUESTS}"
    if not limits.max_running_requests <= limits.max_rows_per_forward <= _MOST_ROWS:
        yield f"max_rows_per_forward must be max_running_requests…{_MOST_ROWS}"
    if not 0 <= limits.max_draft_tokens <= MAX_DRAFT_TOKENS:
        yield f"max_draft_tokens must be 0…{MAX_DRAFT_TOKENS}"
    if list(hello.row_buckets) != sorted(set(hello.row_buckets)):
        yield "row_buckets must ascend"
    if hello.row_buckets and not (
        hello.row_buckets[0] >= 1 and hello.row_buckets[-1] <= _MOST_ROWS
    ):
        yield f"row_buckets must be 1…{_MOST_ROWS}"
    if hello.pads_rows and (
        not hello.row_buckets or hello.row_buckets[-1] < limits.max_rows_per_forward
    ):
        yield "the last row bucket must hold max_rows_per_forward where rows are padded"
    if _candidates(hello) > _MOST_CANDIDATES:
        yield (
            "max_rows_per_forward and max_draft_tokens leave too much to search: lower them, "
            "or pad rows to fewer row_buckets"
        )
    yield from _drafter_faults(hello)
    if hello.cost_table is not None:
        yield from _table_faults(hello, hello.cost_table)


def _candidates(hello: Hello) -> int:
    """About how many (n, d, V) a search over all n looks at."""
    limits = hello.limits
    lengths = limits.max_draft_tokens
    rows = len(hello.row_buckets) + lengths if hello.pads_rows else limits.max_rows_per_forward
    return len(request_ladder(limits.max_running_requests)) * lengths * rows


def _drafter_faults(hello: Hello) -> Iterator[str]:
    names = [traits.name for traits in hello.drafters]
    if len(set(names)) != len(names) or len(names) > _MOST_DRAFTERS:
        yield f"at most {_MOST_DRAFTERS} drafters, each named once"
    for traits in hello.drafters:
        if not is_label(traits.name):
            yield "drafter names must be short and plain"
        if not 1 <= traits.score_bins <= MAX_BINS:
            yield f"score_bins of {traits.name!r} must be 1…{MAX_BINS}"
        if not 0 <= traits.max_draft_tokens <= MAX_DRAFT_TOKENS:
            yield f"max_draft_tokens of {traits.name!r} must be 0…{MAX_DRAFT_TOKENS}"


def _table_faults(hello: Hello, table: CostTable) -> Iterator[str]:
    yield from _curves_faults(hello, "target", table.target)
    for costs in table.drafters:
        yield from _curves_faults(hello, f"feed of {costs.drafter!r}", costs.feed)
        for grid in costs.draft:
            yield from _grid_faults(costs.drafter, grid)


def _curves_faults(hello: Hello, what: str, curves: Sequence[CostCurve]) -> Iterator[str]:
    for curve in curves:
        yield from _curve_faults(what, curve)
    if not curves:
        return
    shared = set.intersection(*(set(curve.rows) for curve in curves))
    most = hello.limits.max_rows_per_forward
    if not shared:
        yield f"cost curves {what}: no row count was measured at every context length"
    elif hello.pads_rows and max(shared) < most:
        yield (
            f"cost curves {what}: measured up to {max(shared)} rows, "
            f"but max_rows_per_forward is {most} and rows are padded"
        )


def _curve_faults(what: str, curve: CostCurve) -> Iterator[str]:
    if not 1 <= len(curve.rows) == len(curve.median_us) <= _MOST_CELLS:
        yield f"cost curve {what}: rows and median_us must be of equal length"
    if list(curve.rows) != sorted(set(curve.rows)) or min(curve.rows, default=0) < 1:
        yield f"cost curve {what}: rows must be positive and ascend"
    if max(curve.rows, default=0) > _MOST_ROWS:
        yield f"cost curve {what}: rows must be at most {_MOST_ROWS}"
    if min(curve.median_us, default=0) < 1:
        yield f"cost curve {what}: times must be positive"


def _grid_faults(drafter: str, grid: DraftCostGrid) -> Iterator[str]:
    sizes = {len(grid.requests), len(grid.draft_tokens), len(grid.median_us)}
    if len(sizes) != 1 or not 1 <= max(sizes) <= _MOST_CELLS:
        yield f"draft costs of {drafter!r}: columns must be of equal length"
    if min((*grid.requests, *grid.draft_tokens), default=0) < 0:
        yield f"draft costs of {drafter!r}: requests and lengths must not be negative"
    if min(grid.median_us, default=0) < 0:
        yield f"draft costs of {drafter!r}: times must not be negative"
