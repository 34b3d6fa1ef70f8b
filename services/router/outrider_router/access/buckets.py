"""A rate limit as a bucket that fills steadily. Pure: time is an argument."""

from dataclasses import dataclass, field

_MINUTE_S = 60.0


@dataclass
class Bucket:
    """So many units a minute, all of which may be used at once after a minute's rest.

    What costs more than is there may still be taken (`take`), as answers are whose length nobody
    knew; the debt is paid before anything passes again.
    """

    per_minute: int
    level: float = field(init=False)
    _at_s: float = field(init=False, default=float("-inf"))

    def __post_init__(self) -> None:
        self.level = float(self.per_minute)

    def wait_s(self, units: float, now_s: float) -> float:
        """Seconds until so many may be taken, 0 for at once; more than all there is means all."""
        self._fill(now_s)
        lacking = min(units, float(self.per_minute)) - self.level
        return max(lacking, 0.0) * _MINUTE_S / self.per_minute

    def take(self, units: float, now_s: float) -> None:
        """Use units."""
        self._fill(now_s)
        self.level -= units

    def remaining(self, now_s: float) -> int:
        """Whole units that are left."""
        self._fill(now_s)
        return max(int(self.level), 0)

    def reset_s(self, now_s: float) -> float:
        """Seconds until it is full again."""
        return self.wait_s(self.per_minute, now_s)

    def _fill(self, now_s: float) -> None:
        if now_s > self._at_s:
            gained = (now_s - self._at_s) * self.per_minute / _MINUTE_S
            self.level = min(self.level + gained, float(self.per_minute))
            self._at_s = now_s
