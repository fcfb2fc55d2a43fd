"""A part of many rows: pages of equal length."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

PAGE_SIZE: Final = 50
_Row = TypeVar("_Row")


@dataclass(frozen=True, slots=True)
class RowPage(Generic[_Row]):
    """One page of a table."""

    rows: Sequence[_Row]
    number: int  # counted from 1
    total: int  # how many rows all pages have
    size: int = PAGE_SIZE  # how many rows a full page has

    @property
    def pages(self) -> int:
        """How many pages there are; an empty table has one."""
        return max(1, -(-self.total // self.size))

    @property
    def first(self) -> int:
        """The number of the page's first row, counted from 1; 0 without rows."""
        return (self.number - 1) * self.size + 1 if self.rows else 0

    @property
    def last(self) -> int:
        """The number of the page's last row; 0 without rows."""
        return self.first + len(self.rows) - 1 if self.rows else 0


def page_of(rows: Sequence[_Row], number: int, size: int = PAGE_SIZE) -> RowPage[_Row]:
    """Returns a page of the rows; beyond the last page, the last one."""
    pages = max(1, -(-len(rows) // size))
    current = min(max(1, number), pages)
    return RowPage(rows[(current - 1) * size : current * size], current, len(rows), size)
