"""Suffix decoding: propose what most often followed the longest ends of the text so far.

Host drafter, no device memory. Every request has the automaton of its own prompt and output. Each
end of the text that occurred before, long or short, is continued token by token with what followed
most often; the continuation that promises the most accepted tokens is the draft. How long it is
follows from how long the match was and how likely the whole path is.

Only committed tokens are counted, so there is nothing to roll back. Deterministic given the texts,
so any choice of rows to verify is lossless. Source: Oliaro et al., "SuffixDecoding" (2024); the
estimate of a path's probability is our own.
"""

from collections import OrderedDict, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice

from outrider_worker.engine.types import (
    MAX_SCORE_BINS,
    NO_DRAFT,
    Draft,
    RequestKey,
    RequestSpec,
)
from outrider_worker.speculate.drafter import Ask, DrafterCost, DrafterTraits
from outrider_worker.speculate.scores import score_bin
from outrider_worker.speculate.suffix_automaton import Context, SuffixAutomaton

_CONTEXTS = 8
"""Ends of the text that are continued, the longest first."""


@dataclass(frozen=True, slots=True)
class SuffixSettings:
    """depth_tokens: longest substring counted.

    draft_tokens_per_match: longest draft, in terms of the match's length.
    min_path_probability: a draft ends before the token with which it would become less likely.
    shared_tokens: tokens of finished answers that each tenant's requests draft from besides their
        own text; 0 is off. What others wrote then shows in speed, though only within a tenant.
    tenants: how many have such a memory; the one not used for longest loses it.
    """

    depth_tokens: int = 32
    draft_tokens_per_match: float = 1.0
    min_path_probability: float = 0.1
    shared_tokens: int = 0
    tenants: int = 64


@dataclass(frozen=True, slots=True)
class Path:
    """A continuation and, for each of its tokens, the probability of having got so far."""

    token_ids: tuple[int, ...] = ()
    probabilities: tuple[float, ...] = ()

    @property
    def expected_tokens(self) -> float:
        """How many of them are right, on average."""
        return sum(self.probabilities)


def best_path(
    automaton: SuffixAutomaton,
    contexts: Iterable[Context],
    tokens: int,
    settings: SuffixSettings = SuffixSettings(),
) -> Path:
    """Of at most `tokens` tokens, the one with the most expected tokens; at a tie the one from the
    longest context."""
    paths = (_path(automaton, context, tokens, settings) for context in contexts)
    return max(paths, key=lambda path: path.expected_tokens, default=Path())


def _path(
    automaton: SuffixAutomaton, context: Context, tokens: int, settings: SuffixSettings
) -> Path:
    """Always the token that followed most often.

    A token that followed t of n times after p tokens in common has the probability t / (n + 1/p):
    one chance in p is kept for what was never seen. So a match of p tokens that occurred once is
    believed to go on for j more with p / (p + j), as old things are believed to last.
    """
    longest = min(tokens, int(settings.draft_tokens_per_match * context.tokens))
    token_ids: list[int] = []
    probabilities: list[float] = []
    probability = 1.0
    while len(token_ids) < longest and (step := automaton.step(context)) is not None:
        probability *= step.times / (step.chances + 1 / step.context.tokens)
        if probability < settings.min_path_probability:
            break
        token_ids.append(step.token_id)
        probabilities.append(probability)
        context = automaton.after(step)
    return Path(tuple(token_ids), tuple(probabilities))


class SharedMemory:
    """One tenant's finished answers, of which the oldest half is forgotten when it is full."""

    def __init__(self, settings: SuffixSettings) -> None:
        self._depth = settings.depth_tokens
        self._half_tokens = max(1, settings.shared_tokens // 2)
        self._halves = deque([SuffixAutomaton(self._depth)], maxlen=2)

    @property
    def tokens(self) -> int:
        """Tokens kept, with one between every two answers."""
        return sum(half.tokens for half in self._halves)

    def add(self, token_ids: Sequence[int]) -> None:
        """An answer; what is longer than a half is cut."""
        kept = token_ids[: self._half_tokens - 1]
        if self._halves[-1].tokens + len(kept) >= self._half_tokens:
            self._halves.append(SuffixAutomaton(self._depth))
        self._halves[-1].extend(kept)
        self._halves[-1].divide()

    def paths(self, tail: Sequence[int], tokens: int, settings: SuffixSettings) -> list[Path]:
        """The best continuation of a text's tail in either half."""
        return [
            best_path(half, islice(half.matches(tail), _CONTEXTS), tokens, settings)
            for half in self._halves
        ]


class _Text:
    """One request's committed tokens."""

    def __init__(self, settings: SuffixSettings, memory: SharedMemory | None, prompt: int) -> None:
        self.token_ids: list[int] = []
        self.memory = memory
        self._automaton = SuffixAutomaton(settings.depth_tokens)
        self._settings = settings
        self._prompt_tokens = prompt

    @property
    def answer(self) -> list[int]:
        return self.token_ids[self._prompt_tokens :]

    def extend(self, token_ids: Sequence[int]) -> None:
        self.token_ids.extend(token_ids)
        self._automaton.extend(token_ids)

    def best_path(self, tokens: int) -> Path:
        """From the request's own text, or from its tenant's if that promises more."""
        settings = self._settings
        ends = islice(self._automaton.ends(), _CONTEXTS)
        paths = [best_path(self._automaton, ends, tokens, settings)]
        if self.memory is not None:
            tail = self.token_ids[-settings.depth_tokens :]
            paths += self.memory.paths(tail, tokens, settings)
        return max(paths, key=lambda path: path.expected_tokens)


class SuffixDrafter:
    """Drafts from a request's own text, and from its tenant's finished answers where shared (a
    Drafter that ReadsRequests).

    The score bin of a draft tells the probability of having got so far, two bins for each halving.
    """

    def __init__(
        self,
        max_draft_tokens: int,
        settings: SuffixSettings = SuffixSettings(),
        name: str = "suffix",
    ) -> None:
        self._traits = DrafterTraits(
            name=name,
            cost=DrafterCost.HOST,
            max_draft_tokens=max_draft_tokens,
            sparse=True,
            score_bins=MAX_SCORE_BINS,
        )
        self._settings = settings
        self._texts: dict[RequestKey, _Text] = {}
        self._memories: OrderedDict[bytes, SharedMemory] = OrderedDict()

    @property
    def traits(self) -> DrafterTraits:
        return self._traits

    def begin(self, spec: RequestSpec) -> None:
        """See ReadsRequests.begin."""
        memory = self._memory_of(spec.tenant_salt) if self._settings.shared_tokens else None
        self._texts[spec.key] = _Text(self._settings, memory, len(spec.prompt_ids))

    def prefill(self, key: RequestKey, token_ids: Sequence[int]) -> None:
        if key not in self._texts:
            self._texts[key] = _Text(self._settings, None, 0)
        self._texts[key].extend(token_ids)

    def observe(self, key: RequestKey, token_ids: Sequence[int]) -> None:
        self._texts[key].extend(token_ids)

    def release(self, key: RequestKey) -> None:
        """See Drafter.release. An answer let go of and taken up again is remembered twice."""
        text = self._texts.pop(key, None)
        if text is not None and text.memory is not None and text.answer:
            text.memory.add(text.answer)

    def propose(self, asks: Sequence[Ask]) -> list[Draft]:
        return [self._propose_one(ask) for ask in asks]

    def _propose_one(self, ask: Ask) -> Draft:
        text = self._texts.get(ask.key)
        if text is None or ask.tokens <= 0:
            return NO_DRAFT
        path = text.best_path(min(ask.tokens, self._traits.max_draft_tokens))
        return Draft(path.token_ids, tuple(map(score_bin, path.probabilities)), ask.tokens)

    def _memory_of(self, tenant_salt: bytes) -> SharedMemory:
        """The tenant's, which is now the latest used."""
        memory = self._memories.setdefault(tenant_salt, SharedMemory(self._settings))
        self._memories.move_to_end(tenant_salt)
        if len(self._memories) > self._settings.tenants:
            self._memories.popitem(last=False)
        return memory


def sharing_suffix_drafter(max_draft_tokens: int) -> SuffixDrafter:
    """The drafter "suffix-shared", which remembers 64 Ki tokens of each tenant's answers."""
    settings = SuffixSettings(shared_tokens=64 * 1024)
    return SuffixDrafter(max_draft_tokens, settings, name="suffix-shared")
