"""How a step is launched, and where a drafter that has the choice works. Pure.

*ahead*: the host launches a round before it has read the last one. *late mask*: as above, but the
round is judged only when the host has made grammar masks, which need the last round's tokens.
*in step*: the host reads first; a host drafter can do no other, and on a device that has finished
when a launch returns there is nothing to gain from running ahead.
"""

from collections import Counter
from collections.abc import Callable

from outrider_worker.engine.costs import CostTable
from outrider_worker.engine.records import LaunchMode, RoundRecord

_EMA_ROUNDS = 32
# Rounds tried in step before its exposed host time is believed.
_TRIED_ROUNDS = 8
_LOOK_AGAIN_ROUNDS = 256


def launch_mode(asynchronous: bool, drafts_on_host: bool, masked: bool) -> LaunchMode:
    """The mode of a step.

    Args:
        asynchronous: the device works while the host goes on.
        drafts_on_host: drafts are to be made by a host drafter at the end of this step.
        masked: a request of the round follows a grammar.
    """
    if not asynchronous or drafts_on_host:
        return LaunchMode.IN_STEP
    return LaunchMode.LATE_MASK if masked else LaunchMode.AHEAD


class DraftPlace:
    """For a drafter that works on the host and on the device: where it costs less.

    On the device a round is launched before its drafts are known, so missing ones are padding: it
    takes T(n + V). In step it takes T(n + mean pool) and exposes the host's time, which is learned
    by powers of two of n, and looked at again now and then.
    """

    def __init__(self, costs: CostTable, bucket_rows: Callable[[int], int]) -> None:
        """bucket_rows: the rows that are computed when so many are launched."""
        self._costs = costs
        self._bucket_rows = bucket_rows
        self._pool_ratio = 0.0
        self._exposed_s: dict[int, float] = {}
        self._in_step_rounds: Counter[int] = Counter()
        self._asked = 0

    def observe(self, record: RoundRecord) -> None:
        """Learn from a round that carried drafts."""
        if record.requests == 0 or record.carried_draft_tokens == 0:
            return
        most_tokens = record.requests * record.carried_draft_tokens
        self._pool_ratio += (record.pool_tokens / most_tokens - self._pool_ratio) / _EMA_ROUNDS
        if record.launch_mode is LaunchMode.IN_STEP:
            scale, seen_s = record.requests.bit_length(), record.times.exposed_host_s
            self._in_step_rounds[scale] += 1
            known_s = self._exposed_s.get(scale, seen_s)
            weight = 1 / min(self._in_step_rounds[scale], _EMA_ROUNDS)
            self._exposed_s[scale] = known_s + (seen_s - known_s) * weight

    def on_host(self, requests: int, verify_tokens: int, context_tokens: float) -> bool:
        """Whether a round over `requests` with at most `verify_tokens` drafts is better in step."""
        scale = requests.bit_length()
        self._asked += 1
        if self._in_step_rounds[scale] < _TRIED_ROUNDS or self._asked % _LOOK_AGAIN_ROUNDS == 0:
            return True
        found_tokens = round(self._pool_ratio * verify_tokens)
        in_step_s = self._round_s(requests + found_tokens, context_tokens) + self._exposed_s[scale]
        return in_step_s <= self._round_s(requests + verify_tokens, context_tokens)

    def _round_s(self, rows: int, context_tokens: float) -> float:
        return self._costs.target_s(self._bucket_rows(rows), context_tokens)
