"""Pauses between repetitions double up to a bound, and a token bucket limits a rate."""

import pytest
from hypothesis import given, strategies as st

from scheduler_core.backoff import Backoff, TokenBucket

_seconds = st.floats(min_value=0.001, max_value=1e6)


@pytest.mark.parametrize(
    ("backoff", "delays"),
    [
        pytest.param(Backoff(1.0, 8.0), [1.0, 2.0, 4.0, 8.0, 8.0, 8.0], id="doubles up to a power of two"),
        pytest.param(Backoff(0.2, 1.0), [0.2, 0.4, 0.8, 1.0, 1.0], id="the bound cuts a doubling short"),
        pytest.param(Backoff(3.0, 3.0), [3.0, 3.0, 3.0], id="constant"),
        pytest.param(Backoff(5.0, 3.0), [3.0, 3.0], id="the bound is below the first pause"),
    ],
)
def test_delays_double_up_to_the_bound(backoff: Backoff, delays: list[float]) -> None:
    assert [backoff.delay(attempt) for attempt in range(len(delays))] == pytest.approx(delays)


@given(shortest=_seconds, longest=_seconds, attempt=st.integers(0, 10**9))
def test_no_delay_is_shorter_than_the_one_before_or_exceeds_the_bound(
    shortest: float, longest: float, attempt: int
) -> None:
    backoff = Backoff(shortest, longest)
    delay = backoff.delay(attempt)
    following = backoff.delay(attempt + 1)
    assert min(shortest, longest) <= delay <= following <= longest
    assert following in (2 * delay, longest)


def test_burst_is_free_after_a_pause_and_the_next_token_comes_at_the_rate() -> None:
    bucket = TokenBucket(rate=2.0, burst=3)
    taken: list[float] = []
    for now in (0.0, 0.0, 0.0, 0.4, 0.5, 0.5, 1.0, 100.0, 100.0, 100.0, 100.0, 100.5):
        if bucket.ready_at <= now:
            bucket = bucket.after(now)
            taken.append(now)
    assert taken == [0.0, 0.0, 0.0, 0.5, 1.0, 100.0, 100.0, 100.0, 100.5]
