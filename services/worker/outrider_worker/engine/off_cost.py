"""What a plain round over the same requests would have taken: T_off(n) = T(n) + c(n). Pure.

c(n), the host time a plain round leaves exposed, is learned from plain rounds alone, by powers of
two of n. Until one has run, the least exposed time seen stands in for it: host time that only
speculation causes must not be forgiven.
"""

from collections.abc import Callable

from outrider_worker.engine.costs import CostTable
from outrider_worker.engine.records import RoundRecord

_EMA_ROUNDS = 16


class OffCost:
    """The cost table's T(n), and c(n) as it is met."""

    def __init__(self, costs: CostTable, bucket_rows: Callable[[int], int]) -> None:
        """bucket_rows: the rows that are computed when so many are launched."""
        self._costs = costs
        self._bucket_rows = bucket_rows
        self._plain_host_s: dict[int, float] = {}
        self._least_host_s: dict[int, float] = {}

    def observe(self, record: RoundRecord) -> None:
        """Learn c(n) from a round."""
        scale, host_s = record.requests.bit_length(), record.times.exposed_host_s
        self._least_host_s[scale] = min(host_s, self._least_host_s.get(scale, host_s))
        if record.carried_draft_tokens == 0 and record.next_draft_tokens == 0:
            known_s = self._plain_host_s.get(scale, host_s)
            self._plain_host_s[scale] = known_s + (host_s - known_s) / _EMA_ROUNDS

    def seconds(self, record: RoundRecord) -> float:
        """T_off for the requests of a round that has been observed."""
        scale = record.requests.bit_length()
        host_s = self._plain_host_s.get(scale, self._least_host_s[scale])
        context_tokens = record.request_context_tokens / record.requests
        rows = self._bucket_rows(record.requests)
        return self._costs.target_s(rows, context_tokens) + host_s
