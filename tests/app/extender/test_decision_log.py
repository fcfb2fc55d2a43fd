"""The log of the latest decisions: order, bounds, filters and pages; and from where /filter is called, as /state shows it."""

import tracemalloc
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest

from app.api.app_state import MAX_CALLERS, DecisionLog, RecentCallers
from scheduler_core.decide.decision import (
    MAX_DECISIONS,
    MAX_ERROR_LENGTH,
    MAX_LENGTH,
    MAX_OFFERED,
    MAX_REASONS,
    DecisionOutcome,
    DecisionQuery,
    DecisionResult,
)
from scheduler_core.model.kube import Pod
from tests.worlds.service import NODES, db_pod, small_service

NOW = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
MAX_ENTRY_BYTES = 32_000


def log_of(*results: tuple[str, DecisionResult]) -> DecisionLog:
    """A log with one decision per pod, a second apart. They are decisions of /filter."""
    times = (NOW + timedelta(seconds=number) for number in range(len(results)))
    log = DecisionLog(lambda: next(times))
    for key, result in results:
        namespace, _, name = key.partition("/")
        log.record("filter", Pod(namespace, name, uid=f"uid-{name}"), result)
    return log


def pods(log: DecisionLog, query: DecisionQuery | None = None) -> list[str]:
    return [f"{entry.namespace}/{entry.pod}" for entry in log.page(query or DecisionQuery()).entries]


def mixed_log() -> DecisionLog:
    """Four decisions about three pods of two namespaces."""
    return log_of(
        ("a/x", DecisionResult(3, refused={"full": 3})),
        ("b/x", DecisionResult(3, 1, ["node-1"], {"full": 2})),
        ("a/y", DecisionResult(3, error="no such claim")),
        ("a/x", DecisionResult(3, 3, ["node-1", "node-2", "node-3"])),
    )


def test_an_entry_has_what_was_decided() -> None:
    result = DecisionResult(5, 2, ["node-2", "node-1"], {"full": 1, "cordoned": 2}, "", 0.0012345, observed=True)
    (entry,) = log_of(("shop/orders-0", result)).page(DecisionQuery()).entries
    assert (entry.time, entry.verb, entry.namespace, entry.pod, entry.uid) == (
        NOW,
        "filter",
        "shop",
        "orders-0",
        "uid-orders-0",
    )
    assert (entry.nodes, entry.fits, entry.offered, entry.observed) == (5, 2, ("node-2", "node-1"), True)
    assert entry.refused == (("cordoned", 2), ("full", 1))
    assert (entry.milliseconds, entry.number) == (1.234, 1767323045678901)


def test_the_latest_come_first() -> None:
    assert pods(mixed_log()) == ["a/x", "a/y", "b/x", "a/x"]


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        (DecisionQuery(pod="x"), ["a/x", "b/x", "a/x"]),
        (DecisionQuery(namespace="b"), ["b/x"]),
        (DecisionQuery(namespace="a", pod="x"), ["a/x", "a/x"]),
        (DecisionQuery(outcome=DecisionOutcome.FITS), ["a/x", "b/x"]),
        (DecisionQuery(outcome=DecisionOutcome.REFUSED), ["a/x"]),
        (DecisionQuery(outcome=DecisionOutcome.ERROR), ["a/y"]),
        (DecisionQuery(namespace="a/x"), []),
        (DecisionQuery(limit=2), ["a/x", "a/y"]),
    ],
    ids=str,
)
def test_a_query_selects(query: DecisionQuery, expected: list[str]) -> None:
    assert pods(mixed_log(), query) == expected


def test_pages_continue_where_the_last_one_ended() -> None:
    times = (NOW + timedelta(seconds=number) for number in range(6))
    log = DecisionLog(lambda: next(times))
    for name in "abcde":
        log.record("filter", Pod("shop", name), DecisionResult(1))
    first = log.page(DecisionQuery(limit=2))
    log.record("filter", Pod("shop", "late"), DecisionResult(1))
    second = log.page(DecisionQuery(limit=2, before=first.next_before))
    third = log.page(DecisionQuery(limit=2, before=second.next_before))
    assert [[entry.pod for entry in page.entries] for page in (first, second, third)] == [["e", "d"], ["c", "b"], ["a"]]
    assert third.next_before is None


def test_a_full_page_may_be_the_last_one() -> None:
    assert mixed_log().page(DecisionQuery(limit=4)).next_before is None


@pytest.mark.parametrize("step", [timedelta(0), timedelta(seconds=-1)])
def test_numbers_grow(step: timedelta) -> None:
    times = (NOW + number * step for number in range(10))
    log = DecisionLog(lambda: next(times))
    for _ in range(10):
        log.record("preempt", Pod("shop", "x"), DecisionResult(1))
    numbers = [entry.number for entry in log.page(DecisionQuery()).entries]
    assert numbers == sorted(set(numbers), reverse=True)
    assert len(numbers) == 10


def test_the_oldest_are_forgotten() -> None:
    log = DecisionLog()
    for number in range(MAX_DECISIONS + 7):
        log.record("filter", Pod("shop", f"pod-{number}"), DecisionResult(1))
    page = log.page(DecisionQuery())
    assert (len(page.entries), page.recorded) == (MAX_DECISIONS, MAX_DECISIONS + 7)
    assert page.entries[-1].pod == "pod-7"


def test_only_some_of_the_nodes_that_fit_are_read() -> None:
    names = iter([f"node-{number}" for number in range(5000)])
    (entry,) = log_of(("shop/x", DecisionResult(5000, 5000, names))).page(DecisionQuery()).entries
    assert entry.offered == tuple(f"node-{number}" for number in range(MAX_OFFERED))
    assert entry.fits == 5000
    assert next(names) == f"node-{MAX_OFFERED}"


def test_the_most_frequent_reasons_are_kept() -> None:
    """A plug-in may have a text for each node."""
    refused = {f"reason {number:02}": number for number in range(1, 30)}
    (entry,) = log_of(("shop/x", DecisionResult(435, refused=refused))).page(DecisionQuery()).entries
    assert len(entry.refused) == MAX_REASONS
    assert entry.refused[0] == ("reason 29", 29)


def long(letter: str) -> Callable[[int], str]:
    return lambda number: f"{letter * 1_000_000}{number}"


@pytest.mark.parametrize("letter", ["x", "\U0001f600", "\x1b"])
def test_long_texts_are_cut(letter: str) -> None:
    text = long(letter)
    result = DecisionResult(99, 50, map(text, range(50)), {text(number): 1 for number in range(10)}, text(0))
    log = DecisionLog()
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    for number in range(3):
        log.record("filter", Pod(text(number), text(number), uid=text(number)), result)
    size = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    entry = log.page(DecisionQuery()).entries[0]
    assert {len(name) for name in (entry.pod, entry.namespace, entry.uid)} == {MAX_LENGTH}
    assert {len(name) for name, _ in entry.refused} == {MAX_LENGTH}
    assert len(entry.error) == MAX_ERROR_LENGTH
    assert size <= 3 * MAX_ENTRY_BYTES


def test_callers_are_counted_by_address_and_form() -> None:
    time = [10.0]
    callers = RecentCallers(lambda: time[0])
    for whole_nodes in (False, False, True):
        callers.record("10.0.0.1", whole_nodes=whole_nodes)
        time[0] += 1
    assert [tuple(entry.model_dump().values()) for entry in callers.answers()] == [
        ("10.0.0.1", "names", 2, 2.0),
        ("10.0.0.1", "nodes", 1, 1.0),
    ]


def test_the_latest_callers_are_remembered() -> None:
    callers = RecentCallers()
    for number in range(2 * MAX_CALLERS):
        callers.record(f"10.0.0.{number:03}", whole_nodes=False)
    assert next(entry.address for entry in callers.answers()) == f"10.0.0.{MAX_CALLERS:03}"
    assert len(callers.answers()) == MAX_CALLERS


async def test_state_shows_the_form_of_a_request() -> None:
    async with small_service() as client:
        await client.post("/filter", json={"Pod": db_pod(), "NodeNames": list(NODES)})
        items = [{"metadata": {"name": name}} for name in NODES]
        await client.post("/filter", json={"Pod": db_pod(), "Nodes": {"items": items}})
        callers = (await client.get("/state")).json()["callers"]
    assert [(entry["form"], entry["requests"]) for entry in callers] == [("names", 1), ("nodes", 1)]
