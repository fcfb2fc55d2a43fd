"""`longhorn-extender rebalance`: replica moves after which more fits."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
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
    SeedOption,
    order_seeds,
    positive_bytes,
    predicted_cluster,
    seeded_choice,
    show_status,
)
from app.cli.what_if_changes import parallel_sets
from app.schemas.rebalance_answer import GoalAnswer, RebalanceAnswer, rebalance_answer
from app.settings import DEFAULT_NAMESPACE, BestEffort
from scheduler_core.errors import CoreError
from scheduler_core.extender.decision import FilterOptions, Packing
from scheduler_core.longhorn.provisioned_volume import DRIVER
from scheduler_core.longhorn.settings import AUTO_BALANCE_DISABLED
from scheduler_core.predict.move_search import DEFAULT_MAX_MOVES, Rebalance, find_moves
from scheduler_core.predict.predicted_replicas import Choose
from scheduler_core.predict.rebalance_goals import (
    LARGEST_VOLUME,
    WAITING_PODS,
    Baseline,
    Goal,
    LargestVolumeGoal,
    waiting_pods_goal,
)
from scheduler_core.predict.situation import Situation

NO_PLAN: Final = 1
_MAX_MOVES: Final = 10
_DEFAULT_ORDERS: Final = 5
_STATUS_IS_CURRENT: Final = "Longhorn's status counts as current; meanwhile no other volume may be created or grow"
_UNSETTLED: Final = "volumes of which Longhorn has to place replicas: {count}; no move changes whether it can"
_AUTO_BALANCE: Final = "replica-auto-balance is on: Longhorn may move replicas of other volumes, too"
_BUSY: Final = "nodes where volumes of bound pods are still to be placed: {count}; no replica is moved there"


def rebalance(
    snapshot: SnapshotOption = None,
    goal: Annotated[
        str | None,
        typer.Option(
            metavar="GOAL",
            help="largest-volume, largest-volume=STORAGECLASS or waiting-pods; default: waiting-pods if any pod waits, else "
            "largest-volume.",
        ),
    ] = None,
    size: Annotated[
        str | None,
        typer.Option(metavar="SIZE", help="How large the largest volume must become; default: larger than now."),
    ] = None,
    max_moves: Annotated[
        int, typer.Option(metavar="N", min=1, max=_MAX_MOVES, help="How many replicas are moved at most.")
    ] = DEFAULT_MAX_MOVES,
    orders: OrdersOption = _DEFAULT_ORDERS,
    seed: SeedOption = 0,
    output: Annotated[Output, typer.Option("--output", "-o", help="How to print.")] = Output.TABLE,
    best_effort: BestEffortOption = BestEffort.REQUIRE,
    packing: PackingOption = Packing.AUTO,
    kubeconfig: KubeconfigOption = None,
    context: ContextOption = None,
    longhorn_namespace: LonghornNamespaceOption = DEFAULT_NAMESPACE,
) -> None:
    """Find the fewest replica moves after which more fits.

    A move makes one more replica of a volume, where Longhorn chooses, and then deletes an old one. A plan holds whatever Longhorn
    chooses, and makes nothing else worse.

    Nothing is changed in the cluster; the commands of the moves are printed.

    Exit code 0: the goal is reached already, or there is a plan. 1: there is none. 2: bad input.
    """
    least = None if size is None else positive_bytes(size, "--size")
    source = read_source(snapshot, kubeconfig, context, longhorn_namespace, needs_nodes=True)
    situation = Situation(predicted_cluster(source), parallel=parallel_sets(source))
    options = filter_options(best_effort, packing)
    name, storage_class = _goal_name(goal, situation, source)
    if name == WAITING_PODS and size is not None:
        raise CoreError(f"--size is for --goal {LARGEST_VOLUME}")
    objective: Goal
    if name == WAITING_PODS:
        objective = waiting_pods_goal(situation, options, lambda: _choices(order_seeds(seed, orders)))
    else:
        objective = LargestVolumeGoal(situation.cluster, storage_class, least)
    with show_status("Trying moves"):
        baseline, result = _find(situation, options, objective, max_moves)
    answer = rebalance_answer(result, _goal_answer(result, name, storage_class), situation.cluster, longhorn_namespace)
    answer = answer.model_copy(update={"notes": _notes(baseline)})
    _print(answer, output)
    if not answer.succeeds:
        raise typer.Exit(NO_PLAN)


def _find(situation: Situation, options: FilterOptions, goal: Goal, max_moves: int) -> tuple[Baseline, Rebalance]:
    baseline = Baseline.of(situation, options)
    result = find_moves(goal, baseline, max_moves)
    return baseline, result


def _choices(seeds: Sequence[str]) -> Iterable[Choose]:
    return [seeded_choice(seed) for seed in seeds]


def _goal_name(text: str | None, situation: Situation, source: ClusterSource) -> tuple[str, str]:
    """Returns the goal and its StorageClass, "" for none."""
    if text is None:
        text = WAITING_PODS if situation.all_pods() else LARGEST_VOLUME
    name, separator, storage_class = text.partition("=")
    if text == WAITING_PODS:
        return name, ""
    if name != LARGEST_VOLUME or (separator and not storage_class):
        raise CoreError(f"--goal {text}: expected {LARGEST_VOLUME}, {LARGEST_VOLUME}=STORAGECLASS or {WAITING_PODS}")
    return name, storage_class or _default_class(situation, source)


def _default_class(situation: Situation, source: ClusterSource) -> str:
    default = situation.cluster.state.view.default_storage_class
    if default is not None and default.provisioner == DRIVER:
        return default.name
    names = sorted(entry.name for entry in source.snapshot.storage_classes.values() if entry.provisioner == DRIVER)
    if len(names) != 1:
        classes = f"there are {', '.join(names)}" if names else "there is none of Longhorn"
        raise CoreError(f"--goal {LARGEST_VOLUME}=STORAGECLASS must name a StorageClass: {classes}")
    return names[0]


def _goal_answer(result: Rebalance, name: str, storage_class: str) -> GoalAnswer:
    return GoalAnswer(
        name=name,
        storage_class=storage_class or None,
        unit="pods" if name == WAITING_PODS else "bytes",
        before=result.before,
        target=result.target,
        after=result.value,
        reached=result.reached,
    )


def _notes(baseline: Baseline) -> list[str]:
    notes = [_STATUS_IS_CURRENT]
    if baseline.unsettled:
        notes.append(_UNSETTLED.format(count=len(baseline.unsettled)))
    if baseline.cluster.state.view.settings.replica_auto_balance != AUTO_BALANCE_DISABLED:
        notes.append(_AUTO_BALANCE)
    if baseline.busy_nodes:
        notes.append(_BUSY.format(count=len(baseline.busy_nodes)))
    return notes


def _print(answer: RebalanceAnswer, output: Output) -> None:
    def table(console: Any) -> None:
        from app.cli.rebalance_tables import print_rebalance

        print_rebalance(answer, console)

    show(answer.model_dump(by_alias=True), output, table)
