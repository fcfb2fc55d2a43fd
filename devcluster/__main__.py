"""``python -m devcluster``: a cluster by hand."""

from __future__ import annotations

import signal
import sys
import time
from pathlib import Path
from typing import Annotated, Final, NoReturn

import typer

from devcluster.build import cache_folder, ensure_built
from devcluster.cluster import DevCluster
from devcluster.components import KUBECTL, Options
from devcluster.errors import DevClusterError

_FAILED: Final = 2
_WATCH_SECONDS: Final = 0.5

cli = typer.Typer(
    help="A real Kubernetes control plane on this machine, with kwok nodes.",
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    no_args_is_help=True,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@cli.command()
def build() -> None:
    """Build the programs (once, five to ten minutes) and print the folder they are in."""
    typer.echo(ensure_built(report=_progress))


@cli.command()
def up(
    nodes: Annotated[int, typer.Option(min=0, help="How many nodes to start with.")] = 4,
    directory: Annotated[
        Path | None,
        typer.Option(
            help="The cluster's folder; what a former cluster left in it is removed.", show_default="in the cache"
        ),
    ] = None,
    apply: Annotated[Path | None, typer.Option(help="A folder of manifests to apply, kustomized or not.")] = None,
) -> None:
    """Start a cluster and run it until Ctrl-C."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _interrupt)
    try:
        _run(directory or cache_folder() / "dev", nodes, apply)
    except KeyboardInterrupt:
        _progress("stopped")


def _run(directory: Path, nodes: int, manifests: Path | None) -> None:
    binaries = ensure_built(report=_progress)
    started = time.monotonic()
    _progress(f"starting etcd, kube-apiserver, kube-controller-manager, kube-scheduler and kwok in {directory}")
    with DevCluster(directory, Options(nodes=nodes, binaries=binaries)) as cluster:
        _progress(f"ready after {time.monotonic() - started:.1f} s")
        if manifests is not None:
            _progress(cluster.apply(manifests).rstrip())
        _say_what_next(cluster, binaries)
        try:
            while not (ended := [it for it in cluster.processes.values() if it.crashed]):
                time.sleep(_WATCH_SECONDS)
        except KeyboardInterrupt:
            _progress("stopping (Ctrl-C again: at once)")
            raise
        raise DevClusterError(f"{ended[0].name} ended with code {ended[0].returncode}; {ended[0].log_tail()}")


def _say_what_next(cluster: DevCluster, binaries: Path) -> None:
    typer.echo(
        f"""
The cluster runs until Ctrl-C. In another terminal:

  export KUBECONFIG={cluster.kubeconfig}
  export PATH="$PATH:{binaries}"        # for {KUBECTL}, where it is not installed
  kubectl get nodes
  kubectl create deployment hello --image=anything --replicas=3 && kubectl get pods -o wide

Logs: {cluster.logs}
"""
    )


def _progress(line: str) -> None:
    typer.echo(line, err=True)


def _interrupt(*_: object) -> NoReturn:
    raise KeyboardInterrupt


def main() -> None:
    """Runs the command and turns what went wrong into a message and an exit code."""
    try:
        sys.exit(cli(standalone_mode=False, prog_name="python -m devcluster") or 0)
    except typer.TyperException as error:
        problem = f"{error.format_message().rstrip('.')}; see --help"
    except DevClusterError as error:
        problem = str(error)
    except KeyboardInterrupt:
        problem = "interrupted"
    typer.echo(f"devcluster: {problem}", err=True)
    sys.exit(_FAILED)


if __name__ == "__main__":
    main()
