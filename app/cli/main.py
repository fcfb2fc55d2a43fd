"""`longhorn-extender`: the entry point, and the exit code of every command. Exit code 0: it fits, or the command
succeeded. 1: it does not fit. 2: bad input, with one clear line on standard error.
"""

from __future__ import annotations

import sys
from importlib.metadata import version
from typing import Annotated

import typer

from app import DISTRIBUTION
from app.cli import (
    compare,
    decisions,
    disk_schedule,
    doctor,
    explain,
    headroom,
    maintenance,
    policy_check,
    rebalance,
    remedies_command,
    schedule,
    scheduler_registration,
    serve,
    snapshot,
    top,
    waiting,
    what_if,
)
from app.cli.terminal import print_line, print_lines
from app.runtime.logs import configure_for_results
from app.schemas.pod_explanation import API_VERSION
from scheduler_core.errors import CoreError

NAME = "longhorn-extender"
BAD_INPUT = 2


def show_version(
    output: Annotated[explain.Output, typer.Option("--output", "-o", help="How to print.")] = explain.Output.TABLE,
) -> None:
    """Print the version."""
    number = version(DISTRIBUTION)
    data = {"apiVersion": API_VERSION, "kind": "Version", "version": number}
    explain.show(data, output, lambda console: console.print(number))


cli = typer.Typer(
    name=NAME,
    help="Offers a pod only the nodes whose Longhorn disks can hold all of its volumes.",
    add_completion=True,
    # The boxes of rich mark-up cut long words, such as the list of kinds that a snapshot takes.
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
cli.command("serve")(serve.serve)
cli.command("explain")(explain.explain)
cli.command("top")(top.top)
cli.command("waiting")(waiting.waiting)
cli.command("decisions")(decisions.decisions)
cli.command("doctor")(doctor.doctor)
cli.command("scheduler-config")(scheduler_registration.scheduler_config)
cli.command("what-if", cls=what_if.CommandWithOrder)(what_if.what_if)
cli.command("headroom")(headroom.headroom)
cli.command("maintenance")(maintenance.maintenance)
cli.command("compare")(compare.compare)
cli.command("remedies")(remedies_command.remedies)
cli.command("rebalance")(rebalance.rebalance)
cli.command("schedule")(schedule.schedule)
cli.command("snapshot")(snapshot.snapshot)
cli.command("disk-schedule")(disk_schedule.disk_schedule)
cli.command("version")(show_version)
policy = typer.Typer(rich_markup_mode=None)
policy.command("check")(policy_check.check)
cli.add_typer(policy, name="policy")


@policy.callback(invoke_without_command=True)
def policy_files(context: typer.Context) -> None:
    """Work with policy files of the generic scheduler."""
    _require_command(context)


def _require_command(context: typer.Context) -> None:
    """Prints the help and ends the program if no command is given."""
    if context.invoked_subcommand is None:
        print_lines(context.get_help(), err=True)
        raise typer.Exit(BAD_INPUT)


@cli.callback(invoke_without_command=True)
def options(
    context: typer.Context,
    version_only: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,  # noqa: FBT002
) -> None:
    """Options of the program itself."""
    if version_only:
        show_version()
        raise typer.Exit
    _require_command(context)


def main() -> None:
    """Runs the program; an error becomes one line and an exit code."""
    # A command that serves or watches configures its logs again.
    configure_for_results()
    try:
        sys.exit(cli(standalone_mode=False, prog_name=NAME) or 0)
    except typer.TyperException as error:
        if isinstance(error, typer.BadParameter) and error.__cause__ is not None:
            from app.schemas.value_problem import problem_of

            error.message = problem_of(error.__cause__, error.message)
        problem = f"{error.format_message().rstrip('.')}; see --help"
    except CoreError as error:
        problem = str(error)
    print_line(f"{NAME}: {' '.join(problem.split())}", err=True)
    sys.exit(BAD_INPUT)
