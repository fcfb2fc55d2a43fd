"""`longhorn-extender explain`: why a pod fits or does not fit on each node.

With `--volume`: why a volume's replica can or cannot be placed.
"""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Callable
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from app.cli.options import (
    AloneOption,
    BestEffortOption,
    ContextOption,
    KubeconfigOption,
    NamespaceOption,
    PackingOption,
    SnapshotOption,
    filter_options,
    now,
    read_snapshot,
)
from app.kube.snapshot_file import load_pod
from app.schemas.explain import Answer, explain_answer
from app.schemas.volume import explain_volume
from app.settings import DEFAULT_NAMESPACE, BestEffort
from scheduler_core.cluster.view import View
from scheduler_core.cooperative import run_to_end
from scheduler_core.errors import CoreError
from scheduler_core.evaluation.state import ClusterState
from scheduler_core.extender.decision import NO_CONTENDERS, Competing, FilterOptions, Packing
from scheduler_core.extender.explain import explain_nodes
from scheduler_core.model.snapshot import Snapshot

if TYPE_CHECKING:
    from rich.console import Console

DOES_NOT_FIT: Final = 1
_UNLIMITED_WIDTH: Final = 2**16


class Output(StrEnum):
    """The format in which a result is printed."""

    TABLE = "table"
    JSON = "json"
    YAML = "yaml"


def explain(
    snapshot: SnapshotOption = None,
    pod: Annotated[
        str | None,
        typer.Option(
            metavar="FILE|NAME",
            help="A file with a Pod, or a Deployment, StatefulSet, ... whose template is taken; or namespace/name of a "
            "pod in the snapshot or cluster.",
        ),
    ] = None,
    volume: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Instead of a pod: a Longhorn volume whose next replica is to be placed."),
    ] = None,
    node: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Ask about this node only; may be repeated.")
    ] = None,
    output: Annotated[Output, typer.Option("--output", "-o", help="How to print.")] = Output.TABLE,
    best_effort: BestEffortOption = BestEffort.REQUIRE,
    packing: PackingOption = Packing.AUTO,
    alone: AloneOption = False,  # noqa: FBT002 # --alone
    kubeconfig: KubeconfigOption = None,
    context: ContextOption = None,
    namespace: NamespaceOption = DEFAULT_NAMESPACE,
) -> None:
    """Tell on which nodes the pod's Longhorn volumes fit, and why not elsewhere.

    For every node: the disks that the volumes would use, and what is missing.

    Space that other pods' volumes will take counts, as it does in /filter; --alone leaves it out.

    With --volume: by which rules Longhorn would place the volume's next replica, disk by disk, with the numbers.

    Exit code 0: some node (or disk) fits. 1: none does. 2: bad input.
    """
    if (pod is None) == (volume is None):
        raise CoreError("explain needs either --pod or --volume; see --help")
    cluster = read_snapshot(snapshot, kubeconfig, context, namespace)
    if volume is not None:
        fits = _explain_volume(volume, cluster, node, output)
    else:
        fits = _explain_pod(str(pod), cluster, node, output, filter_options(best_effort, packing), alone=alone)
    if not fits:
        raise typer.Exit(DOES_NOT_FIT)


def _explain_pod(
    source: str, snapshot: Snapshot, nodes: list[str] | None, output: Output, options: FilterOptions, *, alone: bool
) -> bool:
    pod, merged = load_pod(source, snapshot)
    # A snapshot without Kubernetes nodes has Longhorn's.
    candidates = sorted(set(nodes or merged.nodes or merged.longhorn_nodes))
    state = ClusterState.of(View.of(merged, now()))
    contenders = NO_CONTENDERS if alone else Competing.without_offers(state)
    explanation = run_to_end(explain_nodes(pod, candidates, state, options, contenders))
    answer = run_to_end(explain_answer(pod, explanation))

    def table(console: Console) -> None:
        from app.cli.explain_tables import print_pod

        disks = {disk.uuid: disk.name for entry in merged.longhorn_nodes.values() for disk in entry.disks}
        print_pod(answer, disks, console)

    _print(answer, output, table)
    return any(entry.fits for entry in answer.nodes.values())


def _explain_volume(name: str, snapshot: Snapshot, nodes: list[str] | None, output: Output) -> bool:
    answer = explain_volume(View.of(snapshot, now()), name, nodes)

    def table(console: Console) -> None:
        from app.cli.explain_tables import print_volume

        print_volume(answer, console)

    _print(answer, output, table)
    return bool(answer.candidates)


def _print(answer: Answer, output: Output, table: Callable[[Console], None]) -> None:
    show(answer.model_dump(by_alias=True), output, table)


def show(data: dict[str, Any], output: Output, table: Callable[[Console], None]) -> None:
    """Prints a result as JSON, as YAML, or by calling `table`."""
    # When the reader of a pipe, such as `head`, closes its end, this program ends as any filter does.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    if output is Output.JSON:
        typer.echo(json.dumps(data, indent=2))
    elif output is Output.YAML:
        import yaml

        typer.echo(yaml.safe_dump(data, sort_keys=False, allow_unicode=True), nl=False)
    else:
        from rich.console import Console

        # Without a terminal lines need not fit any width.
        width = None if sys.stdout.isatty() else _UNLIMITED_WIDTH
        table(Console(width=width, markup=False, emoji=False, highlight=False))
