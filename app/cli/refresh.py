"""Refreshes a table on a terminal until Ctrl-C, for `--watch`."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Final

import typer

from app.cli.terminal import print_result
from scheduler_core.errors import CoreError

if TYPE_CHECKING:
    from rich.console import Console

DEFAULT_INTERVAL: Final = 2.0
_CLEAR_SCREEN: Final = "\x1b[H\x1b[2J"

WatchOption = Annotated[
    bool, typer.Option("--watch", "-w", help="Show the table again and again, until Ctrl-C; needs a terminal.")
]
IntervalOption = Annotated[
    float,
    typer.Option("--interval", metavar="SECONDS", min=0.5, max=3600, help="Seconds between two tables of --watch."),
]
# Reads what is shown, and returns what prints it.
Draw = Callable[[], Callable[["Console"], None]]


def check_watch(*, table: bool) -> None:
    """Raises a CoreError if standard output is no terminal, or the output is no table."""
    if not table:
        raise CoreError("--watch shows a table; it cannot be combined with --output")
    if not sys.stdout.isatty():
        raise CoreError("--watch needs a terminal; leave it out, or repeat the command")


def refresh(draw: Draw, interval: float, sleep: Callable[[float], None] = time.sleep) -> None:
    """Shows what `draw` reads, every `interval` seconds, until Ctrl-C. It prints why something cannot be read later,
    such as between two leaders, in place of the table.

    Raises:
        CoreError: the first table cannot be read
    """
    try:
        table = draw()
        while True:
            _show(table)
            sleep(interval)
            try:
                table = draw()
            except CoreError as error:
                table = _problem(str(error))
    except KeyboardInterrupt:
        return


def _problem(text: str) -> Callable[[Console], None]:
    def table(console: Console) -> None:
        from rich.text import Text

        console.print(Text(" ".join(text.split()), style="red"))

    return table


def _show(table: Callable[[Console], None]) -> None:
    from app.cli.console import EscapingConsole

    console = EscapingConsole()
    with console.capture() as capture:
        table(console)
    lines = capture.get().splitlines()[: max(1, console.height - 1)]
    print_result(_CLEAR_SCREEN + "\n".join(lines) + "\n")
