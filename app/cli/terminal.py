"""The one place that writes to standard output and standard error. What people read is escaped
(`app/runtime/printable.py`): lines here, tables by `app/cli/console.py`. Results for programs, JSON and YAML, have
escapes of their own.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import typer

from app.runtime.printable import printable
from scheduler_core.errors import CoreError


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


def json_text(data: Any, indent: int = 2) -> str:
    """Returns data as JSON, in ASCII letters."""
    return json.dumps(data, indent=indent) + "\n"


def yaml_text(dump: Callable[..., Any], data: Any) -> str:
    """Returns data as YAML; `dump` is one of PyYAML's functions, or behaves as they do."""
    # YAML permits letters that change a terminal, such as U+202E. A text with such a letter is in ASCII letters.
    text = str(dump(data, sort_keys=False, allow_unicode=True))
    return text if printable(text, "\n") == text else str(dump(data, sort_keys=False))
