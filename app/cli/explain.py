"""`longhorn-extender explain`: why a pod fits or does not, node by node; or why a volume's replica can or cannot be placed."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Callable
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from app.cli.options import (
    BestEffortOption,
    ContextOption,
    KubeconfigOption,
    NamespaceOption,
    PackingOption,
    SnapshotOption,
    now,
    options_of,
    snapshot_of,
)
from app.kube.snapshot_file import load_pod
from app.schemas.explain import Answer, explain_answer
from app.schemas.volume import explain_volume
from app.settings import DEFAULT_NAMESPACE, BestEffort
from scheduler_core.cluster.view import View
from scheduler_core.cooperative import finish
from scheduler_core.errors import CoreError
from scheduler_core.evaluation.profile_cache import Memory
from scheduler_core.extender.filter import Options, Packing, explain_nodes
from scheduler_core.model.snapshot import Snapshot

if TYPE_CHECKING:
    from rich.console import Console

DOES_NOT_FIT: Final = 1
_UNLIMITED: Final = 2**16


class Output(StrEnum):
    """How a result is printed."""

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
    kubeconfig: KubeconfigOption = None,
    context: ContextOption = None,
    namespace: NamespaceOption = DEFAULT_NAMESPACE,
) -> None:
    """Tell for every node whether the pod's Longhorn volumes fit, on which disks, and what is missing.

    With --volume: by which rules Longhorn would place the volume's next replica, disk by disk, with the numbers.

    Exit code 0: some node (or disk) fits. 1: none does. 2: bad input.
    """
    if (pod is None) == (volume is None):
        raise CoreError("explain needs either --pod or --volume; see --help")
    loaded = snapshot_of(snapshot, kubeconfig, context, namespace)
    if volume is not None:
        fits = _explain_volume(volume, loaded, node, output)
    else:
        fits = _explain_pod(str(pod), loaded, node, output, options_of(best_effort, packing))
    if not fits:
        raise typer.Exit(DOES_NOT_FIT)


def _explain_pod(pod: str, loaded: Snapshot, nodes: list[str] | None, output: Output, options: Options) -> bool:
    asked, merged = load_pod(pod, loaded)
    # A snapshot without Kubernetes nodes has Longhorn's.
    candidates = sorted(set(nodes or merged.nodes or merged.longhorn_nodes))
    explanation = finish(explain_nodes(asked, candidates, Memory(View.of(merged, now())), options))
    answer = explain_answer(asked, explanation)

    def table(console: Console) -> None:
        from app.cli.explain_pod import print_pod

        disks = {disk.uuid: disk.name for entry in merged.longhorn_nodes.values() for disk in entry.disks}
        print_pod(answer, disks, console)

    _print(answer, output, table)
    return any(entry.fits for entry in answer.nodes.values())


def _explain_volume(name: str, loaded: Snapshot, nodes: list[str] | None, output: Output) -> bool:
    answer = explain_volume(View.of(loaded, now()), name, nodes)

    def table(console: Console) -> None:
        from app.cli.explain_tables import print_volume

        print_volume(answer, console)

    _print(answer, output, table)
    return bool(answer.candidates)


def _print(answer: Answer, output: Output, table: Callable[[Console], None]) -> None:
    show(answer.model_dump(by_alias=True), output, table)


def show(data: dict[str, Any], output: Output, table: Callable[[Console], None]) -> None:
    """Prints a result: as data, or by `table`, which is given where to."""
    # A reader that has seen enough, `head` for instance, ends this program as it ends any filter.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    if output is Output.JSON:
        typer.echo(json.dumps(data, indent=2))
    elif output is Output.YAML:
        import yaml

        typer.echo(yaml.safe_dump(data, sort_keys=False, allow_unicode=True), nl=False)
    else:
        from rich.console import Console

        # Away from a terminal nothing is cut or broken to fit a width nobody asked for.
        width = None if sys.stdout.isatty() else _UNLIMITED
        table(Console(width=width, markup=False, emoji=False, highlight=False))
