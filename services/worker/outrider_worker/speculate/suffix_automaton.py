"""All substrings of a growing text, how often each occurred, and what followed it most often.

A suffix automaton: the suffix tree in its smallest form, at most two states and three edges for
each token. A state stands for the substrings that end at the same places. Counts are kept for
substrings of at most `depth` tokens, which bounds the work for one token by the depth.

Knows: one text, or several set apart by `divide`. Does not know: requests, drafts.
Source: Blumer et al., "The smallest automaton recognizing the subwords of a text" (1985); counts
and favourites under a cap of depth are our own.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

_ROOT = 0
_NONE = -1


class Context(NamedTuple):
    """A substring: its state, and its length, for the state stands for others as well."""

    state: int
    tokens: int


class Step(NamedTuple):
    """What most often followed a context; of several, the one that did last.

    context: the one it followed, which is a shorter one where nothing has followed the whole.
    times: how often. chances: how often anything followed.
    """

    token_id: int
    context: Context
    times: int
    chances: int


class SuffixAutomaton:
    """Grows by one token at a time; nothing is ever taken back.

    Args:
        depth: the longest substring counted, in tokens, at least 2. Contexts have one less.
    """

    def __init__(self, depth: int) -> None:
        self._depth = depth
        self.tokens = 0
        # By state: edges, the state of its longest suffix elsewhere, length of its longest
        # substring, occurrences, the token that followed most often.
        self._edges: list[dict[int, int]] = [{}]
        self._link = [_NONE]
        self._longest = [0]
        self._count = [0]
        self._favourite = [_NONE]
        self._whole = _ROOT
        self._end = Context(_ROOT, 0)
        self._end_states: list[int] = []
        self._next_divider = _NONE - 1

    def extend(self, token_ids: Iterable[int]) -> None:
        """Append tokens, ids of 0 and more."""
        for token_id in token_ids:
            before = self._end
            self._append(token_id)
            for state in self._chain(before, self._depth - 1):
                self._favour(state, token_id)

    def divide(self) -> None:
        """Another text begins: what reaches across is never found, for each divider is unique."""
        self._append(self._next_divider)
        self._next_divider -= 1

    def ends(self) -> Iterator[Context]:
        """What the text ends in and has held before, the longest first."""
        ends = self._suffixes(self._end)
        return (context for context in ends if self._count[context.state] > 1)

    def matches(self, tail: Sequence[int]) -> Iterator[Context]:
        """The ends of another text that occur in this one, the longest first."""
        state, tokens = Context(_ROOT, 0)
        for token_id in tail[1 - self._depth :]:
            while state != _ROOT and token_id not in self._edges[state]:
                state = self._link[state]
                tokens = self._longest[state]
            if token_id in self._edges[state]:
                state, tokens = self._edges[state][token_id], tokens + 1
        return self._suffixes(Context(state, tokens))

    def step(self, context: Context) -> Step | None:
        """What most often followed the context, or, if nothing has, its longest end that helps."""
        for known in self._suffixes(context):
            token_id = self._favourite[known.state]
            if token_id != _NONE:
                # The end of the text is an occurrence that nothing has followed yet.
                chances = self._count[known.state] - (known.state in self._end_states)
                times = self._count[self._edges[known.state][token_id]]
                return Step(token_id, known, times, chances)
        return None

    def after(self, step: Step) -> Context:
        """The context that a step leads to."""
        state = self._edges[step.context.state][step.token_id]
        return Context(state, step.context.tokens + 1)

    def _append(self, token_id: int) -> None:
        self.tokens += 1
        self._grow(token_id)
        # From the last end on, not down from the whole text: that way can be as long as the text.
        state = self._edges[self._narrowed(self._end)][token_id]
        self._end = Context(state, min(self._end.tokens + 1, self._depth))
        self._end_states = self._chain(self._end, self._depth)
        for state in self._end_states:
            self._count[state] += 1

    def _suffixes(self, context: Context) -> Iterator[Context]:
        """The ends of a context, one for each state, without the empty one, longest first."""
        most = min(context.tokens, self._depth - 1)
        return (Context(s, min(most, self._longest[s])) for s in self._chain(context, most))

    def _chain(self, context: Context, most_tokens: int) -> list[int]:
        """The states of a context's ends of at most so many tokens, without the empty one's."""
        chain: list[int] = []
        state = self._narrowed(Context(context.state, min(context.tokens, most_tokens)))
        while state != _ROOT:
            chain.append(state)
            state = self._link[state]
        return chain

    def _narrowed(self, context: Context) -> int:
        """The state of the last `tokens` tokens of what the context's state stands for."""
        state, tokens = context
        while state != _ROOT and self._longest[self._link[state]] >= tokens:
            state = self._link[state]
        return state

    def _favour(self, state: int, token_id: int) -> None:
        """The token has just followed: is it now the one that did most often?"""
        edges, favourite = self._edges[state], self._favourite[state]
        times = self._count[edges[token_id]]
        if favourite == _NONE or times >= self._count[edges[favourite]]:
            self._favourite[state] = token_id

    def _grow(self, token_id: int) -> None:
        """The automaton of the text with one more token (Blumer et al.)."""
        state, self._whole = self._whole, self._new_state(self._longest[self._whole] + 1)
        while state != _NONE and token_id not in self._edges[state]:
            self._edges[state][token_id] = self._whole
            state = self._link[state]
        if state == _NONE:
            return
        target = self._edges[state][token_id]
        if self._longest[target] != self._longest[state] + 1:
            target = self._split(target, state, token_id)
        self._link[self._whole] = target

    def _split(self, target: int, state: int, token_id: int) -> int:
        """The substrings of `target` that now end at one place more, in a state of their own."""
        twin = self._new_state(self._longest[state] + 1)
        self._edges[twin] = dict(self._edges[target])
        self._count[twin] = self._count[target]
        self._favourite[twin] = self._favourite[target]
        self._link[twin], self._link[target] = self._link[target], twin
        while state != _NONE and self._edges[state].get(token_id) == target:
            self._edges[state][token_id] = twin
            state = self._link[state]
        return twin

    def _new_state(self, longest: int) -> int:
        self._edges.append({})
        self._link.append(_ROOT)
        self._longest.append(longest)
        self._count.append(0)
        self._favourite.append(_NONE)
        return len(self._link) - 1
