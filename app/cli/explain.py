"""`longhorn-extender explain`: why a pod fits or does not, node by node."""

from __future__ import annotations

import json
import signal
import sys
from enum import StrEnum
from typing import Annotated

import typer

from app.cli.load import BestEffortOption, PackingOption, SnapshotOption, now, options_of, snapshot_from
from app.kube.snapshot_file import load_pod
from app.services.presentation import ExplainAnswer, NodeAnswer, VolumeAnswer, explain_answer
from app.settings import BestEffort
from scheduler_core.memory import Memory
from scheduler_core.model.snapshot import Snapshot
from scheduler_core.quantity import format_bytes
from scheduler_core.steps import finish
from scheduler_core.verbs import Packing, explain_nodes
from scheduler_core.view import View

DOES_NOT_FIT = 1
_UNLIMITED = 2**16


class Output(StrEnum):
    """How a result is printed."""

    TABLE = "table"
    JSON = "json"
    YAML = "yaml"


def explain(
    snapshot: SnapshotOption,
    pod: Annotated[
        str,
        typer.Option(
            metavar="FILE|NAME",
            help="A file with a Pod, or a Deployment, StatefulSet, ... whose template is taken; or namespace/name of a "
            "pod in the snapshot.",
        ),
    ],
    node: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Ask about this node only; may be repeated.")
    ] = None,
    output: Annotated[Output, typer.Option("--output", "-o", help="How to print.")] = Output.TABLE,
    best_effort: BestEffortOption = BestEffort.REQUIRE,
    packing: PackingOption = Packing.AUTO,
) -> None:
    """Tell for every node whether the pod's Longhorn volumes fit, on which disks, and what is missing.

    Exit code 0: some node fits. 1: none does. 2: bad input.
    """
    loaded = snapshot_from(snapshot)
    asked, merged = load_pod(pod, loaded)
    candidates = sorted(set(node or _nodes(merged)))
    options = options_of(best_effort, packing)
    explanation = finish(explain_nodes(asked, candidates, Memory(View.of(merged, now())), options))
    answer = explain_answer(asked, explanation)
    _print(answer, output)
    if not any(entry.fits for entry in answer.nodes.values()):
        raise typer.Exit(DOES_NOT_FIT)


def _nodes(snapshot: Snapshot) -> list[str]:
    """Every node of the cluster; a snapshot without Kubernetes nodes has Longhorn's."""
    return list(snapshot.nodes or snapshot.longhorn_nodes)


def _print(answer: ExplainAnswer, output: Output) -> None:
    # A reader that has seen enough, `head` for instance, ends this program as it ends any filter.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    data = answer.model_dump(by_alias=True)
    if output is Output.JSON:
        typer.echo(json.dumps(data, indent=2))
    elif output is Output.YAML:
        import yaml

        typer.echo(yaml.safe_dump(data, sort_keys=False, allow_unicode=True), nl=False)
    else:
        _print_tables(answer)


def _print_tables(answer: ExplainAnswer) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    # Away from a terminal nothing is cut or broken to fit a width nobody asked for.
    terminal = sys.stdout.isatty()
    console = Console(width=None if terminal else _UNLIMITED, markup=False, emoji=False, highlight=False)
    console.print(Text(f"pod {answer.pod}", style="bold"))
    for volume in answer.volumes:
        console.print(Text(f"  {_volume_line(volume)}"))
    if not answer.volumes:
        console.print("  no Longhorn volumes")
    table = Table("NODE", "FITS", "REASON", "MISSING", "PLAN AND DETAIL", box=None, pad_edge=False)
    for name, entry in answer.nodes.items():
        style = "green" if entry.fits else "red"
        table.add_row(
            name,
            Text("yes" if entry.fits else "no", style=style),
            entry.reason,
            format_bytes(entry.missing) if entry.missing else "",
            Text(_plan_and_detail(entry)),
        )
    console.print()
    console.print(table)
    fitting = sum(entry.fits for entry in answer.nodes.values())
    console.print(Text(f"\n{fitting} of {len(answer.nodes)} nodes fit", style="bold"))


def _volume_line(volume: VolumeAnswer) -> str:
    claim = volume.claim.partition("/")[2]
    name = f"claim {claim}" + (f" ({volume.name})" if volume.bound else " (not bound yet)")
    where = "needs room on the pod's node" if volume.local else "may be anywhere"
    replicas = ", ".join(
        f"{replica.node or 'no node yet'}{' failed' if replica.failed else '' if replica.healthy else ' not healthy'}"
        for replica in volume.replicas
    )
    line = f"{name}: {format_bytes(volume.size)}, {volume.data_locality}, {where}"
    return f"{line}; replicas: {replicas}" if replicas else line


def _plan_and_detail(entry: NodeAnswer) -> str:
    plan = [f"{volume} -> {disk}" for volume, disk in entry.plan.items()]
    return "; ".join([*plan, *([entry.detail] if entry.detail else [])])
