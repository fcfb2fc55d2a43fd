"""Values of objects that are edited by hand, which may be anything: read if they can be, quoted in faults if not."""

from __future__ import annotations

import msgspec

from scheduler_core.model.quantity import MAX_BYTES


def read_size(value: object) -> int | None:
    """A number of bytes that is not negative, None if it is none."""
    size = read_integer(value)
    return size if size is not None and size >= 0 else None


def read_integer(value: object) -> int | None:
    """A number of bytes as Longhorn reports it, which may be negative."""
    usable = isinstance(value, int) and not isinstance(value, bool) and abs(value) <= MAX_BYTES
    return value if usable and isinstance(value, int) else None


def type_name(value: object) -> str:
    return {list: "a list", str: "a text", bool: "true or false"}.get(type(value), "a number")


def excerpt(value: object) -> str:
    text = msgspec.json.encode(value).decode()
    return text if len(text) <= 60 else f"{text[:60]}..."
