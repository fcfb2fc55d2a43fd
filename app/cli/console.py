"""Consoles of rich that escape every text of a table, line or progress bar. rich itself removes five control characters
and passes ESC, C1 and bidirectional formatting on.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from app.runtime.printable import printable


class EscapingConsole(Console):
    """A console without mark-up, on which no text changes the terminal."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options, markup=False, emoji=False, highlight=False)

    def render_str(self, text: str, **options: Any) -> Text:
        """Returns a string as a text; tables also measure it so."""
        return super().render_str(printable(text), **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Returns the segments of anything that is printed."""
        if isinstance(renderable, Text):
            escaped = printable(renderable.plain)
            if escaped != renderable.plain:
                renderable = renderable.blank_copy(escaped)
        return super().render(renderable, options)
