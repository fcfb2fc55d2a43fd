"""Locates values and repeated keys in a JSON text, for error messages: decoders return values only. It takes text that
a decoder has accepted; of other text it reads as much as it can.
"""

import re
from collections.abc import Callable, Iterator
from decimal import Decimal

import msgspec

from scheduler_core.structs import Struct

Path = tuple[str | int, ...]
"""The keys and indices that lead from the outermost value to one inside it."""

# More than any field has: 64 bits have 19.
_MAX_DIGITS = 40
_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\],:]|[^\s{}\[\],:"]+', re.DOTALL)
_BYTE = re.compile(r"\(byte (\d+)\)")


class DuplicateKey(Struct, frozen=True):
    """A key that is written twice in one object."""

    container: Path  # the path of the object, as written
    keys: tuple[str, str]  # both keys as written; they may differ in case
    offsets: tuple[int, int]  # where they are


class _Container(Struct):
    path: Path
    written: Path
    is_array: bool
    key: str | int = 0  # the key or index of the value that comes next, normalised and as written
    written_key: str | int = 0  # the key or index of the value that comes next, normalised and as written
    expects_key: bool = False
    keys: dict[str, tuple[str, int]] = {}  # the keys so far, as written, with their offsets


class JsonPlaces(Struct):
    """Places in a JSON text."""

    offsets: dict[Path, int] = {}  # where each value begins
    duplicates: list[DuplicateKey] = []  # the keys that are written twice

    @classmethod
    def of(cls, text: str, normalize: Callable[[str], str] = str) -> "JsonPlaces":
        """Reads a text; keys that are equal once normalised are the same key."""
        duplicates: list[DuplicateKey] = []
        return cls(dict(_values(text, duplicates, normalize)), duplicates)

    def offset(self, path: Path) -> int:
        while path not in self.offsets and path:
            path = path[:-1]
        return self.offsets.get(path, 0)


def find_offset(text: str, path: Path) -> int:
    """Where a value is, or the innermost one around it that exists."""
    around = (place for place in _values(text, [], str) if place[0] == path[: len(place[0])])
    return max(around, key=lambda place: len(place[0]), default=(path, 0))[1]


def _values(text: str, duplicates: list[DuplicateKey], normalize: Callable[[str], str]) -> Iterator[tuple[Path, int]]:
    """Yields every value with its offset, an outer one before those inside it."""
    stack: list[_Container] = []
    for match in _TOKEN.finditer(text):
        mark = match[0]
        if mark in "}]":
            if stack:
                stack.pop()
        elif mark == ",":
            if stack and stack[-1].is_array:
                stack[-1].key = stack[-1].written_key = int(stack[-1].key) + 1
            elif stack:
                stack[-1].expects_key = True
        elif mark == ":":
            continue
        elif stack and stack[-1].expects_key:
            container = stack[-1]
            try:
                text_of_key = msgspec.json.decode(mark, type=str)
            except msgspec.DecodeError:
                text_of_key = mark
            offset = match.start()
            key = normalize(text_of_key)
            first, first_offset = container.keys.setdefault(key, (text_of_key, offset))
            if first_offset != offset:
                duplicates.append(DuplicateKey(container.written, (first, text_of_key), (first_offset, offset)))
            container.key = key
            container.written_key = text_of_key
            container.expects_key = False
        else:
            path = (*stack[-1].path, stack[-1].key) if stack else ()
            yield path, match.start()
            if mark in "{[":
                written = (*stack[-1].written, stack[-1].written_key) if stack else ()
                stack.append(_Container(path, written, mark == "[", expects_key=mark == "{"))


def line_and_column(text: str, offset: int) -> str:
    """The place of an offset for people, both from 1: ``line 5, column 7``."""
    line = text.count("\n", 0, offset) + 1
    return f"line {line}, column {offset - text.rfind(chr(10), 0, offset)}"


def describe_syntax_error(text: bytes, error: Exception) -> str:
    """What a decoder found wrong, with line and column."""
    match = _BYTE.search(str(error))
    if match is None:
        return str(error)
    # A decoder counts bytes.
    before = text[: int(match[1])].decode(errors="replace")
    return _BYTE.sub(f"({line_and_column(before, len(before))})", str(error))


def read_number(text: str) -> int | float:
    """Returns an int for a whole number, which kubectl prints as 4.398046511104e+12 if it is large."""
    value = Decimal(text)
    # An exponent may stand for more digits than memory has.
    whole = value.adjusted() < _MAX_DIGITS and value == value.to_integral_value()
    return int(value) if whole else float(value)


class RepeatedKeyError(ValueError):
    """A key is written twice in one mapping."""

    def __init__(self, key: str) -> None:
        super().__init__(f"{key!r:.60} is written twice; between two outputs of kubectl there must be a line ---")
