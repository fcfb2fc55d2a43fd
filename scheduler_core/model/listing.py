"""Lists in sentences for people."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

MAX_LISTED: Final = 5


def join_first(parts: Sequence[str], separator: str, total: int | None = None) -> str:
    """Joins the first few parts and says how many more there are.

    `total`: how many there are, if `parts` are only the first of them.

    >>> join_first(["a", "b"], "; "), join_first(["a", "b", "c", "d", "e", "f", "g"], ", ")
    ('a; b', 'a, b, c, d, e, and 2 more')
    """
    shown = separator.join(parts[:MAX_LISTED])
    more = (len(parts) if total is None else total) - MAX_LISTED
    return f"{shown}{separator}and {more} more" if more > 0 else shown
