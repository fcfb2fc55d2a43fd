"""Patterns: all the ways to fill a disk, as bits. The exact search works on this table.

A *pattern* (Gilmore and Gomory) is a set of volumes that may lie together on one disk. Volumes of equal size with
equal restrictions are interchangeable, so they form an *item class*, and a pattern only says how many of each class it
holds. All patterns of all disks are numbered; a set of patterns is then one big integer, and "which patterns are still
possible once these volumes are gone" is one AND per class, some tenths of a microsecond for thousands of patterns.
Within a group of disks that admit the same classes, patterns are numbered by ascending sum, so "what this disk can
hold without wasting more than w bytes" is a range.
"""

from bisect import bisect_left
from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise

from scheduler_core.packing.budget import Budget, OutOfStepsError
from scheduler_core.structs import Struct

_BYTE = 8
_ENTRIES_PER_STEP = 10
_COMPLETE_PER_STEP = 3
# A field that counts up to 255 equal volumes fits one byte; more equal volumes form several classes.
MAX_EQUAL_ITEMS = 255


class ItemClass(Struct, frozen=True):
    """Interchangeable volumes."""

    size: int  # bytes of each
    disks: int  # the disks they may use, as a bit mask
    members: tuple[int, ...]  # the volumes, by index


class CountField(Struct, frozen=True):
    """Position of a class's count in a packed integer. The field has `width` bits from bit `shift` and never crosses a
    byte border, so that `Patterns` can read one class's count from all patterns at once with `bytes.translate`.
    """

    shift: int
    width: int

    @property
    def one(self) -> int:
        return 1 << self.shift

    @property
    def mask(self) -> int:
        return (1 << self.width) - 1 << self.shift

    def count(self, packed: int) -> int:
        return packed >> self.shift & ((1 << self.width) - 1)


def field_layout(item_classes: Sequence[ItemClass]) -> list[CountField]:
    """A field per class, wide enough for all members."""
    fields: list[CountField] = []
    position = 0
    for item_class in item_classes:
        width = len(item_class.members).bit_length()
        if position % _BYTE + width > _BYTE:
            position += _BYTE - position % _BYTE
        fields.append(CountField(position, width))
        position += width
    return fields


class Patterns:
    """Table of all patterns of a packing problem. Patterns are numbered; sets of them are integers with one bit per
    pattern.
    """

    __slots__ = ("all_patterns", "containing", "fields", "packed", "segments", "sums", "with_fewer")

    def __init__(
        self, item_classes: Sequence[ItemClass], fields: list[CountField], tables: Sequence[list[int]]
    ) -> None:
        self.fields = fields  # where each class's count is
        bits = packed_bits(fields)
        low = (1 << bits) - 1
        entries = [entry for table in tables for entry in table]
        self.sums: list[int] = [entry >> bits for entry in entries]  # the bytes of each pattern
        # How many of each class each pattern holds, in `fields` layout.
        self.packed: list[int] = [entry & low for entry in entries]
        self.all_patterns: int = (1 << len(entries)) - 1  # the set of all patterns
        starts = [0]
        for table in tables:
            starts.append(starts[-1] + len(table))
        self.segments: list[tuple[int, int]] = list(pairwise(starts))  # where each disk group's patterns begin and end
        # Reversed, so that the digit of pattern 0 becomes the lowest bit.
        raw = b"".join([packed.to_bytes(bits // _BYTE, "little") for packed in reversed(self.packed)])
        # `containing[item_class]` is the set of patterns with at least one volume of the class.
        self.containing: list[int] = []
        # `with_fewer[item_class][n]` is the set of patterns with fewer than n volumes of the class (n from 1).
        self.with_fewer: list[list[int]] = []
        for item_class, field in zip(item_classes, fields, strict=True):
            column = raw[field.shift // _BYTE :: bits // _BYTE]
            at_least = [
                int(column.translate(_at_least(field.shift % _BYTE, field.width, count)), 2)
                for count in range(1, len(item_class.members) + 1)
            ]
            self.containing.append(at_least[0])
            self.with_fewer.append([self.all_patterns, *(self.all_patterns ^ patterns for patterns in at_least)])


class PatternLimits(Struct, frozen=True):
    """How large a table of patterns may get."""

    max_partial: int  # partial patterns while it is made
    max_complete: int  # patterns in the result


def enumerate_patterns(
    item_classes: Sequence[tuple[ItemClass, CountField]],
    bits: int,
    ranges: Sequence[tuple[int, int]],
    limits: PatternLimits,
    budget: Budget,
) -> list[int]:
    """Patterns with a sum in the ranges, ascending. A range includes both ends. An entry is `sum << bits | packed
    counts`: sorting entries sorts by sum, and one addition adds a volume. Partial patterns that can no longer reach any
    range are dropped on the way.
    """
    lowest = min(low for low, _ in ranges)
    limit = max(high for _, high in ranges) + 1 << bits
    bytes_to_come = sum(item_class.size * len(item_class.members) for item_class, _ in item_classes)
    entries = [0]
    for item_class, field in item_classes:
        bytes_to_come -= item_class.size * len(item_class.members)
        entries = _extend(entries, item_class, field.one | item_class.size << bits, limit, limits.max_partial)
        smallest_useful = lowest - bytes_to_come << bits
        if smallest_useful > 0:
            entries = [entry for entry in entries if entry >= smallest_useful]
        budget.charge(1 + len(entries) // _ENTRIES_PER_STEP)
        if len(entries) > limits.max_partial:
            raise OutOfStepsError
    entries.sort()
    complete: list[int] = []
    end = 0
    for low, high in sorted(ranges):
        start = bisect_left(entries, low << bits, end)
        end = bisect_left(entries, high + 1 << bits, start)
        complete += entries[start:end]
    if len(complete) > limits.max_complete:
        raise OutOfStepsError
    budget.charge(len(complete) // _COMPLETE_PER_STEP)
    return complete


def _extend(entries: list[int], item_class: ItemClass, one: int, limit: int, max_entries: int) -> list[int]:
    """Entries with none, one, two, ... volumes added, below `limit`. Stops early above `max_entries`."""
    extended = entries
    added = entries
    highest = limit - one
    for _ in item_class.members:
        added = [entry + one for entry in added if entry < highest]
        if not added or len(extended) > max_entries:
            break
        extended = extended + added
    return extended


def packed_bits(fields: Sequence[CountField]) -> int:
    """Bits of packed counts, rounded up to whole bytes."""
    last = fields[-1]
    return (last.shift + last.width + _BYTE - 1) // _BYTE * _BYTE


@lru_cache(maxsize=512)
def _at_least(shift: int, width: int, count: int) -> bytes:
    """Translation table: "1" where the field is at least `count`."""
    mask = (1 << width) - 1
    return bytes(ord("1") if (value >> shift & mask) >= count else ord("0") for value in range(256))
