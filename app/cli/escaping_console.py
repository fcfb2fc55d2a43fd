"""Consoles of rich that escape every text of a table, line or progress bar. rich itself removes five control characters
and passes ESC, C1 and bidirectional formatting on.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.padding import Padding
from rich.segment import Segment
from rich.table import Column, Table
from rich.text import Text

from app.cli.render import Cell
from app.escaping import escape_invisible


class EscapingConsole(Console):
    """A console without mark-up, on which no text changes the terminal."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options, markup=False, emoji=False, highlight=False)

    def render_str(self, text: str, **options: Any) -> Text:
        """Returns a string as a text; tables also measure it so."""
        return super().render_str(escape_invisible(text), **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Returns the segments of anything that is printed."""
        if isinstance(renderable, Text):
            escaped = escape_invisible(renderable.plain)
            if escaped != renderable.plain:
                renderable = renderable.blank_copy(escaped)
        return super().render(renderable, options)

    def write(self, text: str, style: str = "") -> None:
        self.print(Text(text, style))

    def paragraph(self, text: str) -> None:
        self.print(Padding(Text(text), (0, 0, 0, 2), expand=False))

    def commands(self, commands: Iterable[str], indent: str = "") -> None:
        """Prints commands, which are copied, so that they are not wrapped."""
        for command in commands:
            self.print(Text(f"{indent}{command}"), soft_wrap=True)

    def table_of(self, headers: Sequence[str], rows: Iterable[Sequence[Cell]] = ()) -> Table:
        """Returns a table without lines that shortens no word."""
        columns = (Column(header, overflow="fold") for header in headers)
        table = Table(*columns, box=None, pad_edge=False, header_style="bold")
        for row in rows:
            self.add_row(table, row)
        return table

    def add_row(self, table: Table, cells: Iterable[Cell], style: str = "") -> None:
        table.add_row(*(Text(*cell) if isinstance(cell, tuple) else cell for cell in cells), style=style)

    def section(self, headers: Sequence[str], rows: Iterable[Sequence[Cell]]) -> None:
        """Prints a table and an empty line, or nothing without rows."""
        table = self.table_of(headers, rows)
        if table.row_count:
            self.print(table)
            self.print()

    def end(self, notes: Iterable[str], summary: str) -> None:
        """Prints what was not taken into account, and the last line."""
        for note in notes:
            self.write(f"note: {note}")
        self.print()
        self.write(summary, "bold")
