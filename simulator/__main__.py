"""`python -m simulator`: the command line and its exit codes. Exit code 0: it was stopped. Otherwise it prints one line on
standard error and exits with 2 if its input is wrong, or with 1 if it broke; the log then holds the traceback.
"""

import asyncio
import logging
import sys
from pathlib import Path
from typing import Annotated

import structlog
import typer

from scheduler_core.errors import CoreError
from simulator.config import load
from simulator.run import RunOptions, run

NAME = "simulator"
BAD_INPUT = 2
BROKEN = 1

log = structlog.get_logger("simulator")

cli = typer.Typer(
    name=NAME,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@cli.command()
def simulate(
    kubeconfig: Annotated[
        str | None, typer.Option(help="Which cluster; a pod's own, $KUBECONFIG or ~/.kube/config if left out.")
    ] = None,
    config: Annotated[Path | None, typer.Option(help="A YAML file, see docs/simulator.md.")] = None,
    status_port: Annotated[
        int, typer.Option(min=0, max=65535, help="GET /status is served here on 127.0.0.1; 0: any free port.")
    ] = 0,
    install: Annotated[  # noqa: FBT002 # an option
        bool, typer.Option(help="Create CRDs, CSI driver, StorageClasses, settings and admission rules first.")
    ] = True,
    log_level: Annotated[str, typer.Option(help="debug, info, warning or error.")] = "info",
) -> None:
    """Plays Longhorn, without disks, in a real cluster of kwok nodes."""
    _configure_logging(log_level)
    asyncio.run(run(RunOptions(kubeconfig, load(config), status_port, install)))


def _configure_logging(level: str) -> None:
    number = logging.getLevelNamesMapping().get(level.upper())
    if number is None:
        raise typer.BadParameter(f"{level!r} is not debug, info, warning or error", param_hint="--log-level")
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=structlog.PrintLoggerFactory(),
    )


def main() -> None:
    """Runs the program; an error becomes one line and an exit code."""
    try:
        sys.exit(cli(standalone_mode=False, prog_name=NAME) or 0)
    except typer.TyperException as error:
        problem = f"{error.format_message().rstrip('.')}; see --help"
        code = BAD_INPUT
    except Exception as error:  # of any kind: standard error gets one line, never a traceback
        problem, code = _explain(error)
        if code == BROKEN:
            log.exception("broke", error=problem)
    sys.stderr.write(f"{NAME}: {' '.join(problem.split())}\n")
    sys.exit(code)


def _explain(error: Exception) -> tuple[str, int]:
    """Returns one line and an exit code for an error. A group of failed tasks is explained by the first that failed for another
    reason than its input.
    """
    first = error
    while isinstance(first, ExceptionGroup):
        _, broken = first.split(CoreError)
        first = (broken or first).exceptions[0]
    if isinstance(first, CoreError):
        return str(first), BAD_INPUT
    return f"unexpected {type(first).__name__}: {first}; the log on standard output has the traceback", BROKEN


if __name__ == "__main__":
    main()
