"""A drafter that knows the answer and gets told tokens right on request. For tests.

It is built from the target's own greedy continuations and a script that says, for every round of
every request, how many of the drafts shall be right; the rest are wrong on purpose. It is in no
registry: nothing but code that constructs it can turn it on.
"""

from collections.abc import Callable, Mapping, Sequence

from outrider_worker.engine.types import NO_DRAFT, Draft, RequestKey
from outrider_worker.speculate.drafter import Ask, DrafterCost, DrafterTraits

Script = Callable[[int, int], int]
"""(round of the request, drafts asked for) → how many of them shall be right."""


def always(right_tokens: int) -> Script:
    """The same number in every round."""
    return lambda _round, _asked: right_tokens


def listed(right_tokens: Sequence[int]) -> Script:
    """One number for each round, from the start again at the end."""
    return lambda round_, _asked: right_tokens[round_ % len(right_tokens)]


class ScriptedDrafter:
    """Drafts from known continuations.

    Args:
        continuations: prompt ids → the target's greedy tokens after that prompt.
        script: how many drafts to get right in each round.
        vocab_size: a wrong draft is the right id plus one, modulo this.
        wrong_token_id: if given, what a wrong draft is instead (an end-of-sequence id, say).
    """

    def __init__(
        self,
        continuations: Mapping[tuple[int, ...], Sequence[int]],
        script: Script,
        vocab_size: int,
        max_draft_tokens: int,
        wrong_token_id: int | None = None,
    ) -> None:
        self._traits = DrafterTraits("scripted", DrafterCost.HOST, max_draft_tokens)
        self._continuations = continuations
        self._script = script
        self._vocab_size = vocab_size
        self._wrong_token_id = wrong_token_id
        self._committed: dict[RequestKey, list[int]] = {}
        self._rounds: dict[RequestKey, int] = {}

    @property
    def traits(self) -> DrafterTraits:
        return self._traits

    def prefill(self, key: RequestKey, token_ids: Sequence[int]) -> None:
        self._committed.setdefault(key, []).extend(token_ids)
        self._rounds[key] = 0

    def observe(self, key: RequestKey, token_ids: Sequence[int]) -> None:
        self._committed[key].extend(token_ids)

    def release(self, key: RequestKey) -> None:
        self._committed.pop(key, None)
        self._rounds.pop(key, None)

    def propose(self, asks: Sequence[Ask]) -> list[Draft]:
        return [self._propose_one(ask) for ask in asks]

    def _propose_one(self, ask: Ask) -> Draft:
        if ask.key not in self._committed or ask.tokens <= 0:
            return NO_DRAFT
        right = self._right_tokens(ask.key, min(ask.tokens, self._traits.max_draft_tokens))
        wanted = self._script(self._rounds[ask.key], ask.tokens)
        self._rounds[ask.key] += 1
        token_ids = tuple(
            token_id if place < wanted else self._wrong(token_id)
            for place, token_id in enumerate(right)
        )
        return Draft(token_ids, (0,) * len(token_ids), ask.tokens)

    def _right_tokens(self, key: RequestKey, count: int) -> Sequence[int]:
        committed = self._committed[key]
        for prompt, answer in self._continuations.items():
            full = (*prompt, *answer)
            if full[: len(committed)] == tuple(committed):
                return full[len(committed) : len(committed) + count]
        return ()

    def _wrong(self, token_id: int) -> int:
        if self._wrong_token_id is not None and self._wrong_token_id != token_id:
            return self._wrong_token_id
        return (token_id + 1) % self._vocab_size
