"""The record of offers: what it keeps, how large it may be, and what is refused."""

import zlib
from typing import Any

import msgspec
import pytest

from scheduler_core.offers.handover_record import (
    MAX_BYTES,
    MAX_NAME_BYTES,
    HandoverRecord,
    RecordError,
    RecordHead,
    decode_record,
    encode_record,
    unschedulable_digest,
)
from scheduler_core.offers.ledger import Ledger, step
from scheduler_core.offers.outstanding_offer import ObservedPod, Offered
from scheduler_core.structs import replace

HEAD = RecordHead("extender-1_ab12cd34", 7)
POD = ObservedPod("u-1", "default", "web-0", version=10, nominated_node="a", unschedulable="no space")


def ledger_of(*events: tuple[float, Any]) -> Ledger:
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
    return decode_record(encode_record(ledger, head, ledger.time).data)


def plain_record(**changes: Any) -> dict[str, Any]:
    """The content of a record with one offer, changed."""
    content = {
        "format": 2,
        "holder": "extender-1",
        "transitions": 7,
        "final": True,
        "complete": True,
        "versions": {},
        "offers_made": 1,
        "offers": [{"uid": "u-1", "nodes": ["a", "b"]}],
    }
    return {**content, **changes}


def test_an_offer_with_a_name_that_kubernetes_does_not_allow_is_left_out() -> None:
    """A request may say anything, and must not make the record unreadable."""
    ledger = ledger_of(
        (100.0, Offered(POD, frozenset("abc"))), (100.0, Offered(replace(POD, uid="u" * 300), frozenset("abc")))
    )
    record = record_of(ledger)
    assert [recorded.offered.pod.uid for recorded in record.offers] == [POD.uid]
    assert not record.head.complete


def test_the_head_names_the_leadership() -> None:
    head = replace(HEAD, final=True, versions={"pods": "12"})
    assert record_of(Ledger(), head).head == head


def test_equal_conditions_have_equal_digests() -> None:
    assert unschedulable_digest("") == ""
    assert unschedulable_digest("no") == unschedulable_digest("no") != unschedulable_digest("yes")


@pytest.mark.parametrize(("count", "nodes"), [(400, 20), (3000, 1), (400, 5000), (1000, 20)])
def test_a_burst_fits(count: int, nodes: int) -> None:
    record = encode_record(many_offers(count, nodes), HEAD, 3.0)
    assert record.complete
    assert len(record.data) < MAX_BYTES
    assert len(decode_record(record.data).offers) == count


def test_wide_offers_count_everywhere() -> None:
    """The names of their nodes would be too long; narrow ones keep theirs."""
    ledger = many_offers(300, 2000)
    narrow = Offered(replace(POD, uid="narrow"), frozenset("ab"), ("v",))
    ledger, _ = step(ledger, narrow, 30.0)
    record = encode_record(ledger, HEAD, 30.0)
    assert record.complete
    offers = {entry.offered.pod.uid: entry for entry in decode_record(record.data).offers}
    assert (offers["narrow"].offered.nodes, offers["narrow"].everywhere) == (frozenset("ab"), False)
    named = [entry for entry in offers.values() if not entry.everywhere]
    assert 1 < len(named) < 300
    assert sum(len(name) for entry in named for name in entry.offered.nodes) < MAX_NAME_BYTES


def test_the_newest_offers_of_fewest_nodes_stay_if_not_all_fit() -> None:
    ledger = many_offers(20_000, 1)
    ledger, _ = step(ledger, Offered(replace(POD, uid="wide"), frozenset(f"w{n}" for n in range(100)), ("v",)), 30.0)
    record = encode_record(ledger, HEAD, 30.0)
    assert not record.complete
    assert len(record.data) <= MAX_BYTES
    decoded = decode_record(record.data)
    assert not decoded.head.complete
    numbers = {entry.offered.number for entry in decoded.offers}
    assert numbers == set(range(20_001 - len(numbers), 20_001)), "the newest ones, without the wide one"


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        pytest.param(plain_record(format=1), "format 1", id="format"),
        pytest.param({"format": "1"}, "cannot be read", id="type"),
        pytest.param([], "cannot be read", id="no object"),
        pytest.param(plain_record(transitions=-1), "cannot be read", id="negative number"),
        pytest.param(plain_record(offers=[{"uid": ""}]), "cannot be read", id="no UID"),
        pytest.param(plain_record(offers=[{"uid": "u", "age": -1}]), "cannot be read", id="age"),
        pytest.param(plain_record(offers=[{"uid": "u"}, {"uid": "u"}]), "twice", id="pod twice"),
        pytest.param(plain_record(offers=[{"uid": "u", "nodes": "some"}]), "cannot be read", id="other nodes"),
        pytest.param(plain_record(offers=[{"uid": "u", "nodes": [""]}]), "cannot be read", id="node without a name"),
        pytest.param(plain_record(offers=[{"uid": "u", "nodes": [0]}]), "cannot be read", id="no name"),
    ],
)
def test_a_wrong_record_is_refused(content: Any, problem: str) -> None:
    with pytest.raises(RecordError, match=problem):
        decode_record(msgspec.json.encode(content))


def test_a_cut_record_is_refused() -> None:
    """So is one with something behind it."""
    data = msgspec.json.encode(plain_record())
    for wrong in (data[:-1], data[:10], b"", data + b"x", b"x" + data):
        with pytest.raises(RecordError):
            decode_record(wrong)


def test_a_record_of_the_release_before_is_refused() -> None:
    old = plain_record(format=1, nodes=["a"], sets=[[0]], offers=[{"uid": "u-1", "nodes": 0}])
    with pytest.raises(RecordError, match="cannot be read"):
        decode_record(zlib.compress(msgspec.json.encode(old), 1))


def test_a_record_that_is_too_large_is_not_read() -> None:
    with pytest.raises(RecordError, match=f"more than {MAX_BYTES}"):
        decode_record(b"x" * (MAX_BYTES + 1))
