"""What the commands share: options, and loading a snapshot while telling what was passed over."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any

import typer

from app.kube.snapshot_file import load_snapshot
from app.settings import BestEffort
from scheduler_core.extender.filter import Options, Packing
from scheduler_core.model.snapshot import Snapshot

SnapshotOption = Annotated[
    str | None,
    typer.Option(
        "--snapshot",
        metavar="FILE",
        help="Read a snapshot file instead of a cluster: what `longhorn-extender snapshot` writes, or `kubectl get ... -A "
        "-o yaml` prints; - for standard input.",
    ),
]
KubeconfigOption = Annotated[
    str | None,
    typer.Option(metavar="FILE", help="Credentials; default: the pod's own, else $KUBECONFIG or ~/.kube/config."),
]
ContextOption = Annotated[str | None, typer.Option(metavar="NAME", help="Context of the kubeconfig.")]
NamespaceOption = Annotated[
    str, typer.Option(envvar="POD_NAMESPACE", help="Where Longhorn, the Lease, the Service and the ConfigMap are.")
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


def cluster_objects(
    kubeconfig: str | None, context: str | None, namespace: str, *, progress: bool = False
) -> list[dict[str, Any]]:
    """The live cluster's objects, as a snapshot file has them; warnings, and progress on request, go to standard error.

    Raises:
        CoreError: there is no cluster to talk to, or it refuses
    """
    import asyncio

    from app.kube.client import KubeClient
    from app.kube.snapshot_live import read_cluster

    def tell(text: str) -> None:
        if progress:
            typer.echo(text, err=True)

    async def read() -> list[dict[str, Any]]:
        client = await KubeClient.connect(kubeconfig, context)
        try:
            return await read_cluster(client, namespace, tell, lambda text: typer.echo(f"warning: {text}", err=True))
        finally:
            await client.close()

    return asyncio.run(read())


def snapshot_of(source: str | None, kubeconfig: str | None, context: str | None, namespace: str) -> Snapshot:
    """The snapshot in a file, or, without one, of the live cluster.

    Raises:
        CoreError: it cannot be read
    """
    if source is not None:
        return snapshot_from(source)
    from app.kube.snapshot_live import as_snapshot

    return as_snapshot(cluster_objects(kubeconfig, context, namespace))


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
