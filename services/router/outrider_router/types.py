"""Values that cross the router's seams: what is asked of a worker and what it answers.

Knows no HTTP, no text and no wire format. Pure.
"""

from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, field, replace
from enum import Enum
from typing import NamedTuple


class FailureCode(Enum):
    """Why a worker, or the way to it, did not carry out a request."""

    INVALID = "invalid"
    UNSUPPORTED = "unsupported"
    TOO_LONG = "too_long"
    OVERLOADED = "overloaded"
    UNAVAILABLE = "unavailable"
    INTERNAL = "internal"
    DEADLINE = "deadline"

    @property
    def retriable(self) -> bool:
        """True if another worker may well succeed, as long as nothing was delivered."""
        return self in (FailureCode.OVERLOADED, FailureCode.UNAVAILABLE)


class FinishKind(Enum):
    """How a worker ended a request that did not fail."""

    STOP_TOKEN = "stop_token"
    LENGTH = "length"
    CANCELLED = "cancelled"


class GrammarKind(Enum):
    """The languages in which an answer's form can be described."""

    JSON_SCHEMA = "json_schema"
    REGEX = "regex"
    LARK = "lark"


@dataclass(frozen=True)
class Grammar:
    """What an answer must look like."""

    kind: GrammarKind
    text: str


@dataclass(frozen=True)
class Sampling:
    """How tokens are chosen and when to stop.

    Attributes:
        temperature: 0 is greedy.
        top_p: in (0, 1]; 1 is off.
        top_k: 0 is off.
        max_tokens: at least 1.
        stop_token_ids: in addition to the model's own.
        options: further options by their name in the contract, as far as the client set them to
            something that matters and the worker declares them.
        logit_bias: pairs of token id and bias, under the same condition.
        bad_words: token sequences that the answer never completes, under the same condition.
    """

    temperature: float
    top_p: float
    top_k: int
    max_tokens: int
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    options: Mapping[str, float] = field(default_factory=dict)
    logit_bias: tuple[tuple[int, float], ...] = ()
    bad_words: tuple[tuple[int, ...], ...] = ()


@dataclass(frozen=True)
class Speculation:
    """The client's wishes about speculation; None, and no name, leave it to the deployment.

    relaxed: where the deployment allows it, drafts may hold that are nearly what the model says.
    """

    enabled: bool | None = None
    max_draft_tokens: int | None = None
    drafter: str = ""
    relaxed: bool = False


@dataclass(frozen=True)
class Submission:
    """One choice as it is sent to a worker; `(request_id, choice_index)` is unique per process.

    Attributes:
        deadline_ms: the time left when it is sent, 0 for no limit.
        prediction_ids: what the client expects the answer to hold.
        top_logprobs: alternatives to report beside each token's logprob; None asks for no logprobs.
        tenant_salt: prompts are shared in the worker's prefix cache under equal salts only.
        class_label: the API key's class, for the planner's rules.
        resumed_ids: what another worker has delivered of the answer; counted in `max_tokens`.
        traceparent: W3C trace context of the span that sends it; empty where nothing is traced.
    """

    request_id: str
    choice_index: int
    prompt_ids: tuple[int, ...]
    seed: int
    sampling: Sampling
    speculation: Speculation
    deadline_ms: int = 0
    prediction_ids: tuple[int, ...] = ()
    grammar: Grammar | None = None
    top_logprobs: int | None = None
    tenant_salt: bytes = b""
    priority: int = 0
    class_label: str = ""
    resumed_ids: tuple[int, ...] = ()
    traceparent: str = ""

    @property
    def key(self) -> tuple[str, int]:
        """What the worker calls it."""
        return self.request_id, self.choice_index


@dataclass(frozen=True)
class Finish:
    """The worker ended the choice."""

    kind: FinishKind
    stop_token_id: int | None = None


@dataclass(frozen=True)
class Failure:
    """The choice failed; the message is fit for the client.

    `worker_lost`: the worker vanished with the choice on it, which may have been its doing.
    """

    code: FailureCode
    message: str
    param: str | None = None
    worker_lost: bool = False


@dataclass(frozen=True)
class Totals:
    """Speculation over one choice's life on the worker so far; prediction tokens are drafts from
    `prediction_ids`, delivered or refused."""

    verify_steps: int
    drafted_tokens: int
    verified_tokens: int
    accepted_tokens: int
    accepted_prediction_tokens: int = 0
    rejected_prediction_tokens: int = 0

    def plus(self, later: "Totals") -> "Totals":
        """The sum of two workers' shares."""
        pairs = zip(astuple(self), astuple(later), strict=True)
        return Totals(*(mine + others for mine, others in pairs))


@dataclass(frozen=True)
class TokenLogprobs:
    """Natural logarithms of one token's probability and of the likeliest ones', by the model."""

    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True)
class Round:
    """What one round of a worker brought a choice.

    Attributes:
        tokens: how many; the first `accepted_tokens` of them were drafts, the rest are the model's.
        verified_tokens: drafts that were judged.
        accepted_tokens: drafts that held and are part of the answer.
        relaxed_tokens: of these, the ones that held only by relaxed acceptance.
        drafter: who drafted; empty where no draft held.
    """

    tokens: int
    verified_tokens: int = 0
    accepted_tokens: int = 0
    relaxed_tokens: int = 0
    drafter: str = ""

    def cut_to(self, tokens: int) -> "Round":
        """The round as if it had brought its first `tokens` only; what was judged was judged."""
        accepted = min(self.accepted_tokens, tokens)
        relaxed = min(self.relaxed_tokens, accepted)
        return replace(self, tokens=tokens, accepted_tokens=accepted, relaxed_tokens=relaxed)


def cut_rounds(rounds: Sequence[Round], tokens: int) -> tuple[Round, ...]:
    """The rounds that brought an answer's next `tokens` tokens, the last one cut to its share."""
    if tokens and len(rounds) == 1 and rounds[0].tokens == tokens:
        return tuple(rounds)
    kept: list[Round] = []
    for one in rounds:
        share = min(one.tokens, tokens)
        tokens -= share
        if share < one.tokens:
            one = one.cut_to(share)
        if share:
            kept.append(one)
    return tuple(kept)


class ReportLevel(Enum):
    """How much an answer tells about speculation."""

    NONE = "none"
    SUMMARY = "summary"
    DETAILED = "detailed"
    TOKENS = "tokens"

    @property
    def tells_steps(self) -> bool:
        """Every verify step by itself."""
        return self in (ReportLevel.DETAILED, ReportLevel.TOKENS)


class Update(NamedTuple):
    """News of one choice: tokens, and its end where it has come; totals come with the end, and
    with everything where there is a prediction. Logprobs are one for each token or none at all;
    `rounds` together brought just these tokens.

    A tuple, as all that is made anew for every token: frozen dataclasses take five times as long.
    """

    token_ids: tuple[int, ...] = ()
    cached_prompt_tokens: int = 0
    end: Finish | Failure | None = None
    totals: Totals | None = None
    logprobs: tuple[TokenLogprobs, ...] = ()
    rounds: tuple[Round, ...] = ()

    def followed_by(self, later: "Update") -> "Update":
        """Both as one."""
        return Update(
            self.token_ids + later.token_ids,
            max(self.cached_prompt_tokens, later.cached_prompt_tokens),
            later.end,
            later.totals or self.totals,
            self.logprobs + later.logprobs,
            self.rounds + later.rounds,
        )


@dataclass(frozen=True)
class WorkerStatus:
    """What a worker says about itself; limits of 0 are unknown."""

    model: str
    model_digest: str
    engine_version: str
    drafters: tuple[str, ...]
    vocab_size: int
    context_tokens: int
    max_draft_tokens: int
    options: frozenset[str]
    incarnation: str
    ready: bool
    not_ready_reason: str
    running_requests: int
    waiting_requests: int
    chat_template: str
    max_running_requests: int = 0
    kv_used_tokens: int = 0
    kv_capacity_tokens: int = 0
