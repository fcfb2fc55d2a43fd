"""Which reports become one Event: client-go's rules, at their limits."""

from __future__ import annotations

from app.scheduler.event_recorder import COMBINED, MAX_SIMILAR_MESSAGES, SIMILAR_INTERVAL, SPAM_LIMIT, EventCorrelator
from scheduler_core.model.kube import Pod

WEB = Pod("shop", "web", uid="1")
DB = Pod("shop", "db", uid="2")


def report_many(correlator: EventCorrelator, messages: int, now: float = 0.0) -> None:
    """Reports this number of different messages about one pod."""
    for number in range(messages):
        correlator.aggregate(WEB, "FailedScheduling", f"message {number}", now)


def test_the_tenth_message_is_combined() -> None:
    """The nine before it have Events of their own."""
    correlator = EventCorrelator()
    report_many(correlator, MAX_SIMILAR_MESSAGES - 2)
    key, message = correlator.aggregate(WEB, "FailedScheduling", "ninth", 0.0)
    assert (key, message) == (("1", "FailedScheduling", "ninth"), "ninth")
    key, message = correlator.aggregate(WEB, "FailedScheduling", "tenth", 0.0)
    assert (key, message) == (("1", "FailedScheduling", ""), f"{COMBINED}tenth")


def test_equal_messages_are_never_combined() -> None:
    """However often a message is reported, it is one."""
    correlator = EventCorrelator()
    keys = {correlator.aggregate(WEB, "FailedScheduling", "same", 0.0)[0] for _ in range(100)}
    assert keys == {("1", "FailedScheduling", "same")}


def test_other_pods_and_reasons_are_not_combined_with_them() -> None:
    """Similar reports have the pod and the reason in common."""
    correlator = EventCorrelator()
    report_many(correlator, 20)
    assert correlator.aggregate(DB, "FailedScheduling", "too small", 0.0)[1] == "too small"
    assert correlator.aggregate(WEB, "Scheduled", "somewhere", 0.0)[1] == "somewhere"


def test_combining_ends_after_ten_minutes_without_a_report() -> None:
    """A report within the ten minutes prolongs it."""
    correlator = EventCorrelator()
    report_many(correlator, 20)
    assert correlator.aggregate(WEB, "FailedScheduling", "late", SIMILAR_INTERVAL)[1] == f"{COMBINED}late"
    assert correlator.aggregate(WEB, "FailedScheduling", "later", 2 * SIMILAR_INTERVAL + 1)[1] == "later"


def test_a_pod_has_a_burst_of_events_and_then_one_every_five_minutes() -> None:
    """The limit of one pod leaves that of others as it is."""
    correlator = EventCorrelator()
    assert [correlator.may_write(WEB, 0.0) for _ in range(SPAM_LIMIT.burst + 1)] == [True] * SPAM_LIMIT.burst + [False]
    assert correlator.may_write(DB, 0.0)
    assert not correlator.may_write(WEB, 299.0)
    assert correlator.may_write(WEB, 300.5)
    assert not correlator.may_write(WEB, 301.0)
