"""Whatever a record of offers holds, it is decoded as it was encoded, or refused."""

from collections import Counter
from typing import Any

import msgspec
from hypothesis import given, strategies as st

from scheduler_core.offers import handover_record
from scheduler_core.offers.ledger import Ledger, step
from scheduler_core.offers.outstanding_offer import ObservedPod, Offered
from tests.examples import examples

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
pods = st.builds(
    ObservedPod,
    uid=texts.filter(bool),
    namespace=texts,
    name=texts,
    version=st.integers(0, 2**62),
    nominated_node=texts,
    unschedulable=texts,
)
offers = st.builds(
    Offered,
    pod=pods,
    nodes=st.frozensets(st.integers(0, 3000).map(str), max_size=8)
    | st.builds(lambda start: frozenset(map(str, range(start, start + 400))), st.integers(0, 50)),
    volumes=st.just(("volume",)),
    selected_node=texts,
    unplaced_volumes=st.sampled_from([(), ("unplaced",)]),
)


@st.composite
def ledgers(draw: st.DrawFn) -> Ledger:
    ledger = Ledger()
    for offered in draw(st.lists(offers, max_size=8)):
        ledger, _ = step(ledger, offered, max(0.0, ledger.time) + draw(st.sampled_from([0.0, 0.25, 5.0])))
    return ledger


def encode(ledger: Ledger) -> bytes:
    return handover_record.encode_record(ledger, handover_record.RecordHead("leader", 3, final=True), ledger.time).data


@given(ledgers())
def test_a_decoded_record_has_every_offer(ledger: Ledger) -> None:
    """With its pod, nodes and age."""
    record = handover_record.decode_record(encode(ledger))
    decoded = {entry.offered.pod.uid: entry for entry in record.offers}
    assert decoded.keys() == dict(ledger.offers).keys()
    for uid, offer in ledger.offers.items():
        entry = decoded[uid]
        pod = entry.offered.pod
        assert (pod.namespace, pod.name, pod.version) == (offer.pod.namespace, offer.pod.name, offer.pod.version)
        assert pod.nominated_node == offer.pod.nominated_node
        assert pod.unschedulable == handover_record.unschedulable_digest(offer.pod.unschedulable)
        assert (entry.offered.nodes, entry.offered.selected_node) == (offer.nodes, offer.selected_node)
        assert (-entry.offered.made_at, entry.offered.number) == (ledger.time - offer.made_at, offer.number)


@given(ledgers(), st.data())
@examples(150)
def test_a_damaged_record_is_refused_or_still_a_record(ledger: Ledger, data: st.DataObject) -> None:
    """No other error is raised, whichever bytes are changed."""
    content = bytearray(encode(ledger))
    for _ in range(data.draw(st.integers(1, 4))):
        position = data.draw(st.integers(0, len(content) - 1))
        match data.draw(st.sampled_from(["change", "cut", "insert"])):
            case "change":
                content[position] = data.draw(st.integers(0, 255))
            case "cut":
                del content[position : position + data.draw(st.integers(1, 9))]
                content = content or bytearray(b"x")
            case _:
                content[position:position] = data.draw(st.binary(min_size=1, max_size=9))
    assert unusable_offers(bytes(content)) == []


values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**65), 2**65) | st.floats(allow_nan=False) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)


@given(ledgers(), st.data())
@examples(150)
def test_a_record_with_another_value_is_refused_or_still_a_record(ledger: Ledger, data: st.DataObject) -> None:
    content = msgspec.json.decode(encode(ledger))
    parts = [content, *content["offers"]]
    part = data.draw(st.sampled_from(parts))
    part[data.draw(st.sampled_from(sorted(part)))] = data.draw(values)
    try:
        text = msgspec.json.encode(content)
    except (OverflowError, ValueError):
        return
    assert unusable_offers(text) == []


def unusable_offers(record: bytes) -> list[str]:
    """The UIDs of decoded offers that a ledger cannot take; none if the record is refused."""
    try:
        offers = handover_record.decode_record(record).offers
    except handover_record.RecordError:
        return []
    counts = Counter(entry.offered.pod.uid for entry in offers)
    return [
        entry.offered.pod.uid
        for entry in offers
        if not entry.offered.pod.uid or counts[entry.offered.pod.uid] > 1 or entry.offered.made_at > 0
    ]
