"""`longhorn-extender remedies`: the cheapest changes that make a pod fit."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Final

import typer

from app.cli.explain import DOES_NOT_FIT, MAX_REMEDIES, Output, show
from app.cli.explain_subject import ClusterSource, ExplainedPod, read_source, select_pod
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
from app.cli.predictions import predicted_cluster, show_status
from app.schemas.pod_explanation import RemedyAnswer
from app.schemas.remedies_answer import RemediesAnswer, remedies_answer, remedy_answer
from app.settings import DEFAULT_NAMESPACE, BestEffort
from scheduler_core.errors import CoreError
from scheduler_core.extender.decision import FilterOptions, Packing, check_existing_volumes, resolve_candidates
from scheduler_core.extender.planning.remedies import MAX_DECISIONS, RemedySearch, find_remedies
from scheduler_core.extender.what_if.pod_decision import PodDecider
from scheduler_core.extender.what_if.predicted_cluster import PredictedCluster
from scheduler_core.model.generic import PodKey
from scheduler_core.model.kube import Pod
from scheduler_core.model.quantity import format_count
from scheduler_core.volumes.by_node import merge_resolutions

if TYPE_CHECKING:
    from rich.console import Console

_DEFAULT_LIMIT: Final = 5
# Each takes about 1 ms in a cluster of 100 nodes. `explain` is asked why a pod waits, so its remedy must not take long.
_EXPLAIN_DECISIONS: Final = 100
# More remedies of nodes that must not be changed are not passed over.
_MAX_AVOIDED: Final = 10


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
    show(answer.model_dump(by_alias=True), output, lambda console: _print_table(answer, console))


def _print_table(answer: RemediesAnswer, console: Console) -> None:
    """Prints the remedies with their commands, which are never wrapped."""
    from rich.text import Text

    if answer.fits:
        console.print(f"pod {answer.pod} fits as it is")
        return
    for number, remedy in enumerate(answer.remedies, start=1):
        console.print(Text(f"{number}. {remedy.text}", style="bold"))
        for step in remedy.steps:
            for command in step.commands:
                console.print(Text(f"   {command}"), soft_wrap=True)
    if answer.remedies:
        console.print()
    if not answer.complete:
        console.print(
            "not searched further: so many changed clusters were decided already; there may be cheaper remedies"
        )
    count = len(answer.remedies)
    shown = f"{format_count(count, 'remedy', 'remedies')}, the cheapest first" if count else "no remedy was found"
    console.print(Text(f"pod {answer.pod} fits nowhere; {shown}", style="bold"))


def cluster_of_pod(pod: ExplainedPod, source: ClusterSource) -> PredictedCluster:
    """Returns the cluster that a pod is decided in, with the other objects of the pod's file."""
    return predicted_cluster(replace(source, snapshot=pod.snapshot))


def remedy_after(
    cluster: PredictedCluster, key: PodKey, avoided: Collection[str], options: FilterOptions, longhorn_namespace: str
) -> RemedyAnswer | None:
    """Returns the cheapest remedy of a short search for a pod of a predicted cluster that changes no node of `avoided`,
    None without one.
    """
    pod = cluster.snapshot.pods[key]
    limit = 1 + min(len(avoided), _MAX_AVOIDED)
    remedies = find_remedies(pod, cluster, options, limit, _EXPLAIN_DECISIONS).remedies
    # A node that is drained is not to be uncordoned.
    allowed = (remedy for remedy in remedies if not any(step.node in avoided for step in remedy.steps))
    remedy = next(allowed, None)
    return None if remedy is None else remedy_answer(cluster, remedy, longhorn_namespace)


def cheapest_remedies(
    pod: ExplainedPod, source: ClusterSource, options: FilterOptions, longhorn_namespace: str, limit: int
) -> list[RemedyAnswer]:
    """Returns the cheapest remedies, none in a cluster that cannot be predicted. The search for one is short."""
    if pod.snapshot.disk_schedules:
        return []
    cluster = cluster_of_pod(pod, source)
    decisions = _EXPLAIN_DECISIONS if limit == 1 else MAX_DECISIONS
    remedies = find_remedies(pod.pod, cluster, options, limit, decisions).remedies
    return [remedy_answer(cluster, remedy, longhorn_namespace) for remedy in remedies]
