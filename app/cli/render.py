"""What commands print of an answer: JSON or YAML for programs, tables for people.

Data flow: an answer as a dictionary, with the keys of the JSON; its values are the core's structs where their fields are
the keys → `plain_data` → JSON or YAML. The same structs, row by row → headers and cells → a table on the console
(`app/cli/escaping_console.py`), which `Refreshing` may draw again and again.

This is the one place that writes to standard output and standard error. What people read is escaped (`app/escaping.py`):
lines here, tables by the console. Results for programs have escapes of their own.
"""

import io
import json
import re
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum, StrEnum
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias, TypeVar

import typer

from app import API_VERSION, escaping
from scheduler_core.errors import CoreError

if TYPE_CHECKING:
    from app.cli.escaping_console import EscapingConsole


_Step = TypeVar("_Step")


class CommandInterruptedError(CoreError):
    """Ctrl-C ended a command, which has something to say about it."""


def print_line(text: str, *, err: bool = False) -> None:
    typer.echo(escaping.escape_invisible(text), err=err)


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
def progress_of(text: str, total: int | None = None) -> Iterator[Callable[[int], None]]:
    """Shows on a terminal how much of a total is done, or without a total that a computation runs; yields a function that
    takes the number.
    """
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.progress import Progress

    from app.cli.escaping_console import EscapingConsole

    with Progress(console=EscapingConsole(stderr=True), transient=True) as progress:
        task = progress.add_task(text, total=total)
        yield lambda done: progress.update(task, completed=done)


def show_progress(steps: Sequence[_Step], text: str) -> Iterator[_Step]:
    """Shows on a terminal how many steps are done."""
    with progress_of(text, len(steps)) as report:
        for done, step in enumerate(steps):
            report(done)
            yield step


FAILS = 1
_UNLIMITED_WIDTH = 2**16
_CLEAR_SCREEN = "\x1b[H\x1b[2J"
# What a table shows, perhaps with its style.
Cell = str | tuple[str, str]
# Modules of commands name the type by this, because rich takes long to import.
Console: TypeAlias = "EscapingConsole"
# Prints what people read.
Table: TypeAlias = Callable[["EscapingConsole"], None]


YES = ("yes", "green")
NO = ("no", "red")


class Output(StrEnum):
    """The format in which a result is printed."""

    TABLE = "table"
    JSON = "json"
    YAML = "yaml"


class ListOutput(StrEnum):
    """The format in which a list is printed."""

    TABLE = "table"
    JSON = "json"
    YAML = "yaml"
    NAME = "name"


class ExplainOutput(StrEnum):
    """The format in which an explanation is printed."""

    TABLE = "table"
    WIDE = "wide"
    JSON = "json"
    YAML = "yaml"
    NAME = "name"


OutputOption = Annotated[Output, typer.Option("--output", "-o", help="How to print.")]


@dataclass(frozen=True, slots=True)
class Refreshing:
    """Whether a table is drawn again and again."""

    watch: Annotated[
        bool, typer.Option("--watch", "-w", help="Show the table again and again, until Ctrl-C; needs a terminal.")
    ] = False
    interval: Annotated[
        float, typer.Option(metavar="SECONDS", min=0.5, max=3600, help="Seconds between two tables of --watch.")
    ] = 2.0

    def show(
        self,
        read: Callable[[], dict[str, Any]],
        output: ListOutput,
        draw: Callable[[dict[str, Any], "EscapingConsole"], None],
        names: Callable[[dict[str, Any]], Iterable[str]],
    ) -> dict[str, Any]:
        """Prints the answer that `read` returns, and returns it; with `--watch` draws it until Ctrl-C. Raises a CoreError
        if that is asked for and standard output is no terminal, the output is no table, or the first answer cannot be
        read.
        """
        if not self.watch:
            answer = read()
            show(answer, output, partial(draw, answer), names(answer))
            return answer
        if output is not ListOutput.TABLE:
            raise CoreError("--watch shows a table; it cannot be combined with --output")
        if not sys.stdout.isatty():
            raise CoreError("--watch needs a terminal; leave it out, or repeat the command")
        refresh(lambda: partial(draw, read()), self.interval)
        raise typer.Exit


def document(kind: str, data: Mapping[str, Any]) -> dict[str, Any]:
    """Returns an answer with its kind, as the objects of Kubernetes have it."""
    return {"apiVersion": API_VERSION, "kind": kind, **data}


def show_answer(kind: str, data: Mapping[str, Any], output: Output, table: Table, *, succeeds: bool) -> None:
    """Prints the answer of a plan; ends the program with exit code 1 if it does not succeed."""
    show(document(kind, data), output, table)
    if not succeeds:
        raise typer.Exit(FAILS)


def plain_data(value: Any) -> Any:
    """Returns what JSON has instead of a value. The keys of a struct, dataclass or named tuple are its fields, in camel case; an
    answer of the HTTP API has keys of its own.
    """
    if hasattr(value, "model_dump"):
        return value.model_dump(by_alias=True)
    if isinstance(value, Mapping):
        return {key: plain_data(entry) for key, entry in value.items()}
    if names := getattr(type(value), "__match_args__", ()):
        keys = (re.sub("_(.)", lambda match: match[1].upper(), name) for name in names)
        return {key: plain_data(getattr(value, name)) for key, name in zip(keys, names, strict=True)}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [plain_data(entry) for entry in value]
    return getattr(value, "text", value.value) if isinstance(value, Enum) else value


def show(
    data: Mapping[str, Any], output: Output | ListOutput | ExplainOutput, table: Table, names: Iterable[str] = ()
) -> None:
    """Prints an answer as JSON or YAML, by calling `table`, or each of `names` once."""
    # When the reader of a pipe, such as `head`, closes its end, this program ends as any filter does.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    if output == Output.JSON:
        print_result(json_text(plain_data(data)))
    elif output == Output.YAML:
        import yaml

        print_result(yaml_text(yaml.safe_dump, plain_data(data)))
    elif output == ListOutput.NAME:
        for name in dict.fromkeys(names):
            print_line(name)
    elif output == Output.TABLE and sys.stdout.isatty():
        table(_console())
    else:
        # Lines that need not fit any width end where their text ends; as kubectl's, a wide table has one line per row.
        text = io.StringIO()
        table(_console(file=text, width=_UNLIMITED_WIDTH))
        print_result("".join(f"{line.rstrip()}\n" for line in text.getvalue().splitlines()))


def refresh(draw: Callable[[], Table], interval: float, sleep: Callable[[float], None] = time.sleep) -> None:
    """Shows what `draw` reads, every `interval` seconds, until Ctrl-C. It prints why something cannot be read later,
    such as between two leaders, in place of the table. Raises a CoreError if the first table cannot be read.
    """
    try:
        table = draw()
        while True:
            console = _console()
            with console.capture() as capture:
                table(console)
            lines = capture.get().splitlines()[: max(1, console.height - 1)]
            print_result(_CLEAR_SCREEN + "\n".join(lines) + "\n")
            sleep(interval)
            try:
                table = draw()
            except CoreError as error:
                table = _problem(str(error))
    except KeyboardInterrupt:
        return


def _problem(text: str) -> Table:
    return lambda console: console.write(" ".join(text.split()), "red")


def _console(**options: Any) -> "EscapingConsole":
    # rich takes long to import.
    from app.cli.escaping_console import EscapingConsole

    return EscapingConsole(**options)


def json_text(data: Any, indent: int = 2) -> str:
    """Returns data as JSON, in ASCII letters."""
    return json.dumps(data, indent=indent) + "\n"


def yaml_text(dump: Callable[..., Any], data: Any) -> str:
    """Returns data as YAML; `dump` is one of PyYAML's functions, or behaves as they do."""
    # YAML permits letters that change a terminal, such as U+202E. A text with such a letter is in ASCII letters.
    text = str(dump(data, sort_keys=False, allow_unicode=True))
    return text if escaping.escape_invisible(text, "\n") == text else str(dump(data, sort_keys=False))


def shorten(names: Sequence[str], limit: int, separator: str = ", ", *, total: int | None = None) -> str:
    """Returns the first names, and how many more there are."""
    # `total` is the number of all of them, where `names` lacks some.
    first = names[:limit]
    hidden = (len(names) if total is None else total) - len(first)
    return separator.join([*first, *([f"{hidden} more"] if hidden > 0 else [])])


def format_range(least: str, most: str) -> str:
    return least if least == most else f"{least} to {most}"


def format_duration(seconds: float) -> str:
    return str(timedelta(seconds=round(seconds)))
