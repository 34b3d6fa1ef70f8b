"""The engine's nouns: what a request is, what is drafted for it, how it can end.

No tensors, no wire messages, no clock: everything here can be built and compared in a test.
Lengths are in tokens, times in seconds.
"""

from dataclasses import dataclass, field, replace
from enum import Enum

from outrider_worker.engine.constraint import Constraint

MAX_SCORE_BINS = 16
# The page that padding rows write to and that fills up page tables. Nobody owns it.
NULL_PAGE = 0
# The seat of a request that does not run.
NO_SEAT = -1


class FinishReason(Enum):
    STOP_TOKEN = "stop_token"
    LENGTH = "length"
    CANCELLED = "cancelled"


class FailureCode(Enum):
    INVALID = "invalid"
    UNSUPPORTED = "unsupported"
    TOO_LONG = "too_long"
    OVERLOADED = "overloaded"
    UNAVAILABLE = "unavailable"
    INTERNAL = "internal"
    DEADLINE = "deadline"


@dataclass(frozen=True, slots=True)
class Finish:
    """A regular end; `stop_token_id` only with STOP_TOKEN."""

    reason: FinishReason
    stop_token_id: int | None = None


@dataclass(frozen=True, slots=True)
class Failure:
    """An irregular end; `param` names the field of the request that is to blame, if one is."""

    code: FailureCode
    message: str
    param: str = ""


class RequestRefused(Exception):
    """A request that must not enter the engine."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How tokens are chosen. Every default is "off".

    temperature: 0 is greedy. top_k: 0 is off. top_p: 1 is off.
    repetition_penalty: over prompt and output. presence_penalty, frequency_penalty: output alone.
    logit_bias: (token id, bias) pairs.
    min_tokens: end-of-sequence and stop ids cannot be drawn before so many tokens.
    bad_words: token sequences that the output never completes. Of both, and a grammar that leaves
        nothing else, the grammar wins (docs/adr/0011).
    top_logprobs: alternatives reported beside each token's own logprob; None = no logprobs.
    relaxed: drafts may be accepted by relaxation while the model thinks (speculate.relaxed); only
        where the deployment allows it, the client did not opt out and gave no seed to reproduce.
    """

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    bad_words: tuple[tuple[int, ...], ...] = ()
    seed: int = 0
    min_tokens: int = 0
    max_tokens: int = 16
    stop_token_ids: frozenset[int] = frozenset()
    ignore_eos: bool = False
    top_logprobs: int | None = None
    relaxed: bool = False


class GrammarKind(Enum):
    JSON_SCHEMA = "json_schema"
    REGEX = "regex"
    LARK = "lark"


@dataclass(frozen=True, slots=True)
class Grammar:
    """What an answer must look like, as the client wrote it."""

    kind: GrammarKind
    text: str


@dataclass(frozen=True, slots=True)
class SpeculationLimits:
    """What the request permits; None = the deployment decides.

    drafter: who is to draft for it; empty = the deployment decides.
    """

    enabled: bool | None = None
    max_draft_tokens: int | None = None
    drafter: str = ""

    def cap(self, deployment_max_tokens: int) -> int:
        """Drafts per round at most."""
        if self.enabled is False:
            return 0
        if self.max_draft_tokens is None:
            return deployment_max_tokens
        return min(self.max_draft_tokens, deployment_max_tokens)


@dataclass(frozen=True, slots=True)
class RequestKey:
    """Who a request is: the router stream it came on, its id there, and the choice."""

    owner: str
    request_id: str
    choice_index: int = 0


@dataclass(frozen=True, slots=True)
class RequestSpec:
    """A request as submitted. `resumed_ids` were already delivered by another worker;
    `prediction_ids` are what its client expects the answer to hold, empty for no expectation."""

    key: RequestKey
    prompt_ids: tuple[int, ...]
    sampling: SamplingParams
    resumed_ids: tuple[int, ...] = ()
    speculation: SpeculationLimits = SpeculationLimits()
    grammar: Grammar | None = None
    class_label: str = ""
    tenant_salt: bytes = b""
    deadline_s: float | None = None
    prediction_ids: tuple[int, ...] = ()
    priority: int = 0
    """Lower is let in first (`line`)."""

    @property
    def request_class(self) -> str:
        """What it can be told apart by before it runs (planner.md "Class")."""
        mode = "greedy" if self.sampling.temperature == 0 else "sampled"
        return f"{self.class_label}/{mode}" if self.class_label else mode


@dataclass(frozen=True, slots=True)
class Draft:
    """Drafted tokens and the score bin of each; `asked_tokens` may be more than came."""

    token_ids: tuple[int, ...] = ()
    bins: tuple[int, ...] = ()
    asked_tokens: int = 0

    def __post_init__(self) -> None:
        if len(self.token_ids) != len(self.bins):
            raise ValueError("a draft needs one score bin for each token")

    def __len__(self) -> int:
        return len(self.token_ids)

    def cut(self, tokens: int, vocab_size: int) -> "Draft":
        """At most `tokens` drafts, and none from the first id on that the target does not know."""
        good = 0
        while good < min(tokens, len(self)) and 0 <= self.token_ids[good] < vocab_size:
            good += 1
        if good == len(self):
            return self
        return Draft(self.token_ids[:good], self.bins[:good], self.asked_tokens)


NO_DRAFT = Draft()


@dataclass(slots=True)
class SpeculationTotals:
    """A request's draft counts; the bonus token is in none of them.

    Prediction tokens are those drafts that came from what the client predicted: accepted ones were
    delivered, rejected ones were verified and refused, or lay behind the end.
    """

    verify_steps: int = 0
    drafted_tokens: int = 0
    verified_tokens: int = 0
    accepted_tokens: int = 0
    acceptance_histogram: list[int] = field(default_factory=list)
    accepted_prediction_tokens: int = 0
    rejected_prediction_tokens: int = 0

    def add(self, drafted: int, verified: int, accepted: int, predicted: bool = False) -> None:
        """Count one round; a round without a verified draft is no verify step.

        predicted: the drafts came from the client's prediction.
        """
        self.drafted_tokens += drafted
        self.verified_tokens += verified
        self.accepted_tokens += accepted
        if predicted:
            self.accepted_prediction_tokens += accepted
            self.rejected_prediction_tokens += verified - accepted
        if verified == 0:
            return
        self.verify_steps += 1
        missing = accepted + 1 - len(self.acceptance_histogram)
        self.acceptance_histogram.extend([0] * missing)
        self.acceptance_histogram[accepted] += 1

    def copy(self) -> "SpeculationTotals":
        """As they are now."""
        return replace(self, acceptance_histogram=[*self.acceptance_histogram])


@dataclass(slots=True, eq=False)
class Request:
    """A live request: its tokens and the lengths from which the rest is derived.

    Lengths are what the host knows. Rounds in flight may have got further on the device, by
    `ahead` entries at most.

    token_ids: prompt and everything emitted; the last one is the *anchor*, whose K/V is not
        written yet.
    committed: K/V entries that are valid. Rollback of rejected drafts is only this number.
    ahead: K/V entries that rounds in flight may commit at most; 0 when none is.
    reserved: slots owned for it; committed + ahead ≤ reserved.
    prefilled: all its known tokens have been launched, it decodes. Its first new token may still
        be in flight: then committed = len(token_ids).
    seat: its line in the device's state while it runs.
    drafter: who drafts for it, empty for nobody; another one than at first only where the answer
        has left what its client predicted.
    cached_tokens: how many of its tokens the prefix cache gave when it was admitted.
    constraint: its place in its grammar, behind the tokens the host knows.
    epoch: grows whenever results in flight must no longer be applied.
    """

    spec: RequestSpec
    token_ids: list[int]
    committed: int = 0
    ahead: int = 0
    reserved: int = 0
    pages: list[int] = field(default_factory=list)
    prefilled: bool = False
    seat: int = NO_SEAT
    cached_tokens: int = 0
    constraint: Constraint | None = None
    epoch: int = 0
    drafter: str = ""
    draft: Draft = NO_DRAFT
    totals: SpeculationTotals = field(default_factory=SpeculationTotals)

    @classmethod
    def from_spec(cls, spec: RequestSpec) -> "Request":
        return cls(spec, [*spec.prompt_ids, *spec.resumed_ids])

    @property
    def emitted(self) -> int:
        """Tokens emitted so far, counted from the end of the original prompt."""
        return len(self.token_ids) - len(self.spec.prompt_ids)

    @property
    def emitted_here(self) -> int:
        """Tokens emitted by this worker."""
        return self.emitted - len(self.spec.resumed_ids)

    @property
    def room_tokens(self) -> int:
        """Tokens it may still emit."""
        return self.spec.sampling.max_tokens - self.emitted

    @property
    def limit_tokens(self) -> int:
        """Slots it can need at most, counting the last token, which leaves no K/V behind."""
        return len(self.spec.prompt_ids) + self.spec.sampling.max_tokens


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """One emitted token's logprob under the target, and the likeliest tokens at its place."""

    logprob: float
    top_ids: tuple[int, ...] = ()
    top_logprobs: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class TokenNews:
    """What one round gave one request; with the end come the totals of its whole life here.

    totals: with every round where the client predicted the answer, for it may end the request
        between two of them, by a stop string.
    logprobs: one entry for each token, or none at all.
    cached_prompt_tokens: prompt tokens that the prefix cache gave; set with the first token.
    verified_tokens: drafts that the round verified. relaxed_tokens: of the accepted, by relaxation.
    """

    key: RequestKey
    token_ids: tuple[int, ...]
    accepted_tokens: int = 0
    drafter: str = ""
    end: Finish | Failure | None = None
    totals: SpeculationTotals | None = None
    emitted_tokens: int = 0
    logprobs: tuple[TokenLogprobs, ...] = ()
    cached_prompt_tokens: int = 0
    verified_tokens: int = 0
    relaxed_tokens: int = 0
