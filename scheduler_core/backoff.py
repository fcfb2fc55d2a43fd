"""How often something is repeated: exponential back-off after failures, and a token bucket for a rate.

Neither clock nor randomness is used here; times are seconds on the caller's clock. A caller that needs jitter adds it to the
returned delay.
"""

import math

from scheduler_core.structs import Struct, replace

# 2.0**1024 overflows. With this many doublings any pause has reached its bound.
_MAX_DOUBLINGS = 1000


class Backoff(Struct, frozen=True):
    """Doubling pauses between `shortest` and `longest` seconds."""

    shortest: float  # the pause before the first repetition
    longest: float  # the upper bound of every pause

    def delay(self, attempt: int) -> float:
        """Seconds to wait before repetition number `attempt`; 0 is the first repetition."""
        return min(self.longest, self.shortest * 2.0 ** min(attempt, _MAX_DOUBLINGS))


class TokenBucket(Struct, frozen=True):
    """Limits a rate: at most `burst` + `rate` * t times in any t seconds."""

    rate: float  # times per second in the long run
    burst: int  # times at once after a pause
    full_at: float = -math.inf  # when the bucket will be full again

    @property
    def ready_at(self) -> float:
        return self.full_at - (self.burst - 1) * (1 / self.rate)

    def after(self, now: float) -> "TokenBucket":
        """Returns the bucket after a token was taken. That must not be before `ready_at`."""
        return replace(self, full_at=max(self.full_at, now) + 1 / self.rate)
