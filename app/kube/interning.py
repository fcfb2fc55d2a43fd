"""Interning of texts: equal texts in different objects become one, which saves memory. Names, images, labels and times
occur in thousands of objects, and each occurrence was decoded into its own text.
"""

from __future__ import annotations

import sys
from dataclasses import fields, is_dataclass
from typing import Any, Final

_FIELDS: Final[dict[type, tuple[tuple[str, Any], ...]]] = {}


def intern_texts(value: object) -> None:
    """Replaces the texts inside a frozen value by interned ones. The value stays equal to what it was; it must be new,
    because it is changed in place. Python drops an interned text that is not used any more.
    """
    for name, default in _fields(type(value)):
        current = getattr(value, name)
        if current is not default and (interned := _intern(current)) is not current:
            object.__setattr__(value, name, interned)


def _intern(value: Any) -> Any:
    kind = type(value)
    if kind is str:
        return sys.intern(value)
    if kind is tuple:
        return tuple(map(_intern, value)) if value else value
    if kind is dict:
        return {_intern(key): _intern(entry) for key, entry in value.items()}
    if kind is frozenset:
        return frozenset(map(_intern, value))
    if _fields(kind):
        intern_texts(value)
    return value


def _fields(kind: type) -> tuple[tuple[str, Any], ...]:
    """The names of a dataclass' fields with their defaults, which all its values share already."""
    known = _FIELDS.get(kind)
    if known is None:
        known = tuple((entry.name, entry.default) for entry in fields(kind)) if is_dataclass(kind) else ()
        _FIELDS[kind] = known
    return known
