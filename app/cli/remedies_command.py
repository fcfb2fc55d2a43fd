"""`longhorn-extender remedies`: the cheapest changes that make a pod fit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

import typer

from app.cli.explain import DOES_NOT_FIT, MAX_REMEDIES, Output, show
from app.cli.explain_subject import read_source, select_pod
from app.cli.options import (
    BestEffortOption,
    ContextOption,
    KubeconfigOption,
    LonghornNamespaceOption,
    PackingOption,
    SnapshotOption,
    check_standard_input,
    filter_options,
)
from app.cli.pod_remedies import cluster_of_pod
from app.cli.predictions import show_status
from app.schemas.remedies_answer import RemediesAnswer, remedies_answer
from app.settings import DEFAULT_NAMESPACE, BestEffort
from scheduler_core.errors import CoreError
from scheduler_core.extender.decision import FilterOptions, Packing, check_existing_volumes, resolve_candidates
from scheduler_core.model.kube import Pod
from scheduler_core.predict.pod_decision import PodDecider
from scheduler_core.predict.predicted_cluster import PredictedCluster
from scheduler_core.predict.remedies import RemedySearch, find_remedies
from scheduler_core.volumes.by_node import merge_resolutions

if TYPE_CHECKING:
    from rich.console import Console

_DEFAULT_LIMIT: Final = 5


def remedies(
    subject: Annotated[
        str,
        typer.Argument(
            metavar="POD",
            help="NAME, NAMESPACE/NAME or pod/NAME of a pod; deploy/NAME, sts/NAME, ... for the first pod of a workload that waits; or "
            "a file with a pod or a workload.",
        ),
    ],
    snapshot: SnapshotOption = None,
    limit: Annotated[
        int, typer.Option(metavar="N", min=1, max=MAX_REMEDIES, help="How many remedies are printed at most.")
    ] = _DEFAULT_LIMIT,
    output: Annotated[Output, typer.Option("--output", "-o", help="How to print.")] = Output.TABLE,
    best_effort: BestEffortOption = BestEffort.REQUIRE,
    packing: PackingOption = Packing.AUTO,
    kubeconfig: KubeconfigOption = None,
    context: ContextOption = None,
    namespace: Annotated[
        str | None, typer.Option("--namespace", "-n", metavar="NAME", help="Namespace of the pod.")
    ] = None,
    longhorn_namespace: LonghornNamespaceOption = DEFAULT_NAMESPACE,
) -> None:
    """Find the cheapest changes of the cluster that make a pod fit.

    Uncordon a node, allow scheduling, add tags, free or add space, move a replica. Each is checked by the decision of /filter on the
    changed cluster before it is printed.

    Nothing is changed in the cluster.

    Exit code 0: the pod fits as it is. 1: it does not, and the remedies are printed, if there are any. 2: bad input.
    """
    check_standard_input(snapshot, subject)
    source = read_source(snapshot, kubeconfig, context, longhorn_namespace, needs_nodes=True)
    pod = select_pod(subject, namespace, source)
    if pod.snapshot.disk_schedules:
        raise CoreError("remedies cannot predict a cluster whose disks are allocated through DiskSchedules")
    cluster = cluster_of_pod(pod, source)
    with show_status("Searching for remedies"):
        search = _search(pod.pod, cluster, filter_options(best_effort, packing), limit)
    answer = remedies_answer(pod.pod.key, cluster, search, longhorn_namespace)
    _print(answer, output)
    if not answer.fits:
        raise typer.Exit(DOES_NOT_FIT)


def _search(pod: Pod, cluster: PredictedCluster, options: FilterOptions, limit: int) -> RemedySearch | None:
    """Returns the search, None for a pod that fits."""
    parts = resolve_candidates(pod, cluster.node_names, cluster.state.view, options)
    check_existing_volumes(merge_resolutions(parts))
    if PodDecider(options).decide(pod, cluster, lambda _: 0).node:
        return None
    return find_remedies(pod, cluster, options, limit)


def _print(answer: RemediesAnswer, output: Output) -> None:
    def table(console: Console) -> None:
        from app.cli.remedies_tables import print_remedies

        print_remedies(answer, console)

    show(answer.model_dump(by_alias=True), output, table)
