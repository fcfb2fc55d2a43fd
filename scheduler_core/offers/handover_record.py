"""Offers as a leader records them for its successor: compact, versioned and bounded.

Data flow: ledger → `RecordEncoder` → bytes, which the app stores in the cluster → `decode_record` → `HandoverRecord` → offers to restore
(`offer_to_restore` in `extender/offer.py`).

The bytes are JSON, compressed. Node names stand in one table; each distinct set of nodes is written once, as positions in the table or, if
it is wide, as a bit set. Volumes are not recorded, because the successor resolves them from its own view. Times are ages, so that no two
clocks are compared. A reader of a record trusts nothing in it: it limits sizes before and after decompression, and checks every value.
"""

from __future__ import annotations

import hashlib
import zlib
from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Final

import msgspec

from scheduler_core.errors import CoreError
from scheduler_core.offers.events import ObservedPod, Offered, RecordedOffer
from scheduler_core.offers.ledger import Ledger
from scheduler_core.offers.outstanding_offer import Offer

FORMAT: Final = 1
# etcd keeps every version of the object for minutes, so it must be small; 3,000 offers of one node need less than half of it.
MAX_BYTES: Final = 256 * 1024
MAX_TEXT_BYTES: Final = 2 * 1024 * 1024
# How many names all distinct sets of nodes may have together: what 400 offers of 5,000 nodes have.
MAX_SET_MEMBERS: Final = 2_000_000
_MAX_NAME: Final = 253
_NO_SET: Final = -1
# Fast: the record is written several times a second in a burst.
_COMPRESSION_LEVEL: Final = 1
# A position takes about five characters in JSON, and base64 one for six nodes.
_NODES_PER_POSITION: Final = 30
_DIGEST_CHARACTERS: Final = 16
_Name = Annotated[str, msgspec.Meta(max_length=_MAX_NAME)]
_Count = Annotated[int, msgspec.Meta(ge=0)]
_Age = Annotated[float, msgspec.Meta(ge=0, le=1e9)]
_Set = list[int] | str


class RecordError(CoreError):
    """A record of offers cannot be used."""


@dataclass(frozen=True, slots=True)
class RecordHead:
    """What a record says about its writer and itself."""

    holder: str  # the identity of the leader that wrote it
    transitions: int  # the Lease's count when that leader took it; with the holder it identifies the leadership
    final: bool = False  # whether the leader answered no request after it
    complete: bool = True  # whether it has every offer
    # The newest resourceVersion that the leader's cache had, by kind; only in a final record.
    versions: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class HandoverRecord:
    """A record as it was read."""

    head: RecordHead
    offers: tuple[RecordedOffer, ...]
    offers_made: int


class _WireOffer(msgspec.Struct, omit_defaults=True, kw_only=True):
    uid: Annotated[str, msgspec.Meta(min_length=1, max_length=_MAX_NAME)]
    namespace: _Name = ""
    name: _Name = ""
    nodes: Annotated[int, msgspec.Meta(ge=_NO_SET)] = _NO_SET
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
    nodes: list[_Name]
    sets: list[_Set]
    offers_made: _Count
    offers: list[_WireOffer]


class _WireFormat(msgspec.Struct):
    format: int


def unschedulable_digest(text: str) -> str:
    """Returns the short form of a pod's `unschedulable`, "" for ""."""
    # Equal texts have equal digests, and no digest equals a text.
    return hashlib.sha256(text.encode(errors="replace")).hexdigest()[:_DIGEST_CHARACTERS] if text else ""


@dataclass(frozen=True, slots=True)
class EncodedRecord:
    """A record as it is stored, and whether it has every offer."""

    data: bytes
    complete: bool


class RecordEncoder:
    """Encodes a leader's ledger again and again. Sets of nodes that were encoded before are not encoded again, because
    wide offers are the expensive ones. Not for several threads at once.
    """

    def __init__(self) -> None:
        self._positions: dict[str, int] = {}
        self._sets: dict[frozenset[str], _Set] = {}
        # By an offer's number, its nodes and the equal set that is a key of `_sets`: comparing wide sets takes long.
        self._shared: dict[int, tuple[frozenset[str], frozenset[str]]] = {}

    def encode(self, ledger: Ledger, head: RecordHead, now: float) -> EncodedRecord:
        """Returns the record of a ledger's offers. If that would be too large, the offers of few nodes and then the
        newest ones stay, and the record says that it is not complete. `now` is the time on the ledger's clock.

        Raises:
            RecordError: even a record without offers would be too large
        """
        offers = sorted(ledger.offers.values(), key=lambda offer: (len(offer.nodes), -offer.made_at, offer.uid))
        readable = [offer for offer in offers if _is_readable(offer)]
        if not offers:
            # Names of nodes that no longer exist must not add up.
            self._positions = {}
        fitting = _within_limit(readable)
        while True:
            complete = len(fitting) == len(offers)
            data = self._encode(fitting, ledger.offers_made, replace(head, complete=complete), now)
            if data is not None and len(data) <= MAX_BYTES:
                return EncodedRecord(data, complete)
            if not fitting:
                raise RecordError("the names of the nodes alone are too long for a record of offers")
            share = MAX_BYTES / len(data) if data is not None else 0.5
            fitting = fitting[: int(len(fitting) * min(share, 1) * 0.9)]

    def _encode(self, offers: Sequence[Offer], offers_made: int, head: RecordHead, now: float) -> bytes | None:
        """Returns the record, or None if its text is too long."""
        self._share_sets(offers)
        numbers: dict[frozenset[str], int] = {}
        for offer in offers:
            if offer.nodes:
                numbers.setdefault(self._shared[offer.number][1], len(numbers))
        self._sets = {nodes: self._sets.get(nodes) or self._encode_set(nodes) for nodes in numbers}
        record = _WireRecord(
            format=FORMAT,
            holder=head.holder,
            transitions=head.transitions,
            final=head.final,
            complete=head.complete,
            versions=dict(head.versions),
            nodes=list(self._positions),
            sets=list(self._sets.values()),
            offers_made=offers_made,
            offers=[_wire_offer(offer, numbers.get(self._shared[offer.number][1], _NO_SET), now) for offer in offers],
        )
        text = msgspec.json.encode(record)
        return zlib.compress(text, _COMPRESSION_LEVEL) if len(text) <= MAX_TEXT_BYTES else None

    def _share_sets(self, offers: Sequence[Offer]) -> None:
        distinct_sets: dict[frozenset[str], frozenset[str]] = {}
        shared: dict[int, tuple[frozenset[str], frozenset[str]]] = {}
        for offer in offers:
            nodes, equal_set = self._shared.get(offer.number, (None, offer.nodes))
            if nodes is not offer.nodes:
                equal_set = offer.nodes
            shared[offer.number] = (offer.nodes, distinct_sets.setdefault(equal_set, equal_set))
        self._shared = shared

    def _encode_set(self, nodes: frozenset[str]) -> _Set:
        positions = self._positions
        for name in nodes:
            if name not in positions:
                positions[name] = len(positions)
        if len(nodes) * _NODES_PER_POSITION < len(positions):
            return sorted(positions[name] for name in nodes)
        bits = bytearray(len(positions) // 8 + 1)
        for name in nodes:
            position = positions[name]
            bits[position >> 3] |= 1 << (position & 7)
        return b64encode(bytes(bits).rstrip(b"\0")).decode()


def decode_record(data: bytes) -> HandoverRecord:
    """Returns the content of a record.

    Raises:
        RecordError: it is too large, of an unknown format, or damaged
    """
    text = _decompress(data)
    try:
        if (number := msgspec.json.decode(text, type=_WireFormat).format) != FORMAT:
            raise RecordError(f"the record of offers has format {number}; only {FORMAT} is known")
        wire = msgspec.json.decode(text, type=_WireRecord)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise RecordError(f"the record of offers cannot be read: {error}") from error
    sets = _decode_sets(wire)
    uids = {offer.uid for offer in wire.offers}
    if len(uids) != len(wire.offers):
        raise RecordError("the record of offers names a pod twice")
    head = RecordHead(wire.holder, wire.transitions, wire.final, wire.complete, wire.versions)
    return HandoverRecord(head, tuple(_recorded_offer(offer, sets) for offer in wire.offers), wire.offers_made)


def _decompress(data: bytes) -> bytes:
    if len(data) > MAX_BYTES:
        raise RecordError(f"the record of offers has {len(data)} bytes, more than {MAX_BYTES}")
    decompressor = zlib.decompressobj()
    try:
        text = decompressor.decompress(data, MAX_TEXT_BYTES + 1)
    except zlib.error as error:
        raise RecordError(f"the record of offers cannot be decompressed: {error}") from error
    if len(text) > MAX_TEXT_BYTES:
        raise RecordError(f"the record of offers has more than {MAX_TEXT_BYTES} characters")
    if not decompressor.eof or decompressor.unused_data:
        raise RecordError("the record of offers is cut off, or followed by something else")
    return text


def _decode_sets(wire: _WireRecord) -> list[frozenset[str]]:
    names = wire.nodes
    if len(set(names)) != len(names) or "" in names:
        raise RecordError("the record of offers has a node twice, or one without a name")
    sets: list[frozenset[str]] = []
    members = 0
    for entry in wire.sets:
        positions = entry if isinstance(entry, list) else _bit_positions(entry, len(names))
        members += len(positions)
        if members > MAX_SET_MEMBERS:
            raise RecordError(f"the record of offers has more than {MAX_SET_MEMBERS} nodes in all sets together")
        if not positions or any(not 0 <= position < len(names) for position in positions):
            raise RecordError("the record of offers has an empty set, or a node that it does not name")
        sets.append(frozenset(names[position] for position in positions))
    return sets


def _bit_positions(text: str, count: int) -> list[int]:
    """Returns the positions of the bits in a bit set, and one too high if there are more than `count` bits."""
    try:
        bits = b64decode(text, validate=True)
    except ValueError as error:
        raise RecordError(f"the record of offers has a set that cannot be read: {error}") from error
    if len(bits) > count // 8 + 1:
        raise RecordError("the record of offers has a set that is too long")
    return [index * 8 + bit for index, byte in enumerate(bits) if byte for bit in range(8) if byte >> bit & 1]


def _is_readable(offer: Offer) -> bool:
    """Whether no name is longer than Kubernetes allows."""
    pod = offer.pod
    # A request may say anything.
    names = (offer.uid, pod.namespace, pod.name, pod.nominated_node, offer.selected_node)
    return all(len(name) <= _MAX_NAME for name in names)


def _within_limit(offers: Sequence[Offer]) -> Sequence[Offer]:
    """Returns the offers before the first one with which their sets have too many nodes."""
    counted: set[frozenset[str]] = set()
    members = 0
    for index, offer in enumerate(offers):
        if offer.nodes not in counted:
            counted.add(offer.nodes)
            members += len(offer.nodes)
        if members > MAX_SET_MEMBERS:
            return offers[:index]
    return offers


def _wire_offer(offer: Offer, nodes: int, now: float) -> _WireOffer:
    pod = offer.pod
    return _WireOffer(
        uid=offer.uid,
        namespace=pod.namespace,
        name=pod.name,
        nodes=nodes,
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


def _age(at: float | None, now: float) -> float | None:
    return None if at is None else max(0.0, now - at)


def _recorded_offer(wire: _WireOffer, sets: Sequence[frozenset[str]]) -> RecordedOffer:
    if wire.nodes >= len(sets):
        raise RecordError("the record of offers has an offer of nodes that it does not have")
    pod = ObservedPod(
        uid=wire.uid,
        namespace=wire.namespace,
        name=wire.name,
        version=wire.pod_version,
        nominated_node=wire.nominated,
        unschedulable=wire.unschedulable,
    )
    nodes = sets[wire.nodes] if wire.nodes != _NO_SET else frozenset[str]()
    return RecordedOffer(
        Offered(pod, nodes, selected_node=wire.selected, priority=wire.priority),
        age=wire.age,
        number=wire.number,
        version=wire.version,
        narrowed_age=wire.narrowed_age,
        unschedulable_age=wire.unschedulable_age,
    )
