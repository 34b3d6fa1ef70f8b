"""How a step is launched, and where a drafter that has the choice works. Pure.

*ahead*: the host launches a round before it has read the last one. *late mask*: as above, but the
round is judged only when the host has made grammar masks, which need the last round's tokens.
*in step*: the host reads first; a host drafter can do no other, and on a device that has finished
when a launch returns there is nothing to gain from running ahead.
"""

from outrider_worker.engine.costs import CostTable
from outrider_worker.engine.records import LaunchMode, RoundRecord

_EMA_ROUNDS = 32
# Rounds tried in step before its exposed host time is believed.
_TRIED_ROUNDS = 8


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
    takes T(n + V). In step it takes T(n + mean pool) and exposes the host's time.
    """

    def __init__(self, costs: CostTable) -> None:
        self._costs = costs
        self._pool_ratio = 0.0
        self._exposed_s = 0.0
        self._in_step_rounds = 0

    def observe(self, record: RoundRecord) -> None:
        """Learn from a round that carried drafts."""
        if record.requests == 0 or record.carried_draft_tokens == 0:
            return
        most_tokens = record.requests * record.carried_draft_tokens
        self._pool_ratio += (record.pool_tokens / most_tokens - self._pool_ratio) / _EMA_ROUNDS
        if record.launch_mode is LaunchMode.IN_STEP:
            self._in_step_rounds += 1
            weight = 1 / min(self._in_step_rounds, _EMA_ROUNDS)
            self._exposed_s += (record.times.exposed_host_s - self._exposed_s) * weight

    def on_host(self, requests: int, verify_tokens: int, context_tokens: float) -> bool:
        """Whether a round over `requests` with at most `verify_tokens` drafts is better in step."""
        if self._in_step_rounds < _TRIED_ROUNDS:
            return True
        found_tokens = round(self._pool_ratio * verify_tokens)
        in_step_s = self._costs.target_s(requests + found_tokens, context_tokens) + self._exposed_s
        return in_step_s <= self._costs.target_s(requests + verify_tokens, context_tokens)
