"""The size of a burst: offers of the last ten to twenty seconds."""

from hypothesis import given
from hypothesis import strategies as st

from scheduler_core.offers.ledger import PERIOD, RecentOffers


@given(times=st.lists(st.floats(0, 100), max_size=30).map(sorted), wait=st.floats(0, 50))
def test_every_offer_of_the_last_period_counts_and_none_older_than_two(times: list[float], wait: float) -> None:
    recent = RecentOffers()
    for time in times:
        recent = recent.add(time)
    now = (times[-1] if times else 0.0) + wait
    at_least = sum(1 for time in times if now - time < PERIOD)
    at_most = sum(1 for time in times if now - time <= 2 * PERIOD)
    assert at_least <= recent.count(now) <= at_most
