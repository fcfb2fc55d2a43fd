"""The election timings of tests, as values and as flags."""

from __future__ import annotations

from typing import Final

from scheduler_core.leadership.election import ElectionTiming

IN_PROCESS: Final = ElectionTiming(lease_duration=3.0, renew_deadline=2.0, retry_period=0.5)
ON_A_CLUSTER: Final = ElectionTiming(lease_duration=4.0, renew_deadline=3.0, retry_period=0.5)
OF_A_CHART: Final = ElectionTiming(lease_duration=2.0, renew_deadline=1.5, retry_period=0.3)
# No change of the leader by chance.
OF_A_BENCHMARK: Final = ElectionTiming(lease_duration=60.0, renew_deadline=50.0, retry_period=2.0)


def election_flags(timing: ElectionTiming) -> tuple[str, ...]:
    """The flags of `serve` for a timing."""
    periods = {
        "--lease-duration": timing.lease_duration,
        "--renew-deadline": timing.renew_deadline,
        "--retry-period": timing.retry_period,
    }
    return tuple(word for flag, seconds in periods.items() for word in (flag, f"{seconds:g}"))
