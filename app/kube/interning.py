"""Equal texts once: names, images, labels and times occur in thousands of objects, and each was decoded for itself."""

from __future__ import annotations

import sys
from dataclasses import fields, is_dataclass
from typing import Any, Final

_FIELDS: Final[dict[type, tuple[str, ...]]] = {}


def share_texts(value: object) -> None:
    """Replaces the texts inside a frozen value, of whom nobody else knows yet, by the one text that is equal to each.

    Python forgets such a text when nobody has it any more. The value stays equal to what it was.
    """
    for name in _names(type(value)):
        held = getattr(value, name)
        shared = _shared(held)
        if shared is not held:
            object.__setattr__(value, name, shared)


def _shared(value: Any) -> Any:
    kind = type(value)
    if kind is str:
        return sys.intern(value)
    if kind is tuple:
        return tuple(map(_shared, value)) if value else value
    if kind is dict:
        return {_shared(key): _shared(entry) for key, entry in value.items()}
    if kind is frozenset:
        return frozenset(map(_shared, value))
    if _names(kind):
        share_texts(value)
    return value


def _names(kind: type) -> tuple[str, ...]:
    """The fields of a dataclass; none of any other type."""
    names = _FIELDS.get(kind)
    if names is None:
        names = _FIELDS[kind] = tuple(entry.name for entry in fields(kind)) if is_dataclass(kind) else ()
    return names
