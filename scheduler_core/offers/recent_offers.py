"""How many offers were made lately while others were outstanding: the size of a burst. Between two waves of a burst no
offer may be outstanding for a moment. The next pod is not alone then, although it looks so.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

# At kube-scheduler's default client limits a decision shows up to 9 s after the answer.
PERIOD: Final = 10.0


@dataclass(frozen=True, slots=True)
class RecentOffers:
    """The count of offers in the current period and the one before, as an immutable value."""

    period_start: float = -math.inf  # when the current period began, in seconds
    in_period: int = 0  # the offers of the current period
    in_last_period: int = 0  # the offers of the period before

    def count(self, now: float) -> int:
        """The offers of at least the last `PERIOD` seconds, and at most twice that."""
        elapsed = now - self.period_start
        if elapsed < PERIOD:
            return self.in_period + self.in_last_period
        return self.in_period if elapsed < 2 * PERIOD else 0

    def add(self, now: float) -> RecentOffers:
        """Returns the count with one more offer, made at `now`."""
        elapsed = now - self.period_start
        if elapsed < PERIOD:
            return RecentOffers(self.period_start, self.in_period + 1, self.in_last_period)
        if elapsed < 2 * PERIOD:
            return RecentOffers(self.period_start + PERIOD, 1, self.in_period)
        return RecentOffers(now, 1)
