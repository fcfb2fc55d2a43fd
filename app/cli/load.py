"""What the commands share: options, and loading a snapshot while telling what was passed over."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated

import typer

from app.kube.snapshot_file import load_snapshot
from app.settings import BestEffort
from scheduler_core.model.snapshot import Snapshot
from scheduler_core.verbs import Options, Packing

SnapshotOption = Annotated[
    str,
    typer.Option(
        "--snapshot",
        metavar="FILE",
        help="What `kubectl get nodes,pods,pvc,pv,sc,nodes.longhorn.io,volumes.longhorn.io,replicas.longhorn.io,"
        "settings.longhorn.io,backingimages.longhorn.io,engineimages.longhorn.io,instancemanagers.longhorn.io -A -o yaml` prints, as YAML or JSON; - for standard input.",
    ),
]
BestEffortOption = Annotated[
    BestEffort,
    typer.Option(
        "--best-effort",
        envvar="LONGHORN_EXTENDER_BEST_EFFORT",
        help="Whether best-effort volumes require room on the pod's node, or only prefer it.",
    ),
]
PackingOption = Annotated[
    Packing,
    typer.Option(
        "--packing",
        envvar="LONGHORN_EXTENDER_PACKING",
        help="Which nodes with room are offered: auto = those where every placement order succeeds, if there are any; "
        "order-safe = only those; exact = all.",
    ),
]


def options_of(best_effort: BestEffort, packing: Packing) -> Options:
    """How decisions are made."""
    return Options(packing=packing, require_best_effort=best_effort is BestEffort.REQUIRE)


def snapshot_from(source: str) -> Snapshot:
    """Loads a snapshot; warnings go to standard error.

    Raises:
        SnapshotFileError: it cannot be read
    """
    loaded = load_snapshot(source)
    for warning in loaded.warnings:
        typer.echo(f"warning: {warning}", err=True)
    return loaded.snapshot


def now() -> datetime:
    """The present moment; a snapshot does not say when it was taken."""
    return datetime.now(UTC)
