"""The tables of `longhorn-extender explain --pod`."""

from __future__ import annotations

from collections.abc import Mapping

from rich.console import Console
from rich.table import Table
from rich.text import Text

from app.schemas.explain import ExplainAnswer, NodeAnswer, VolumeAnswer
from scheduler_core.model.quantity import format_bytes


def print_pod(answer: ExplainAnswer, disks: Mapping[str, str], console: Console) -> None:
    """Prints the pod's volumes and one line per node; `disks` has the name of each disk by UUID."""
    console.print(Text(f"pod {answer.pod}", style="bold"))
    for volume in answer.volumes:
        console.print(Text(f"  {_volume_line(volume)}"))
    if not answer.volumes:
        console.print("  no Longhorn volumes")
    table = Table("NODE", "FITS", "REASON", "MISSING", "PLAN AND DETAIL", box=None, pad_edge=False)
    for name, entry in answer.nodes.items():
        table.add_row(
            name,
            Text("yes", style="green") if entry.fits else Text("no", style="red"),
            entry.reason,
            format_bytes(entry.missing) if entry.missing else "",
            Text(_plan_and_detail(entry, disks)),
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


def _plan_and_detail(entry: NodeAnswer, disks: Mapping[str, str]) -> str:
    plan = ", ".join(f"{volume} on {disks.get(uuid, uuid)}" for volume, uuid in entry.plan.items())
    return "; ".join(part for part in (plan, entry.detail) if part)
