"""The one place that writes to standard output and standard error. What people read is escaped
(`app/runtime/printable.py`): lines here, tables by `app/cli/console.py`. Results for programs, JSON and YAML, have
escapes of their own.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

import typer

from app.runtime.printable import printable
from scheduler_core.errors import CoreError

_Step = TypeVar("_Step")


class CommandInterruptedError(CoreError):
    """Ctrl-C ended a command, which has something to say about it."""


def print_line(text: str, *, err: bool = False) -> None:
    typer.echo(printable(text), err=err)


def print_lines(text: str, *, err: bool = False) -> None:
    for line in text.split("\n"):
        print_line(line, err=err)


def warn(text: str) -> None:
    print_line(f"warning: {text}", err=True)


def print_result(text: str) -> None:
    """Prints a text that is escaped already, as it is."""
    # Without `color` typer removes escape sequences where there is no terminal.
    typer.echo(text, nl=False, color=True)


@contextmanager
def progress_of(total: int, text: str) -> Iterator[Callable[[int], None]]:
    """Shows on a terminal how much of a total is done; yields a function that takes the number."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.progress import Progress

    from app.cli.console import EscapingConsole

    with Progress(console=EscapingConsole(stderr=True), transient=True) as progress:
        task = progress.add_task(text, total=total)
        yield lambda done: progress.update(task, completed=done)


def show_progress(steps: Sequence[_Step], text: str) -> Iterable[_Step]:
    """Shows on a terminal how many steps are done."""
    if not sys.stderr.isatty():
        return steps
    from rich.progress import track

    from app.cli.console import EscapingConsole

    return track(steps, text, console=EscapingConsole(stderr=True), transient=True)


@contextmanager
def show_status(text: str) -> Iterator[None]:
    """Shows on a terminal that a computation of unknown length runs."""
    if not sys.stderr.isatty():
        yield
        return
    from app.cli.console import EscapingConsole

    with EscapingConsole(stderr=True).status(text):
        yield
