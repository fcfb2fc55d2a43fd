"""Lists for people: in sentences, and in their order."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Final

MAX_LISTED: Final = 5
_DIGITS: Final = re.compile("([0-9]+)")


def join_first(parts: Sequence[str], separator: str, total: int | None = None) -> str:
    """Joins the first few parts and says how many more there are.

    `total`: how many there are, if `parts` are only the first of them.

    >>> join_first(["a", "b"], "; "), join_first(["a", "b", "c", "d", "e", "f", "g"], ", ")
    ('a; b', 'a, b, c, d, e, and 2 more')
    """
    shown = separator.join(parts[:MAX_LISTED])
    more = (len(parts) if total is None else total) - MAX_LISTED
    return f"{shown}{separator}and {more} more" if more > 0 else shown


# Names of nodes are sorted again for every row, and hardly change.
@lru_cache(maxsize=16_384)
def natural_key(name: str) -> tuple[object, ...]:
    """Returns the sort key of a name, by which numbers in it count as numbers.

    >>> sorted(["wait-10", "wait-2", "wait-02", "wait"], key=natural_key)
    ['wait', 'wait-02', 'wait-2', 'wait-10']
    """
    # Texts and numbers alternate. A number is compared by its length first, since one of thousands of digits is no int.
    parts = _DIGITS.split(name)
    keys = [(len(part.lstrip("0")), part.lstrip("0")) if index % 2 else part for index, part in enumerate(parts)]
    return tuple(keys), name
