"""Signs of life on long streams: when to send one, and when the other side counts as gone.

A half-open connection never reports an error by itself, and a quiet stream looks like a dead one;
only messages of the application tell them apart.
"""

import random

from outrider_runtime.rpc import HEARTBEAT_DEADLINE_S, HEARTBEAT_INTERVAL_S, RECONNECT_CAP_S


class Heartbeat:
    """State of one stream's heartbeats; time comes in as monotonic seconds."""

    def __init__(
        self,
        now_s: float,
        interval_s: float = HEARTBEAT_INTERVAL_S,
        deadline_s: float = HEARTBEAT_DEADLINE_S,
    ) -> None:
        self._interval_s = interval_s
        self._deadline_s = deadline_s
        self._last_heard_s = now_s
        self._last_judged_s = now_s
        self._next_send_s = now_s
        self._sequence = 0

    def heard(self, now_s: float) -> None:
        """Any message of the other side is a sign of life."""
        self._last_heard_s = max(self._last_heard_s, now_s)

    def due(self, now_s: float) -> int | None:
        """The sequence number to send now, or None while the interval runs."""
        if now_s < self._next_send_s:
            return None
        self._next_send_s = now_s + self._interval_s
        self._sequence += 1
        return self._sequence

    def sent(self, now_s: float) -> None:
        """Another message went out, which is as good a sign of life."""
        self._next_send_s = now_s + self._interval_s

    def wait_s(self, now_s: float) -> float:
        """Until the next one is due."""
        return max(self._next_send_s - now_s, 0.0)

    def expired(self, now_s: float) -> bool:
        """True once nothing has been heard for the deadline; to be asked every second or so.

        If it has not been asked for long, this process itself was held up, and what the other side
        sent meanwhile waits to be read: the time does not count.
        """
        own_pause_s = now_s - self._last_judged_s
        self._last_judged_s = now_s
        if own_pause_s > self._deadline_s / 2:
            self._last_heard_s += own_pause_s
        return now_s - self._last_heard_s > self._deadline_s


class ReconnectBackoff:
    """Growing waits with full jitter, capped low: a peer that is back is found within seconds."""

    def __init__(self, first_s: float = 0.1, cap_s: float = RECONNECT_CAP_S) -> None:
        self._first_s = first_s
        self._cap_s = cap_s
        self._attempt = 0

    def next_wait_s(self) -> float:
        """Seconds to wait before the next attempt."""
        ceiling_s = min(self._cap_s, self._first_s * 2.0**self._attempt)
        self._attempt = min(self._attempt + 1, 16)
        return ceiling_s * random.uniform(0.5, 1.0)

    def reset(self) -> None:
        """Start over after a connection that worked."""
        self._attempt = 0
