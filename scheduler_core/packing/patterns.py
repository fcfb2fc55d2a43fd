"""Every way to fill a disk, as bits: the data structure of the exact search.

A *fill* is a set of volumes that may lie together on one disk. Volumes of equal size with equal restrictions are
interchangeable, so they form a *kind* and a fill only says how many of each kind it holds. All fills of all disks are
numbered; a set of fills is then one big integer, and "which fills are still possible once these volumes are gone" is
one AND per kind, some tenths of a microsecond for thousands of fills. Within a group of disks that admit the same
kinds, fills are numbered by ascending sum, so "what this disk can hold without wasting more than w bytes" is a range.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Final

from scheduler_core.packing.budget import Budget, TooManyFillsError

_BYTE: Final = 8
_ENTRIES_PER_STEP: Final = 10
_KEPT_PER_STEP: Final = 3
# A field that counts up to 255 equal volumes fits one byte; more equal volumes than that cannot be told apart by it.
MOST_ALIKE: Final = 255


@dataclass(frozen=True, slots=True)
class Kind:
    """Volumes that are interchangeable: `size` in bytes, `disks` they may use as a bit mask, `members` by index."""

    size: int
    disks: int
    members: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Field:
    """Where a kind's count lies inside a packed integer: `width` bits from bit `shift`, never across a byte border.

    Staying inside one byte lets `Fills` read one kind's count from all fills at once with `bytes.translate`.
    """

    shift: int
    width: int

    @property
    def one(self) -> int:
        """The packed form of a single volume of the kind."""
        return 1 << self.shift

    @property
    def mask(self) -> int:
        """The field's bits."""
        return (1 << self.width) - 1 << self.shift

    def count(self, packed: int) -> int:
        """How many volumes of the kind a packed integer holds."""
        return packed >> self.shift & ((1 << self.width) - 1)


def layout(kinds: Sequence[Kind]) -> list[Field]:
    """A field for each kind, wide enough for all of its members."""
    fields: list[Field] = []
    position = 0
    for kind in kinds:
        width = len(kind.members).bit_length()
        if position % _BYTE + width > _BYTE:
            position += _BYTE - position % _BYTE
        fields.append(Field(position, width))
        position += width
    return fields


class Fills:
    """All fills of one problem's disks, numbered; sets of them are integers with one bit per fill.

    Attributes:
        sums: the bytes of each fill
        packed: how many of each kind each fill holds, in `fields` layout
        without: `without[kind][n]` is the set of fills with fewer than n volumes of the kind (n from 1)
        containing: `containing[kind]` is the set of fills with at least one volume of the kind
        segments: where each group's fills begin and end
    """

    __slots__ = ("containing", "everything", "fields", "packed", "segments", "sums", "without")

    def __init__(self, kinds: Sequence[Kind], fields: list[Field], tables: Sequence[list[int]]) -> None:
        self.fields = fields
        bits = bits_of(fields)
        low = (1 << bits) - 1
        entries = [entry for table in tables for entry in table]
        self.sums: list[int] = [entry >> bits for entry in entries]
        self.packed: list[int] = [entry & low for entry in entries]
        self.everything: int = (1 << len(entries)) - 1
        starts = [0]
        for table in tables:
            starts.append(starts[-1] + len(table))
        self.segments: list[tuple[int, int]] = list(pairwise(starts))
        raw = b"".join([packed.to_bytes(bits // _BYTE, "little") for packed in reversed(self.packed)])
        self.containing: list[int] = []
        self.without: list[list[int]] = []
        for kind, field in zip(kinds, fields, strict=True):
            column = raw[field.shift // _BYTE :: bits // _BYTE]
            at_least = [
                int(column.translate(_at_least(field.shift % _BYTE, field.width, count)), 2)
                for count in range(1, len(kind.members) + 1)
            ]
            self.containing.append(at_least[0])
            self.without.append([self.everything, *(self.everything ^ some for some in at_least)])


@dataclass(frozen=True, slots=True)
class Limits:
    """How large a table of fills may get: `looked_at` counts partial fills on the way, `kept` those in the result."""

    looked_at: int
    kept: int


def table_of(
    kinds: Sequence[tuple[Kind, Field]], bits: int, ranges: Sequence[tuple[int, int]], limits: Limits, budget: Budget
) -> list[int]:
    """The fills made of the kinds whose sums lie in one of the ranges (both ends included), ascending by sum.

    An entry is `sum << bits | packed counts`: sorting entries sorts by sum, and one addition adds a volume. Partial
    fills that can no longer reach any range are dropped on the way.

    Raises:
        TooManyFillsError: the table would get larger than the limits
        OutOfStepsError: the budget ended
    """
    lowest = min(low for low, _ in ranges)
    beyond = max(high for _, high in ranges) + 1 << bits
    to_come = sum(kind.size * len(kind.members) for kind, _ in kinds)
    entries = [0]
    for kind, field in kinds:
        to_come -= kind.size * len(kind.members)
        entries = _grown(entries, kind, field.one | kind.size << bits, beyond, limits.looked_at)
        hopeless = lowest - to_come << bits
        if hopeless > 0:
            entries = [entry for entry in entries if entry >= hopeless]
        budget.charge(1 + len(entries) // _ENTRIES_PER_STEP)
        if len(entries) > limits.looked_at:
            raise TooManyFillsError
    entries = _within(entries, ranges, bits)
    if len(entries) > limits.kept:
        raise TooManyFillsError
    budget.charge(len(entries) // _KEPT_PER_STEP)
    entries.sort()
    return entries


def _grown(entries: list[int], kind: Kind, one: int, beyond: int, most: int) -> list[int]:
    """The entries, and those with one, two, ... volumes of the kind added, as long as they stay below `beyond`."""
    grown = entries
    added = entries
    highest = beyond - one
    for _ in kind.members:
        added = [entry + one for entry in added if entry < highest]
        if not added or len(grown) > most:
            break
        grown = grown + added
    return grown


def _within(entries: list[int], ranges: Sequence[tuple[int, int]], bits: int) -> list[int]:
    """The entries whose sums lie in one of the ranges."""
    merged = _merged(ranges)
    if len(merged) == 1 and not merged[0][0]:
        return entries
    if sum(high - low for low, high in merged) < len(entries):
        wanted = {total for low, high in merged for total in range(low, high + 1)}
        return [entry for entry in entries if entry >> bits in wanted]
    return [entry for low, high in merged for entry in entries if low << bits <= entry < high + 1 << bits]


def _merged(ranges: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """The same values as disjoint ranges, ascending."""
    merged: list[tuple[int, int]] = []
    for low, high in sorted(ranges):
        if merged and low <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(high, merged[-1][1]))
        else:
            merged.append((low, high))
    return merged


def bits_of(fields: Sequence[Field]) -> int:
    """How many bits packed counts take, rounded up to whole bytes."""
    last = fields[-1]
    return (last.shift + last.width + _BYTE - 1) // _BYTE * _BYTE


@lru_cache(maxsize=512)
def _at_least(shift: int, width: int, count: int) -> bytes:
    """A translation of a byte to the digit 1 where its field is at least `count`, else to 0."""
    mask = (1 << width) - 1
    return bytes(ord("1") if (value >> shift & mask) >= count else ord("0") for value in range(256))
