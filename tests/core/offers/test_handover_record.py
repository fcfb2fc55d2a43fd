"""The record of offers: what it keeps, how large it may be, and what is refused."""

from __future__ import annotations

import tracemalloc
import zlib
from base64 import b64encode
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from scheduler_core.offers.events import ObservedPod, Offered
from scheduler_core.offers.handover_record import (
    MAX_BYTES,
    MAX_TEXT_BYTES,
    HandoverRecord,
    RecordEncoder,
    RecordError,
    RecordHead,
    decode_record,
    unschedulable_digest,
)
from scheduler_core.offers.ledger import Ledger, step

HEAD = RecordHead("extender-1_ab12cd34", 7)
POD = ObservedPod("u-1", "default", "web-0", version=10, nominated_node="a", unschedulable="no space")


def ledger_of(*events: tuple[float, Any]) -> Ledger:
    """The ledger after events at some times."""
    ledger = Ledger()
    for now, event in events:
        ledger, _ = step(ledger, event, now)
    return ledger


def many_offers(count: int, nodes: int, *, distinct: bool = False) -> Ledger:
    """A ledger with offers of so many nodes each; `distinct` offers have different ones."""
    names = [f"node-{number:05d}" for number in range(nodes + (count if distinct else 0))]
    return ledger_of(
        *(
            (
                number / 1000,
                Offered(
                    ObservedPod(f"{number:08x}-0000-4000-8000-{number * 7919:012x}", "default", f"web-{number}"),
                    frozenset(names[number : number + nodes] if distinct else names[:nodes]),
                    ("volume",),
                ),
            )
            for number in range(count)
        )
    )


def record_of(ledger: Ledger, head: RecordHead = HEAD) -> HandoverRecord:
    """The ledger as its record says it."""
    return decode_record(RecordEncoder().encode(ledger, head, ledger.time).data)


def compress(record: Any) -> bytes:
    """A record with any content."""
    return zlib.compress(msgspec.json.encode(record))


def plain_record(**changes: Any) -> dict[str, Any]:
    """The content of a record with one offer, changed."""
    content = {
        "format": 1,
        "holder": "extender-1",
        "transitions": 7,
        "final": True,
        "complete": True,
        "versions": {},
        "nodes": ["a", "b"],
        "sets": [[0, 1]],
        "offers_made": 1,
        "offers": [{"uid": "u-1", "nodes": 0}],
    }
    return {**content, **changes}


def test_an_offer_keeps_what_decides_about_its_end() -> None:
    """Its age instead of its time, a digest instead of the condition's text, and no volumes."""
    offered = Offered(POD, frozenset("abc"), ("volume",), "b", ("unplaced",))
    ledger = ledger_of((100.0, offered), (101.0, replace(POD, version=11, unschedulable="still no space")))
    [recorded] = record_of(replace(ledger, time=101.5)).offers
    digest = unschedulable_digest("no space")
    assert recorded.offered == Offered(replace(POD, unschedulable=digest), frozenset("abc"), selected_node="b")
    assert (recorded.age, recorded.unschedulable_age) == (1.5, 0.5)
    assert (recorded.number, recorded.version, recorded.narrowed_age) == (1, 11, None)


def test_a_hold_keeps_its_priority_and_when_it_narrowed() -> None:
    """It goes on to hold the room that preemption clears."""
    held = Offered(replace(POD, nominated_node=""), frozenset("abc"), priority=7)
    ledger = ledger_of((100.0, held), (101.0, replace(POD, version=11, nominated_node="b", unschedulable="no")))
    [recorded] = record_of(replace(ledger, time=104.0)).offers
    assert (recorded.offered.nodes, recorded.offered.priority, recorded.narrowed_age) == (frozenset("b"), 7, 3.0)


def test_an_offer_with_a_name_that_kubernetes_does_not_allow_is_left_out() -> None:
    """A request may say anything, and must not make the record unreadable."""
    ledger = ledger_of(
        (100.0, Offered(POD, frozenset("abc"))), (100.0, Offered(replace(POD, uid="u" * 300), frozenset("abc")))
    )
    record = record_of(ledger)
    assert [recorded.offered.pod.uid for recorded in record.offers] == [POD.uid]
    assert not record.head.complete


def test_the_head_names_the_leadership() -> None:
    """The successor compares it with the Lease."""
    head = replace(HEAD, final=True, versions={"pods": "12"})
    assert record_of(Ledger(), head).head == head


def test_an_offer_without_nodes_keeps_none() -> None:
    """Its volumes may go anywhere."""
    [recorded] = record_of(ledger_of((0.0, Offered(POD, frozenset(), unplaced_volumes=("v",))))).offers
    assert recorded.offered.nodes == frozenset()


def test_equal_conditions_have_equal_digests() -> None:
    """No condition has none."""
    assert unschedulable_digest("") == ""
    assert unschedulable_digest("no") == unschedulable_digest("no") != unschedulable_digest("yes")


@pytest.mark.parametrize(("count", "nodes"), [(400, 20), (3000, 1), (400, 5000)])
def test_a_burst_fits(count: int, nodes: int) -> None:
    """Equal sets of nodes are written once."""
    record = RecordEncoder().encode(many_offers(count, nodes), HEAD, 3.0)
    assert record.complete
    assert len(record.data) < MAX_BYTES
    assert len(decode_record(record.data).offers) == count


def test_wide_sets_of_different_nodes_fit() -> None:
    """They are bit sets."""
    record = RecordEncoder().encode(many_offers(300, 2000, distinct=True), HEAD, 3.0)
    assert record.complete
    offers = {entry.offered.pod.name: entry.offered.nodes for entry in decode_record(record.data).offers}
    assert offers["web-299"] == frozenset(f"node-{number:05d}" for number in range(299, 2299))


def test_the_newest_offers_of_fewest_nodes_stay_if_not_all_fit() -> None:
    """The record says that it is not complete."""
    ledger = many_offers(20_000, 1)
    ledger, _ = step(ledger, Offered(replace(POD, uid="wide"), frozenset(f"w{n}" for n in range(100)), ("v",)), 30.0)
    record = RecordEncoder().encode(ledger, HEAD, 30.0)
    assert not record.complete
    assert len(record.data) <= MAX_BYTES
    decoded = decode_record(record.data)
    assert not decoded.head.complete
    numbers = {entry.number for entry in decoded.offers}
    assert numbers == set(range(20_001 - len(numbers), 20_001)), "the newest ones, without the wide one"


def test_an_encoder_can_be_used_again_with_other_nodes() -> None:
    """Positions of names stay, and names without an offer are dropped."""
    encoder = RecordEncoder()
    for names in ("abc", "cde", "a"):
        ledger = ledger_of((0.0, Offered(POD, frozenset(names), ("v",))))
        [recorded] = decode_record(encoder.encode(ledger, HEAD, 0.0).data).offers
        assert recorded.offered.nodes == frozenset(names)
    encoder.encode(Ledger(), HEAD, 0.0)
    text = zlib.decompress(encoder.encode(ledger_of((0.0, Offered(POD, frozenset("z"), ("v",)))), HEAD, 0.0).data)
    assert msgspec.json.decode(text)["nodes"] == ["z"]


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        pytest.param(plain_record(format=2), "format 2", id="format"),
        pytest.param({"format": "1"}, "cannot be read", id="type"),
        pytest.param([], "cannot be read", id="no object"),
        pytest.param(plain_record(transitions=-1), "cannot be read", id="negative number"),
        pytest.param(plain_record(offers=[{"uid": ""}]), "cannot be read", id="no UID"),
        pytest.param(plain_record(offers=[{"uid": "u", "age": -1}]), "cannot be read", id="age"),
        pytest.param(plain_record(offers=[{"uid": "u"}, {"uid": "u"}]), "twice", id="pod twice"),
        pytest.param(plain_record(offers=[{"uid": "u", "nodes": 1}]), "does not have", id="missing set"),
        pytest.param(plain_record(nodes=["a", "a"]), "twice", id="node twice"),
        pytest.param(plain_record(nodes=["a", ""]), "without a name", id="node without a name"),
        pytest.param(plain_record(sets=[[2]]), "does not name", id="missing node"),
        pytest.param(plain_record(sets=[[-1]]), "does not name", id="negative position"),
        pytest.param(plain_record(sets=[[]]), "empty set", id="empty set"),
        pytest.param(plain_record(sets=["!"]), "cannot be read", id="no bit set"),
        pytest.param(plain_record(sets=[b64encode(b"\xff").decode()]), "does not name", id="missing bit"),
        pytest.param(plain_record(sets=[b64encode(b"\1" * 100).decode()]), "too long", id="long bit set"),
    ],
)
def test_a_wrong_record_is_refused(content: Any, problem: str) -> None:
    """The error says what is wrong."""
    with pytest.raises(RecordError, match=problem):
        decode_record(compress(content))


def test_a_cut_record_is_refused() -> None:
    """So is one with something behind it."""
    data = compress(plain_record())
    for wrong in (data[:-1], data[:10], b"", data + b"x", b"x" + data):
        with pytest.raises(RecordError):
            decode_record(wrong)


def test_a_record_that_is_too_large_is_not_decompressed() -> None:
    """Its compressed size is checked first."""
    with pytest.raises(RecordError, match=f"more than {MAX_BYTES}"):
        decode_record(b"x" * (MAX_BYTES + 1))


def test_a_small_record_of_a_huge_text_takes_little_memory() -> None:
    """Decompression ends at the limit."""
    bomb = zlib.compress(b"[" + b"0," * 50_000_000 + b"0]", 9)
    assert len(bomb) < MAX_BYTES
    tracemalloc.start()
    try:
        with pytest.raises(RecordError, match=f"more than {MAX_TEXT_BYTES}"):
            decode_record(bomb)
        assert tracemalloc.get_traced_memory()[1] < 4 * MAX_TEXT_BYTES
    finally:
        tracemalloc.stop()


def test_sets_with_too_many_nodes_in_all_are_refused() -> None:
    """A bit set is far smaller than the names that it stands for."""
    nodes = [str(number) for number in range(16_000)]
    wide = b64encode(b"\xff" * 2000).decode()
    with pytest.raises(RecordError, match="in all sets"):
        decode_record(compress(plain_record(nodes=nodes, sets=[wide] * 200)))
