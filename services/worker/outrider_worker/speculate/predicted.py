"""Predicted output: draft what the client says the answer will be, for as long as it is right.

Host drafter, no device memory. A cursor runs through the predicted tokens beside the answer. Where
the answer departs, the cursor is set anew: to the place whose tokens agree with the longest end of
the answer, the nearest one ahead where several do. With none, one token is taken for replaced by
one other; after that nothing is drafted until the answer comes back to the prediction. Every place
that proves wrong raises what the next one must show, so a prediction of no use costs little. After
sixteen in a row, or a long passage without a place, it is given up, and another drafter goes on.

Knows: how an edited text lies beside the original. Does not know: text, requests, what is accepted.
Deterministic given the tokens, so any choice of rows to verify is lossless. The idea is OpenAI's
"Predicted Outputs" (2024); the alignment is our own.
"""

from bisect import bisect_left
from collections.abc import Sequence
from functools import cached_property

from outrider_worker.engine.types import (
    MAX_SCORE_BINS,
    NO_DRAFT,
    Draft,
    RequestKey,
    RequestSpec,
)
from outrider_worker.speculate.drafter import PREDICTED, Ask, DrafterCost, DrafterTraits

SOLID_MATCH_TOKENS = 2
"""Agreement of fewer tokens is chance, unless it is close to where the answer departed."""
NEAR_TOKENS = 16
"""How far ahead of that place a single token is believed."""
LONGEST_MATCH_TOKENS = MAX_SCORE_BINS - 1
GIVEN_UP_AFTER_TOKENS = 64
"""An answer that is off its prediction for so long has left it: few edits put in more at once, and
what stands in the prediction mostly stands in the prompt too, for others to find."""
_PLACES_EACH_WAY = 32
"""Places of the same token looked at on either side: bounds the work for one token."""


class Alignment:
    """One answer beside its prediction.

    next_place: where in the prediction the answer's next token should be.
    matched: tokens up to there that agree with the answer's end, 0 for a guess; the score bin.
    """

    def __init__(self, prediction: Sequence[int]) -> None:
        self._prediction = prediction
        self._answer: list[int] = []
        self.next_place = 0
        self.matched = 0
        self._lost_tokens = 0
        # Where the two last ran in step beyond doubt: the answer most likely goes on near there.
        self._home = 0
        self._failed_places = 0
        self._found_with = 0

    @property
    def given_up(self) -> bool:
        """The answer has left the prediction for good; nothing is followed any more."""
        return self._lost and (
            self._failed_places > LONGEST_MATCH_TOKENS or self._lost_tokens >= GIVEN_UP_AFTER_TOKENS
        )

    def extend(self, token_ids: Sequence[int]) -> None:
        """Follow the answer."""
        for token_id in token_ids:
            if self.given_up:
                return
            self._answer.append(token_id)
            if self.ahead(1) == (token_id,):
                self._advance()
            else:
                self._find_anew()

    def ahead(self, count: int) -> tuple[int, ...]:
        """At most `count` predicted tokens, none while the answer is off the prediction."""
        if self._lost:
            return ()
        return tuple(self._prediction[self.next_place : self.next_place + count])

    @property
    def _lost(self) -> bool:
        return self._lost_tokens > 0

    @property
    def _proved(self) -> bool:
        """The answer has gone on as predicted from where the cursor was set."""
        return self.matched - self._found_with >= SOLID_MATCH_TOKENS

    def _advance(self) -> None:
        self.next_place += 1
        self.matched += 1
        if self._proved:
            self._home, self._failed_places = self.next_place, 0

    def _find_anew(self) -> None:
        """The answer's last token is not the predicted one."""
        if not self._lost and not self._proved:
            self._failed_places += 1
        match, place = self._best_place()
        near = 0 <= place - self._home < NEAR_TOKENS
        if match >= max(self._failed_places, 1 if near else SOLID_MATCH_TOKENS):
            self._stand_at(place + 1, match)
        elif self.matched and not self._lost:
            # Most edits replace: go on behind the token that this one stands for.
            self._stand_at(self.next_place + 1, 0)
        else:
            self._lost_tokens += 1

    def _stand_at(self, next_place: int, matched: int) -> None:
        self.next_place, self.matched, self._lost_tokens = next_place, matched, 0
        self._found_with = matched

    def _best_place(self) -> tuple[int, int]:
        """(tokens that agree, place of the last of them); (0, 0) where the token is not."""
        places = self._places.get(self._answer[-1], [])
        middle = bisect_left(places, self._home)
        around = places[max(0, middle - _PLACES_EACH_WAY) : middle + _PLACES_EACH_WAY]
        return max(
            ((self._match_length(place), place) for place in around),
            key=lambda found: (found[0], found[1] >= self._home, -abs(found[1] - self._home)),
            default=(0, 0),
        )

    def _match_length(self, place: int) -> int:
        """Tokens up to `place` that agree with the answer's end, as far as bins tell."""
        limit = min(LONGEST_MATCH_TOKENS, place + 1, len(self._answer))
        length = 1
        while length < limit and self._prediction[place - length] == self._answer[-length - 1]:
            length += 1
        return length

    @cached_property
    def _places(self) -> dict[int, list[int]]:
        """Where each token is, ascending. Made when first needed: many predictions just hold."""
        places: dict[int, list[int]] = {}
        for place, token_id in enumerate(self._prediction):
            places.setdefault(token_id, []).append(place)
        return places


class _Expectation:
    """A request's alignment, and how many tokens come before its answer."""

    def __init__(self, spec: RequestSpec) -> None:
        self.alignment = Alignment(spec.prediction_ids)
        self._prompt_left = len(spec.prompt_ids)

    def extend(self, token_ids: Sequence[int]) -> None:
        """Take what was committed; the prompt, which comes first, is not the answer's."""
        prompt = min(self._prompt_left, len(token_ids))
        self._prompt_left -= prompt
        self.alignment.extend(token_ids[prompt:])


class PredictedDrafter:
    """Drafts from the client's prediction (a Drafter that ReadsRequests and GivesUp).

    The score bin of a draft is how many tokens before it the answer has in common with the
    prediction, at most 15. Requests without a prediction get no drafts.
    """

    def __init__(self, max_draft_tokens: int) -> None:
        self._traits = DrafterTraits(
            name=PREDICTED,
            cost=DrafterCost.HOST,
            max_draft_tokens=max_draft_tokens,
            sparse=True,
            score_bins=MAX_SCORE_BINS,
        )
        self._expectations: dict[RequestKey, _Expectation] = {}

    @property
    def traits(self) -> DrafterTraits:
        return self._traits

    def begin(self, spec: RequestSpec) -> None:
        """See ReadsRequests.begin."""
        if spec.prediction_ids:
            self._expectations[spec.key] = _Expectation(spec)

    def prefill(self, key: RequestKey, token_ids: Sequence[int]) -> None:
        self.observe(key, token_ids)

    def observe(self, key: RequestKey, token_ids: Sequence[int]) -> None:
        if key in self._expectations:
            self._expectations[key].extend(token_ids)

    def given_up(self, key: RequestKey) -> bool:
        """See GivesUp."""
        expectation = self._expectations.get(key)
        return expectation is not None and expectation.alignment.given_up

    def release(self, key: RequestKey) -> None:
        self._expectations.pop(key, None)

    def propose(self, asks: Sequence[Ask]) -> list[Draft]:
        return [self._propose_one(ask) for ask in asks]

    def _propose_one(self, ask: Ask) -> Draft:
        expectation = self._expectations.get(ask.key)
        if expectation is None or ask.tokens <= 0:
            return NO_DRAFT
        alignment = expectation.alignment
        token_ids = alignment.ahead(min(ask.tokens, self._traits.max_draft_tokens))
        score_bin = min(alignment.matched, LONGEST_MATCH_TOKENS)
        return Draft(token_ids, (score_bin,) * len(token_ids), ask.tokens)
