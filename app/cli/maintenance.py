"""`longhorn-extender maintenance`: an order of nodes in which every drain fits."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any, Final

import typer

from app.cli.explain import Output, show
from app.cli.explain_subject import ClusterSource, read_source
from app.cli.options import (
    BestEffortOption,
    ContextOption,
    KubeconfigOption,
    LonghornNamespaceOption,
    PackingOption,
    SnapshotOption,
    filter_options,
)
from app.cli.predictions import (
    OrdersOption,
    RebuildRateOption,
    SeedOption,
    order_seeds,
    predicted_cluster,
    progress_of,
    read_rate,
    seeded_choice,
    source_notes,
)
from app.cli.what_if_changes import parallel_sets
from app.schemas.planning_answer import MaintenanceAnswer, maintenance_answer
from app.schemas.what_if_answer import NOTES
from app.settings import DEFAULT_NAMESPACE, BestEffort
from scheduler_core.extender.decision import Packing
from scheduler_core.predict.drain_order import MaintenanceRequest, find_drain_order
from scheduler_core.predict.predicted_replicas import Choose

FAILS: Final = 1
_DEFAULT_ORDERS: Final = 5
_DEFAULT_TRIES: Final = 50


def maintenance(
    nodes: Annotated[
        list[str] | None, typer.Argument(metavar="[NODE]...", help="The nodes to maintain; all of them by default.")
    ] = None,
    snapshot: SnapshotOption = None,
    orders: OrdersOption = _DEFAULT_ORDERS,
    seed: SeedOption = 0,
    tries: Annotated[
        int, typer.Option(metavar="N", min=1, help="How many orders of nodes may end in a dead end.")
    ] = _DEFAULT_TRIES,
    rebuild_rate: RebuildRateOption = None,
    output: Annotated[Output, typer.Option("--output", "-o", help="How to print.")] = Output.TABLE,
    best_effort: BestEffortOption = BestEffort.REQUIRE,
    packing: PackingOption = Packing.AUTO,
    kubeconfig: KubeconfigOption = None,
    context: ContextOption = None,
    longhorn_namespace: LonghornNamespaceOption = DEFAULT_NAMESPACE,
) -> None:
    """Find an order of nodes in which every drain fits.

    One node after the other is drained, maintained and uncordoned. Its pods go where the extender lets them and stay there, and
    Longhorn rebuilds replicas meanwhile. A drain fits if it finishes, every pod that it moves runs elsewhere, and no attached volume
    is without a healthy replica, in many random orders of events.

    Nothing is changed in the cluster.

    Exit code 0: all nodes can be drained in the order that is printed. 1: there is no such order, or none was found. 2: bad input.
    """
    rate = read_rate(rebuild_rate)
    source = read_source(snapshot, kubeconfig, context, longhorn_namespace, needs_nodes=True)
    names = tuple(dict.fromkeys(nodes or _all_nodes(source)))
    with progress_of(len(names), "Draining nodes") as report:
        request = MaintenanceRequest(
            cluster=predicted_cluster(source),
            nodes=names,
            options=filter_options(best_effort, packing),
            courses=[partial(_choose, text) for text in order_seeds(seed, orders)],
            tries=tries,
            parallel=parallel_sets(source),
            report=report,
        )
        order = find_drain_order(request)
    answer = maintenance_answer(order, seed, rate, [*NOTES, *source_notes(source, drains=True)])
    _print(answer, output)
    if not answer.succeeds:
        raise typer.Exit(FAILS)


def _all_nodes(source: ClusterSource) -> list[str]:
    return sorted(source.snapshot.nodes or source.snapshot.longhorn_nodes)


def _choose(seed: str, node: str) -> Choose:
    return seeded_choice(f"{seed}/{node}")


def _print(answer: MaintenanceAnswer, output: Output) -> None:
    def table(console: Any) -> None:
        from app.cli.planning_tables import print_maintenance

        print_maintenance(answer, console)

    show(answer.model_dump(by_alias=True), output, table)
