"""`longhorn-extender headroom`: how many more pods of a template fit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Any, Final

import typer

from app.cli.explain import Output, show
from app.cli.explain_subject import read_source
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
from app.cli.predictions import (
    OrdersOption,
    SeedOption,
    order_seeds,
    predicted_cluster,
    seeded_choice,
    show_progress,
    source_notes,
)
from app.cli.workload_templates import pod_template
from app.schemas.planning_answer import HeadroomAnswer, headroom_answer
from app.settings import DEFAULT_NAMESPACE, BestEffort
from scheduler_core.errors import CoreError
from scheduler_core.extender.decision import FilterOptions, Packing
from scheduler_core.predict.cluster_additions import Workload
from scheduler_core.predict.pod_headroom import (
    ClosestNode,
    Headroom,
    closest_node,
    fill_with_pods,
    summarize_headroom,
)
from scheduler_core.predict.predicted_cluster import PredictedCluster
from scheduler_core.predict.situation import Situation

FAILS: Final = 1
_DEFAULT_ORDERS: Final = 5
_DEFAULT_LIMIT: Final = 1_000
_MAX_LIMIT: Final = 100_000


def headroom(
    template: Annotated[
        str, typer.Argument(metavar="TEMPLATE", help="A file with a pod or workload, sts/NAME, deploy/NAME, or a pod.")
    ],
    snapshot: SnapshotOption = None,
    at_least: Annotated[int, typer.Option(metavar="N", min=0, help="How many must fit for exit code 0.")] = 1,
    limit: Annotated[
        int, typer.Option(metavar="N", min=1, max=_MAX_LIMIT, help="How many pods are tried at most.")
    ] = _DEFAULT_LIMIT,
    orders: OrdersOption = _DEFAULT_ORDERS,
    seed: SeedOption = 0,
    output: Annotated[Output, typer.Option("--output", "-o", help="How to print.")] = Output.TABLE,
    best_effort: BestEffortOption = BestEffort.REQUIRE,
    packing: PackingOption = Packing.AUTO,
    kubeconfig: KubeconfigOption = None,
    context: ContextOption = None,
    namespace: Annotated[
        str | None, typer.Option("--namespace", "-n", metavar="NAME", help="Namespace of the workload or pod.")
    ] = None,
    longhorn_namespace: LonghornNamespaceOption = DEFAULT_NAMESPACE,
) -> None:
    """Say how many more pods of a template fit.

    It also says what limits them. The pods are placed one after the other, in several random orders: kube-scheduler's
    filters, the extender's decision, and Longhorn's placement of the replicas. Pods that wait already come first.

    Nothing is changed in the cluster.

    Exit code 0: at least one pod fits in every order, or as many as --at-least says. 1: fewer. 2: bad input.
    """
    if at_least > limit:
        raise CoreError(f"--at-least {at_least}: is more than --limit {limit}")
    check_standard_input(snapshot, template)
    source = read_source(snapshot, kubeconfig, context, longhorn_namespace, needs_nodes=True)
    workload, objects = pod_template(template, namespace, source)
    cluster = predicted_cluster(replace(source, snapshot=objects))
    options = filter_options(best_effort, packing)
    result, closest = _predict(cluster, workload, options, order_seeds(seed, orders), limit)
    answer = headroom_answer(result, template, seed, at_least, closest).model_copy(
        update={"notes": [*_notes(cluster), *source_notes(source, drains=False)]}
    )
    _print(answer, output)
    if not answer.succeeds:
        raise typer.Exit(FAILS)


def _predict(
    cluster: PredictedCluster, template: Workload, options: FilterOptions, seeds: Sequence[str], limit: int
) -> tuple[Headroom, ClosestNode | None]:
    results = [
        fill_with_pods(cluster, template, options, seeded_choice(seed), limit)
        for seed in show_progress(seeds, "Playing orders")
    ]
    result = summarize_headroom(results, limit)
    refused = result.tightest.refused
    return result, None if refused is None else closest_node(refused, options)


def _notes(cluster: PredictedCluster) -> list[str]:
    waiting = len(Situation(cluster).all_pods())
    return [f"pods that wait already: {waiting}; they are placed first where they fit"] if waiting else []


def _print(answer: HeadroomAnswer, output: Output) -> None:
    def table(console: Any) -> None:
        from app.cli.planning_tables import print_headroom

        print_headroom(answer, console)

    show(answer.model_dump(by_alias=True), output, table)
