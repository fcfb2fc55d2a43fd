"""Makes man pages from the help of `longhorn-extender`: one for the program, and one for each command. click-man, which does this
for click, does not know typer's own classes.
"""

import inspect
from collections.abc import Iterator
from typing import Any

from typer._click.core import Context

from app.cli.commands import COMMANDS, cli

NAME = "longhorn-extender"
_EXIT_CODES = (
    ("0", "It fits, or the command succeeded."),
    ("1", "It does not fit."),
    ("2", "Bad input; one line on standard error says what."),
    ("130", "Interrupted by Ctrl-C."),
)


def pages(version: str) -> Iterator[tuple[str, str]]:
    """Yields the file name and the text of each page."""
    program = Context(cli, info_name=NAME, **cli.context_settings)
    lines = _head(program, "find nodes whose Longhorn disks hold all volumes of a pod", version)
    lines += [".SH COMMANDS"]
    for title, commands in COMMANDS.items():
        lines.append(f".SS {title}")
        for name, text in commands.items():
            lines += [".TP", rf".BR {_page_name(name)} (1)", _escape(text)]
    lines += [".SH EXIT STATUS"]
    for code, text in _EXIT_CODES:
        lines += [".TP", f".B {code}", text]
    yield f"{NAME}.1", _join(lines)
    for name, text in [pair for commands in COMMANDS.values() for pair in commands.items()]:
        context = program
        for word in name.split():
            command: Any = context.command
            context = Context(command.get_command(context, word), info_name=word, parent=context)
        summary = text[0].lower() + text[1:].rstrip(".")
        lines = [*_head(context, summary, version), ".SH SEE ALSO", rf".BR {_page_name('')} (1)"]
        yield f"{NAME}-{name.replace(' ', '-')}.1", _join(lines)


def _head(context: Context, summary: str, version: str) -> list[str]:
    command: Any = context.command
    page = context.command_path.replace(" ", "-")
    usage = " ".join(command.collect_usage_pieces(context))
    lines = [f'.TH {_escape(page.upper())} 1 "" "{NAME} {version}" "User Commands"', ".SH NAME"]
    lines += [rf"{_escape(page)} \- {_escape(summary)}"]
    lines += [".SH SYNOPSIS", f".B {_escape(context.command_path)}", _escape(usage), ".SH DESCRIPTION"]
    paragraphs = inspect.cleandoc(command.help or "").split("\n\n")
    lines += ["\n.PP\n".join(_escape(" ".join(paragraph.split())) for paragraph in paragraphs), ".SH OPTIONS"]
    for parameter in sorted(command.get_params(context), key=lambda each: each.param_type_name != "argument"):
        if record := parameter.get_help_record(context):
            lines += [".TP", f".B {_escape(record[0])}", _escape(" ".join(record[1].split()))]
    return lines


def _page_name(command: str) -> str:
    return _escape("-".join([NAME, *command.split()]))


def _escape(text: str) -> str:
    text = text.replace("\\", r"\e").replace("-", r"\-")
    return rf"\&{text}" if text.startswith((".", "'")) else text


def _join(lines: list[str]) -> str:
    return "\n".join(lines) + "\n"
