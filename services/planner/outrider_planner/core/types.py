"""Values that cross the planner's seams: what workers say and what plans hold.

Knows shapes, units and limits of these values. Knows nothing of protobuf, of statistics, of how
a plan is found, or of time. Symbols: n requests decoding, d draft length, V drafts verified,
B = n + V rows of the target forward, K the bound on d.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

import numpy as np
from numpy.typing import NDArray

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]

PROTOCOL_VERSION = 1
MAX_BINS = 16
MAX_DRAFT_TOKENS = 64


class Objective(Enum):
    """What a policy maximises: tokens per second, or the same within a bound on latency."""

    THROUGHPUT = "throughput"
    LATENCY = "latency"


class DrafterCost(Enum):
    """How a drafter's time is spent; the values are those of the wire enumeration."""

    UNSPECIFIED = 0
    HOST = 1
    AUTOREGRESSIVE = 2
    PARALLEL = 3


@dataclass(frozen=True, slots=True)
class DrafterTraits:
    """What a drafter is able to do. A sparse one often proposes fewer drafts than asked for."""

    name: str
    cost: DrafterCost = DrafterCost.HOST
    needs_hidden: bool = False
    max_draft_tokens: int = 8
    sparse: bool = False
    score_bins: int = 1
    writes_kv: bool = False


@dataclass(frozen=True, slots=True)
class EngineIdentity:
    """Everything that makes measured costs and learned acceptance comparable."""

    model: str = ""
    model_digest: str = ""
    drafters: tuple[str, ...] = ()
    engine_version: str = ""
    device: str = ""
    dtype: str = ""
    tensor_parallel: int = 1
    quantisation: str = ""
    cpu_threads: int = 0
    row_ladder: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class WorkerLimits:
    """Bounds a worker declares; every plan stays inside them."""

    max_running_requests: int
    max_rows_per_forward: int
    max_draft_tokens: int
    max_context_tokens: int = 0
    kv_capacity_tokens: int = 0


@dataclass(frozen=True, slots=True)
class CostCurve:
    """Measured time of one pass by row count, at one context length; columns of equal length."""

    context_tokens: int
    rows: tuple[int, ...]
    median_us: tuple[int, ...]
    spread_us: tuple[int, ...] = ()
    samples: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class DraftCostGrid:
    """Measured time of drafting ``draft_tokens`` for ``requests``; columns of equal length."""

    context_tokens: int
    requests: tuple[int, ...]
    draft_tokens: tuple[int, ...]
    median_us: tuple[int, ...]
    spread_us: tuple[int, ...] = ()
    samples: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class DrafterCosts:
    """E(b) and D(n, d) of one drafter; ``feed`` is empty for drafters without state."""

    drafter: str
    feed: tuple[CostCurve, ...] = ()
    draft: tuple[DraftCostGrid, ...] = ()


@dataclass(frozen=True, slots=True)
class CostTable:
    """T(b), one curve per context length, and the costs of each drafter."""

    target: tuple[CostCurve, ...]
    drafters: tuple[DrafterCosts, ...] = ()


@dataclass(frozen=True, slots=True)
class Hello:
    """A worker's introduction. ``cost_table`` None: this worker measured nothing."""

    deployment: str
    worker_incarnation: str
    identity: EngineIdentity
    limits: WorkerLimits
    row_buckets: tuple[int, ...] = ()
    pads_rows: bool = False
    drafters: tuple[DrafterTraits, ...] = ()
    cost_table: CostTable | None = None
    worker_address: str = ""
    protocol_version: int = PROTOCOL_VERSION

    @property
    def most_bucket_rows(self) -> int:
        """The most rows a round can be launched with, padding included."""
        return max(self.limits.max_rows_per_forward, *self.row_buckets[-1:], 0)


@dataclass(frozen=True, slots=True, eq=False)
class RoundColumns:
    """One int64 column per quantity, one entry per round, all of equal length.

    Times are microseconds. ``carried_draft_tokens`` bounds what this round could verify,
    ``next_draft_tokens`` is what ``draft_us`` paid for.
    """

    requests: IntArray
    carried_draft_tokens: IntArray
    pool_tokens: IntArray
    target_rows: IntArray
    bucket_rows: IntArray
    request_context_tokens: IntArray
    target_us: IntArray
    feed_us: IntArray
    draft_us: IntArray
    exposed_host_us: IntArray
    emitted_tokens: IntArray
    accepted_tokens: IntArray
    next_draft_tokens: IntArray

    def __len__(self) -> int:
        """Number of rounds."""
        return int(self.requests.size)


@dataclass(frozen=True, slots=True, eq=False)
class AcceptanceCell:
    """Draft outcomes of one (drafter, class, context band) since the last report.

    ``asked_by_position``: request-rounds asked for at least that many drafts; ``drafted``,
    ``verified``, ``accepted``: by position, all four of equal length. The ``bin_*`` columns are
    parallel, one entry per non-empty (position, bin); empty for a drafter without scores.
    """

    drafter: str
    request_class: str
    context_band: int
    asked: int
    asked_by_position: IntArray
    drafted: IntArray
    verified: IntArray
    accepted: IntArray
    bin_position: IntArray
    bin: IntArray
    bin_drafted: IntArray
    bin_verified: IntArray
    bin_accepted: IntArray


@dataclass(frozen=True, slots=True)
class GuardState:
    """The worker's ledger of tokens lost against off; counts and sums since its start."""

    tripped: bool = False
    ledger_tokens: float = 0.0
    threshold_tokens: float = 0.0
    sigma_tokens: float = 0.0
    plain_scale_ratio: float = 1.0
    trips: int = 0
    readmissions: int = 0
    lost_tokens: float = 0.0


@dataclass(frozen=True, slots=True, eq=False)
class StepReports:
    """Rounds since the last report. ``sequence`` grows by one per message of an incarnation.

    ``clamps`` and ``dropped_rounds`` count since the worker's start.
    """

    sequence: int
    rounds: RoundColumns
    cells: tuple[AcceptanceCell, ...] = ()
    guard: GuardState | None = None
    clamps: int = 0
    dropped_rounds: int = 0


@dataclass(frozen=True, slots=True)
class DrafterPlan:
    """d by ladder step, and B by (ladder step, carried d): ``target_rows[step][d]``."""

    drafter: str
    draft_tokens: tuple[int, ...]
    target_rows: tuple[tuple[int, ...], ...]

    @property
    def max_carried_tokens(self) -> int:
        """K: carried draft lengths run over 0…K."""
        return len(self.target_rows[0]) - 1


@dataclass(frozen=True, slots=True)
class ScoreMap:
    """Calibrated survival by ``[position][bin]``; an empty class is the fallback for any."""

    version: int
    drafter: str
    request_class: str
    survival: tuple[tuple[float, ...], ...]


@dataclass(frozen=True, slots=True)
class ClassRule:
    """Weight of a class's chains (1 is neutral) and a cap on its drafts."""

    request_class: str
    weight: float = 1.0
    max_draft_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class ProbeDirective:
    """Bounded exploration: shares of rounds or new requests, each in [0, 1]."""

    cohort_share: float = 0.0
    plain_share: float = 0.0
    draft_tokens: int = 0


@dataclass(frozen=True, slots=True)
class GuardSettings:
    """How the worker's guard is sized: planner.md, "The guard".

    ``enabled`` is reserved on the wire and ignored: only a worker can switch its guard off.
    """

    enabled: bool = True
    minimum_threshold_tokens: float = 8.0
    detectable_loss_ratio: float = 0.02


@dataclass(frozen=True, slots=True)
class Plan:
    """What a worker obeys. An n between two steps of the ladder uses the next larger step.

    The number of drafts to verify is ``target_rows[step][d] - requests_ladder[step]``.
    """

    version: int
    requests_ladder: tuple[int, ...]
    drafters: tuple[DrafterPlan, ...]
    rate_tokens_per_s: tuple[float, ...]
    score_maps: tuple[ScoreMap, ...] = ()
    class_rules: tuple[ClassRule, ...] = ()
    probe: ProbeDirective = field(default_factory=ProbeDirective)
    guard: GuardSettings = field(default_factory=GuardSettings)
    report_interval_ms: int = 250
    validity_ms: int = 5000
    grace_ms: int = 5000
    policy: str = ""
    objective: str = Objective.THROUGHPUT.value
    reason: str = ""
