"""`longhorn-extender`: the entry point, and how every command ends.

Exit code 0: it fits, or all went well. 1: it does not fit. 2: bad input, with one clear line on standard error.
"""

from __future__ import annotations

import os
import sys
from importlib.metadata import version
from typing import Annotated

import click
import typer

from app import DISTRIBUTION
from app.cli import explain, serve
from scheduler_core.errors import CoreError

BAD_INPUT = 2

cli = typer.Typer(
    name="longhorn-extender",
    help="Offers a pod only the nodes whose Longhorn disks can hold all of its volumes.",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
cli.command("serve")(serve.serve)
cli.command("explain")(explain.explain)


@cli.callback(invoke_without_command=True)
def options(
    show_version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,  # noqa: FBT002
) -> None:
    """Options of the program itself."""
    if show_version:
        typer.echo(version(DISTRIBUTION))
        raise typer.Exit


def main() -> None:
    """Runs the program and turns what went wrong into one line and an exit code."""
    try:
        sys.exit(cli(standalone_mode=False) or 0)
    except click.exceptions.Exit as error:
        sys.exit(error.exit_code)
    except click.ClickException as error:
        error.show()
        sys.exit(BAD_INPUT)
    except (click.exceptions.Abort, KeyboardInterrupt):
        sys.exit(130)
    except CoreError as error:
        typer.echo(f"longhorn-extender: {error}", err=True)
        sys.exit(BAD_INPUT)
    except BrokenPipeError:
        # The reader, `head` for instance, has seen enough; Python would complain again while closing standard output.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
