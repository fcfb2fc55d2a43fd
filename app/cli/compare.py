"""`longhorn-extender compare`: the same pods without an extender, by Longhorn's proposal, and by this extender."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Final

import typer

from app.cli.explain import Output, show
from app.cli.explain_subject import ClusterSource, read_source
from app.cli.options import (
    ContextOption,
    KubeconfigOption,
    LonghornNamespaceOption,
    PackingOption,
    SnapshotOption,
    check_standard_input,
    filter_options,
)
from app.cli.predictions import (
    NO_RESOURCES,
    OrdersOption,
    SeedOption,
    order_seeds,
    predicted_cluster,
    seeded_choice,
    show_progress,
)
from app.cli.what_if_changes import ChangeReader, parallel_sets
from app.kube.scheduling_objects import SchedulingObjects
from app.schemas.comparison_answer import NOTES, ComparisonAnswer, comparison_answer
from app.settings import DEFAULT_NAMESPACE, BestEffort
from scheduler_core.errors import CoreError
from scheduler_core.extender.decision import FilterOptions, Packing
from scheduler_core.extender.kube_scheduler_filters import compares_resources
from scheduler_core.extender.strategies.comparison import StrategyComparison, summarize
from scheduler_core.extender.strategies.generated_cluster import AddPods, draw_cluster, draw_volume_sizes
from scheduler_core.extender.strategies.seeded_run import Pace, RunResult, arrival_order, run_strategy
from scheduler_core.extender.strategies.strategy import STRATEGIES, StrategyName
from scheduler_core.extender.what_if.predicted_replicas import Choose
from scheduler_core.extender.what_if.situation import Situation
from scheduler_core.generic.cluster_state import GenericClusterState
from scheduler_core.model import generic

DEFAULT_ORDERS: Final = 5
_PACE: Final = Pace()
_MAX_NODES: Final = 5_000
_MAX_PODS: Final = 10_000
_MAX_VOLUMES: Final = 16
_MAX_STEPS: Final = 100_000
_DEFAULT_DISK_BYTES: Final = 400 * 2**30


def compare(
    snapshot: SnapshotOption = None,
    nodes: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, max=_MAX_NODES, help="Generate a cluster of N nodes instead of reading one."),
    ] = None,
    apply: Annotated[
        list[str] | None, typer.Option(metavar="FILE", help="Place the pods of a file's objects; - for standard input.")
    ] = None,
    scale: Annotated[
        list[str] | None,
        typer.Option(metavar="sts/NAME=N", help="Scale a StatefulSet, Deployment (deploy/) or ReplicaSet (rs/)."),
    ] = None,
    pods: Annotated[int, typer.Option(metavar="N", min=0, max=_MAX_PODS, help="Place N generated pods.")] = 0,
    volumes: Annotated[
        int, typer.Option(metavar="K", min=1, max=_MAX_VOLUMES, help="Volumes of each generated pod, 10Gi to 80Gi.")
    ] = 2,
    fill: Annotated[
        int,
        typer.Option(
            metavar="PERCENT", min=1, max=1000, help="How much of a generated cluster the generated pods would fill."
        ),
    ] = 80,
    lag: Annotated[
        int,
        typer.Option(
            metavar="N", min=0, max=_MAX_STEPS, help="Decisions until Longhorn's status shows a placement; 0: at once."
        ),
    ] = _PACE.lag,
    binding: Annotated[
        int, typer.Option(metavar="N", min=0, max=_MAX_STEPS, help="Decisions until a pod is provisioned and bound.")
    ] = _PACE.binding,
    orders: OrdersOption = DEFAULT_ORDERS,
    seed: SeedOption = 0,
    output: Annotated[Output, typer.Option("--output", "-o", help="How to print.")] = Output.TABLE,
    packing: PackingOption = Packing.AUTO,
    kubeconfig: KubeconfigOption = None,
    context: ContextOption = None,
    namespace: Annotated[
        str | None, typer.Option("--namespace", "-n", metavar="NAME", help="Namespace of workloads.")
    ] = None,
    longhorn_namespace: LonghornNamespaceOption = DEFAULT_NAMESPACE,
) -> None:
    """Compare strategies on the same pods.

    The strategies are kube-scheduler alone (none), Longhorn's proposal for an extender (proposal), this extender (capacity), and this
    extender with its placement guard (guarded). The output says how many pods are placed, and how many volumes are misplaced and disks
    overbooked, over time and in the end.

    Nothing is changed in the cluster.

    Exit code 0: compared. 2: bad input.
    """
    if snapshot is not None and nodes is not None:
        raise CoreError("--snapshot and --nodes exclude each other: a cluster is either read or generated")
    check_standard_input(snapshot, *(apply or ()))
    choose = seeded_choice(f"{seed}/generated")
    sizes = draw_volume_sizes(pods, volumes, choose)
    if nodes is None:
        source = read_source(snapshot, kubeconfig, context, longhorn_namespace, needs_nodes=not apply)
    else:
        requested = sum(map(sum, sizes)) * 100 // fill
        source = _generated_source(nodes, requested or nodes * _DEFAULT_DISK_BYTES, choose)
    reader = ChangeReader(source, namespace)
    verbs = [*(("apply", text) for text in apply or ()), *(("scale", text) for text in scale or ())]
    situation = Situation(predicted_cluster(source), parallel=parallel_sets(source))
    for change in (*reader.read(verbs), *([AddPods(sizes)] if pods else ())):
        situation = change.apply(situation)
    if not situation.all_pods():
        raise CoreError("no pod is to be placed; give --pods N, --apply FILE or --scale sts/NAME=N")
    pace = Pace(lag=lag, binding=binding)
    options = filter_options(BestEffort.REQUIRE, packing)
    comparison = _compare(situation, pace, options, order_seeds(seed, orders))
    notes = [*NOTES, *([] if compares_resources(source.objects.state) else [NO_RESOURCES]), *reader.notes]
    _print(comparison_answer(comparison, packing, seed, notes), output)


def _generated_source(nodes: int, capacity: int, choose: Choose) -> ClusterSource:
    snapshot = draw_cluster(nodes, capacity, choose)
    listed = [generic.Node(node.name, node.labels) for node in snapshot.nodes.values()]
    objects = SchedulingObjects(GenericClusterState.of(listed, (), ()), {}, {})
    return ClusterSource(snapshot, objects, f"the generated cluster of {nodes} nodes")


def _compare(situation: Situation, pace: Pace, options: FilterOptions, seeds: Sequence[str]) -> StrategyComparison:
    """Runs every strategy in every order; the pods of an order arrive in the same way for each strategy."""
    results: dict[StrategyName, list[RunResult]] = {name: [] for name in STRATEGIES}
    for seed, name in show_progress([(seed, name) for seed in seeds for name in STRATEGIES], "Running strategies"):
        arrival = arrival_order(situation, seeded_choice(f"{seed}/arrival"))
        choose = seeded_choice(f"{seed}/choices")
        run = run_strategy(situation, arrival, STRATEGIES[name](options), pace, choose)
        results[name].append(run)
    return StrategyComparison(
        nodes=len(situation.cluster.node_names),
        pods=len(situation.all_pods()),
        orders=len(seeds),
        pace=pace,
        strategies=tuple(summarize(name, results[name]) for name in STRATEGIES),
    )


def _print(answer: ComparisonAnswer, output: Output) -> None:
    def table(console: Any) -> None:
        from app.cli.compare_tables import print_comparison

        print_comparison(answer, console)

    show(answer.model_dump(by_alias=True), output, table)
