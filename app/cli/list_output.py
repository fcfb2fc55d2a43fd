"""How commands print lists: as tables, JSON, YAML or names."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from app.cli.explain import Output, show
from app.cli.terminal import print_line

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table


class ListOutput(StrEnum):
    """The format in which a list is printed."""

    TABLE = "table"
    JSON = "json"
    YAML = "yaml"
    NAME = "name"


def show_list(data: dict[str, Any], output: ListOutput, table: Callable[[Console], None], names: Iterable[str]) -> None:
    """Prints a list, each name once, in the order of the list."""
    if output is ListOutput.NAME:
        for name in dict.fromkeys(names):
            print_line(name)
    else:
        show(data, Output(output.value), table)


def plain_table(*headers: str) -> Table:
    """Returns a table without lines that shortens no word."""
    from rich.table import Column, Table

    columns = (Column(header, overflow="fold") for header in headers)
    return Table(*columns, box=None, pad_edge=False, header_style="bold")


def shorten(names: Sequence[str], limit: int, separator: str = ", ", *, total: int | None = None) -> str:
    """Returns the first names, and how many more there are."""
    # `total` is the number of all of them, where `names` lacks some.
    first = names[:limit]
    hidden = (len(names) if total is None else total) - len(first)
    return separator.join([*first, *([f"{hidden} more"] if hidden > 0 else [])])
