"""Offers as a leader records them for its successor: plain JSON, versioned and bounded.

Data flow: ledger → `encode_record` → bytes, which the app stores in the cluster → `decode_record` → `HandoverRecord` → offers to restore
(`offer_to_restore` in `decide/offered_nodes.py`).

The narrowest offers have the names of their nodes. Wider ones have "all": their pods may go to any node, which holds more room than was
offered, never less. Volumes are not recorded, because the successor resolves them from its own view. Times are ages, so that no two
clocks are compared. A reader of a record trusts nothing in it.
"""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Annotated, Literal

import msgspec

from scheduler_core import errors
from scheduler_core.offers.ledger import Ledger
from scheduler_core.offers.outstanding_offer import ObservedPod, Offer, RecordedOffer
from scheduler_core.structs import Struct

# Format 1 was compressed. Neither release reads the other's record, which is refused as a damaged one is.
FORMAT = 2
# A ConfigMap may have 1 MiB; 3,000 offers of one node need less.
MAX_BYTES = 768 * 1024
# Of the names of nodes: what 1,000 offers of 20 nodes have.
MAX_NAME_BYTES = 256 * 1024
_MAX_NAME = 253
_QUOTES_AND_COMMA = 3
_DIGEST_CHARACTERS = 16
_Name = Annotated[str, msgspec.Meta(max_length=_MAX_NAME)]
_NonemptyName = Annotated[str, msgspec.Meta(min_length=1, max_length=_MAX_NAME)]
_Count = Annotated[int, msgspec.Meta(ge=0)]
_Age = Annotated[float, msgspec.Meta(ge=0, le=1e9)]


class RecordError(errors.CoreError):
    """A record of offers cannot be used."""


class RecordHead(Struct, frozen=True):
    """What a record says about its writer and itself."""

    holder: str  # the identity of the leader that wrote it
    transitions: int  # the Lease's count when that leader took it; with the holder it identifies the leadership
    final: bool = False  # whether the leader answered no request after it
    complete: bool = True  # whether it has every offer
    # The newest resourceVersion that the leader's cache had, by kind; only in a final record.
    versions: Mapping[str, str] = {}


class HandoverRecord(Struct, frozen=True):
    """A record as it was read."""

    head: RecordHead
    offers: tuple[RecordedOffer, ...]
    offers_made: int


class _WireOffer(msgspec.Struct, omit_defaults=True, kw_only=True):
    uid: _NonemptyName
    namespace: _Name = ""
    name: _Name = ""
    nodes: list[_NonemptyName] | Literal["all"] = []
    age: _Age = 0.0
    number: _Count = 0
    version: _Count = 0
    pod_version: _Count = 0
    nominated: _Name = ""
    selected: _Name = ""
    unschedulable: _Name = ""
    unschedulable_age: _Age | None = None
    narrowed_age: _Age | None = None
    priority: int | None = None


class _WireRecord(msgspec.Struct, kw_only=True):
    format: int
    holder: str
    transitions: _Count
    final: bool
    complete: bool
    versions: dict[str, str]
    offers_made: _Count
    offers: list[_WireOffer]


class _WireFormat(msgspec.Struct):
    format: int


def unschedulable_digest(text: str) -> str:
    """Returns the short form of a pod's `unschedulable`, "" for ""."""
    # Equal texts have equal digests, and no digest equals a text.
    return hashlib.sha256(text.encode(errors="replace")).hexdigest()[:_DIGEST_CHARACTERS] if text else ""


class EncodedRecord(Struct, frozen=True):
    """A record as it is stored, and whether it has every offer."""

    data: bytes
    complete: bool


def encode_record(ledger: Ledger, head: RecordHead, now: float) -> EncodedRecord:
    """Returns the record of a ledger's offers. If that would be too large, the offers of few nodes and then the newest ones stay, and the
    record says that it is not complete. `now` is the time on the ledger's clock.

    Raises:
        RecordError: even a record without offers would be too large
    """
    offers = sorted(ledger.offers.values(), key=lambda offer: (len(offer.nodes), -offer.made_at, offer.uid))
    wire = _wire_offers(offers, now)
    while True:
        record = _WireRecord(
            format=FORMAT,
            holder=head.holder,
            transitions=head.transitions,
            final=head.final,
            complete=len(wire) == len(offers),
            versions=dict(head.versions),
            offers_made=ledger.offers_made,
            offers=wire,
        )
        data = msgspec.json.encode(record)
        if len(data) <= MAX_BYTES:
            return EncodedRecord(data, record.complete)
        if not wire:
            raise RecordError("a record without offers is too long")
        wire = wire[: int(len(wire) * MAX_BYTES / len(data) * 0.9)]


def decode_record(data: bytes) -> HandoverRecord:
    """Returns the content of a record.

    Raises:
        RecordError: it is too large, of an unknown format, or damaged
    """
    if len(data) > MAX_BYTES:
        raise RecordError(f"the record of offers has {len(data)} bytes, more than {MAX_BYTES}")
    try:
        if (number := msgspec.json.decode(data, type=_WireFormat).format) != FORMAT:
            raise RecordError(f"the record of offers has format {number}; only {FORMAT} is known")
        wire = msgspec.json.decode(data, type=_WireRecord)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise RecordError(f"the record of offers cannot be read: {error}") from error
    if len({offer.uid for offer in wire.offers}) != len(wire.offers):
        raise RecordError("the record of offers names a pod twice")
    head = RecordHead(wire.holder, wire.transitions, wire.final, wire.complete, wire.versions)
    return HandoverRecord(head, tuple(_recorded_offer(offer) for offer in wire.offers), wire.offers_made)


def _wire_offers(offers: Sequence[Offer], now: float) -> list[_WireOffer]:
    """Returns offers, the narrowest first, as they are written; the wide ones without names of nodes."""
    wire: list[_WireOffer] = []
    name_bytes = 0
    for offer in offers:
        pod = offer.pod
        # A request may say anything, which no reader accepts.
        names = (offer.uid, pod.namespace, pod.name, pod.nominated_node, offer.selected_node)
        if any(len(name) > _MAX_NAME for name in names):
            continue
        if name_bytes <= MAX_NAME_BYTES:
            name_bytes += sum(len(name) + _QUOTES_AND_COMMA for name in offer.nodes)
        wire.append(
            _WireOffer(
                uid=offer.uid,
                namespace=pod.namespace,
                name=pod.name,
                nodes=sorted(offer.nodes) if name_bytes <= MAX_NAME_BYTES else "all",
                age=_age(offer.made_at, now) or 0.0,
                number=offer.number,
                version=offer.version,
                pod_version=pod.version,
                nominated=pod.nominated_node,
                selected=offer.selected_node,
                unschedulable=unschedulable_digest(pod.unschedulable),
                unschedulable_age=_age(offer.unschedulable_since, now),
                narrowed_age=_age(offer.narrowed_at, now),
                priority=offer.priority,
            )
        )
    return wire


def _age(at: float | None, now: float) -> float | None:
    return None if at is None else max(0.0, now - at)


def _recorded_offer(wire: _WireOffer) -> RecordedOffer:
    pod = ObservedPod(
        uid=wire.uid,
        namespace=wire.namespace,
        name=wire.name,
        version=wire.pod_version,
        nominated_node=wire.nominated,
        unschedulable=wire.unschedulable,
    )
    everywhere = wire.nodes == "all"
    offer = Offer(
        pod,
        frozenset[str]() if everywhere else frozenset(wire.nodes),
        selected_node=wire.selected,
        priority=wire.priority,
        made_at=-wire.age,
        number=wire.number,
        version=wire.version,
        unschedulable_since=None if wire.unschedulable_age is None else -wire.unschedulable_age,
        narrowed_at=None if wire.narrowed_age is None else -wire.narrowed_age,
    )
    return RecordedOffer(offer, everywhere)
