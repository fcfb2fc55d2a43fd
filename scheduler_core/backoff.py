"""Exponential back-off: each pause is twice as long as the previous one, up to a bound.

Neither clock nor randomness is used here. A caller that needs jitter adds it to the returned delay.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

# 2.0**1024 overflows. With this many doublings any pause has reached its bound.
_MAX_DOUBLINGS: Final = 1000


@dataclass(frozen=True, slots=True)
class Backoff:
    """Doubling pauses between `shortest` and `longest` seconds.

    Attributes:
        shortest: the pause before the first repetition
        longest: the upper bound of every pause
    """

    shortest: float
    longest: float

    def delay(self, attempt: int) -> float:
        """Seconds to wait before repetition number `attempt`; 0 is the first repetition."""
        return min(self.longest, self.shortest * 2.0 ** min(attempt, _MAX_DOUBLINGS))
