"""``python -m devcluster``: runs a local cluster from the command line.

The cluster has everything that a user of the extender runs.

See docs/development.md. Exit codes: 0 when `up` is stopped by Ctrl-C or SIGTERM, 1 when something crashed or did not start, 2 for
bad input, 130 when `build` is interrupted.

`build` also runs where the simulator is not installed (Dockerfile), so `up` imports what it alone needs.
"""

import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from devcluster import kubernetes_version, prometheus
from devcluster.build import cache_folder, ensure_built, ensure_helm_built
from devcluster.errors import ConfigError, DevClusterError
from scheduler_core.structs import replace

if TYPE_CHECKING:
    from devcluster.stack import StackOptions

_CRASHED = 1
_BAD_INPUT = 2
_INTERRUPTED = 130
_WATCH_INTERVAL = 0.5
_SCHEDULER_CONFIG = Path(__file__).parents[1] / "kube-scheduler-config/recommended-managed.yaml"

cli = typer.Typer(
    help="A real Kubernetes control plane on this machine, with kwok nodes, simulated Longhorn and the extender.",
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    no_args_is_help=True,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


KubernetesVersion = Annotated[
    str | None,
    typer.Option(
        "--kubernetes-version",
        metavar="VERSION",
        envvar=kubernetes_version.VARIABLE,
        help="The release of Kubernetes, such as 1.35.4.",
        show_default="the one in devcluster/controlplane/go.mod",
    ),
]


@cli.command()
def build(
    version: KubernetesVersion = None,
    with_helm: Annotated[  # noqa: FBT002 # an option
        bool, typer.Option("--with-helm", help="Build helm, too, which the tests of the chart need.")
    ] = False,
) -> None:
    """Build the programs (once, five to ten minutes) and print the folder they are in."""
    _handle_signals()
    try:
        typer.echo(ensure_built(report=_print_line, version=version))
        if with_helm:
            ensure_helm_built(report=_print_line)
    except KeyboardInterrupt:  # typer would end without a word
        _print_line("devcluster: interrupted")
        raise typer.Exit(_INTERRUPTED) from None


@cli.command()
def up(  # noqa: PLR0913, PLR0917 # a command's parameters are its options
    nodes: Annotated[int, typer.Option(min=0, max=5000, help="How many nodes, each with these disks.")] = 4,
    disks: Annotated[
        str, typer.Option(metavar="SIZES", help="Sizes of each node's Longhorn disks, such as 400Gi,100Gi.")
    ] = "400Gi",
    candidates: Annotated[
        int, typer.Option(min=0, max=9, help="Processes of the extender; 0: you run one yourself.")
    ] = 2,
    scheduler_config: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="kube-scheduler's configuration.",
            show_default="kube-scheduler-config/recommended-managed.yaml",
        ),
    ] = None,
    without_extender: Annotated[  # noqa: FBT002 # an option
        bool, typer.Option("--without-extender", help="kube-scheduler knows no extender, and none runs; to compare.")
    ] = False,
    simulator_config: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The Longhorn simulator's configuration.", show_default="fast")
    ] = None,
    prometheus_wanted: Annotated[
        bool | None,
        typer.Option("--prometheus/--no-prometheus", help="Scrape the extender.", show_default="if installed"),
    ] = None,
    directory: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="The cluster's folder, one for each that runs; what a former cluster left in it is removed.",
            show_default="in the cache",
        ),
    ] = None,
    version: KubernetesVersion = None,
) -> None:
    """Start everything, say what to type next, and run until Ctrl-C."""
    from devcluster import cli_inputs
    from devcluster.stack import StackOptions

    registered = not without_extender
    folder = cli_inputs.directory(directory, cache_folder() / "dev")
    options = StackOptions(
        nodes={f"node-{number}": cli_inputs.disks(disks) for number in range(1, nodes + 1)},
        candidates=candidates if registered else 0,
        create_free_lease=True,
        scheduler_config=cli_inputs.scheduler_config(scheduler_config, _SCHEDULER_CONFIG, registered=registered),
        simulator=cli_inputs.simulator_config(simulator_config),
        prometheus=prometheus.find(prometheus_wanted),
        audit=False,  # it would grow as long as the cluster runs
    )
    _handle_signals()
    try:
        binaries = ensure_built(report=_print_line, version=version)
        _run_stack(folder, replace(options, binaries=binaries), registered=registered)
    except KeyboardInterrupt:
        _print_line("stopped")


def _run_stack(directory: Path, options: "StackOptions", *, registered: bool) -> None:
    from devcluster import next_steps
    from devcluster.stack import Stack
    from devcluster.watch import StackWatch

    report = _report_with_time()
    stack = Stack(directory, options, report)
    try:
        stack.start()
        report(_colour("ready", typer.colors.GREEN))
        typer.echo(
            next_steps.text(
                next_steps.facts(stack, options.binaries or ensure_built(), Path.cwd(), registered=registered)
            )
        )
        watch = StackWatch(stack, report)
        while True:
            watch.check(time.monotonic())
            time.sleep(_WATCH_INTERVAL)
    except KeyboardInterrupt:
        report("stopping (Ctrl-C again: at once)")
        raise
    except DevClusterError as error:
        if stack.cluster.processes:
            report(_colour(f"stopping everything: {str(error).partition(';')[0]}", typer.colors.RED))
        raise
    finally:
        stack.stop()


def _report_with_time() -> Callable[[str], None]:
    started = time.monotonic()
    return lambda line: _print_line(f"{time.monotonic() - started:6.1f} s  {line}")


def _print_line(line: str) -> None:
    typer.echo(line, err=True)


def _colour(line: str, colour: str) -> str:
    """Adds a colour, unless NO_COLOR is set. typer removes it where there is no terminal."""
    return line if os.environ.get("NO_COLOR") else typer.style(line, fg=colour)


def _handle_signals() -> None:
    """Makes SIGINT, SIGTERM and SIGHUP end the command in order. SIGINT is included because it is ignored in a process that a
    script starts in the background.
    """
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _interrupt)


def _interrupt(*_: object) -> NoReturn:
    raise KeyboardInterrupt


def main() -> None:
    """Runs the command; an error becomes a message and an exit code."""
    try:
        sys.exit(cli(standalone_mode=False, prog_name="python -m devcluster") or 0)
    except typer.TyperException as error:
        problem = f"{error.format_message().rstrip('.')}; see --help"
        code = _BAD_INPUT
    except ConfigError as error:
        problem = str(error)
        code = _BAD_INPUT
    except DevClusterError as error:
        problem = str(error)
        code = _CRASHED
    except OSError as error:  # the named folder cannot be used, or the disk is full
        problem = f"{error.filename or 'a file'}: {error.strerror or error}"
        code = _BAD_INPUT
    except KeyboardInterrupt:
        problem = "interrupted"
        code = _INTERRUPTED
    typer.echo(f"devcluster: {problem}", err=True)
    sys.exit(code)


if __name__ == "__main__":
    main()
