"""`longhorn-extender remedies`: the cheapest changes that make a pod fit, of which `explain`, `waiting` and `what-if` print some, too;
`longhorn-extender rebalance`: replica moves after which more fits.
"""

import shlex
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from app.cli import cluster_source, render
from app.cli.options import namespace_option, positive_bytes
from app.schemas.remedies_answer import RemedyAnswer, move_commands, remedy_answer
from scheduler_core.decide import decision
from scheduler_core.decide.filter import candidate_volumes, check_existing_volumes
from scheduler_core.errors import CoreError
from scheduler_core.longhorn.csi_driver import DRIVER
from scheduler_core.longhorn.settings import AUTO_BALANCE_DISABLED
from scheduler_core.model.quantity import format_bytes, format_count
from scheduler_core.predict import replica_moves
from scheduler_core.predict.predicted_cluster import PredictedCluster
from scheduler_core.predict.prediction_input import Situation
from scheduler_core.predict.remedies import MAX_DECISIONS, find_remedies
from scheduler_core.structs import replace

_MAX_REMEDIES = 100
_DEFAULT_LIMIT = 5
# Each takes about 1 ms in a cluster of 100 nodes. `explain` is asked why a pod waits, so its remedy must not take long.
EXPLAIN_DECISIONS = 100


def remedies(
    *,
    subject: Annotated[
        str,
        typer.Argument(
            metavar="POD",
            help="NAME, NAMESPACE/NAME or pod/NAME of a pod; deploy/NAME, sts/NAME, ... for the first pod of a workload that waits; or "
            "a file with a pod or a workload.",
        ),
    ],
    limit: Annotated[
        int, typer.Option(metavar="N", min=1, max=_MAX_REMEDIES, help="How many remedies are printed at most.")
    ] = _DEFAULT_LIMIT,
    output: render.OutputOption = render.Output.TABLE,
    rules: cluster_source.Rules,
    query: cluster_source.Query,
    namespace: Annotated[str | None, namespace_option("Namespace of the pod.")] = None,
) -> None:
    """Find the cheapest changes of the cluster that make a pod fit.

    Uncordon a node, allow scheduling, add tags, free or add space, move a replica. Each is checked by the decision of /filter on the
    changed cluster before it is printed.

    Nothing is changed in the cluster.

    Exit code 0: the pod fits as it is. 1: it does not, and the remedies are printed, if there are any. 2: bad input.
    """
    query.check_standard_input(subject)
    source = query.read(needs_nodes=True)
    pod = cluster_source.select_pod(subject, namespace, source)
    if pod.snapshot.disk_schedules:
        raise CoreError("remedies cannot predict a cluster whose disks are allocated through DiskSchedules")
    cluster = cluster_source.predicted_cluster(replace(source, snapshot=pod.snapshot))
    with render.progress_of("Searching for remedies"):
        volumes = candidate_volumes(pod.pod, cluster.node_names, cluster.state.view, rules.options)
        check_existing_volumes(volumes.resolution)
        search = find_remedies(pod.pod, cluster, rules.options, limit)
    answers = [remedy_answer(cluster, remedy, query.longhorn_namespace) for remedy in search.remedies]
    data = {"pod": pod.pod.key, "fits": search.fits, "remedies": answers, "complete": search.complete}

    def table(console: render.Console) -> None:
        if search.fits:
            console.write(f"pod {pod.pod.key} fits as it is")
            return
        for number, remedy in enumerate(answers, start=1):
            console.write(f"{number}. {remedy.text}", "bold")
            console.commands(remedy.commands, indent="   ")
        if answers:
            console.print()
        if not search.complete:
            console.write(
                "not searched further: so many changed clusters were decided already; there may be cheaper remedies"
            )
        count = format_count(len(answers), "remedy", "remedies")
        shown = f"{count}, the cheapest first" if answers else "no remedy was found"
        console.write(f"pod {pod.pod.key} fits nowhere; {shown}", "bold")

    render.show_answer("Remedies", data, output, table, succeeds=search.fits)


def cheapest_remedies(
    pod: cluster_source.ExplainedPod, source: cluster_source.ClusterSource, options: decision.FilterOptions, limit: int
) -> tuple[RemedyAnswer, ...]:
    """Returns the cheapest remedies, none in a cluster that cannot be predicted. The search for one is short."""
    if pod.snapshot.disk_schedules:
        return ()
    cluster = cluster_source.predicted_cluster(replace(source, snapshot=pod.snapshot))
    decisions = EXPLAIN_DECISIONS if limit == 1 else MAX_DECISIONS
    remedies = find_remedies(pod.pod, cluster, options, limit, decisions).remedies
    return tuple(remedy_answer(cluster, remedy, source.query.longhorn_namespace) for remedy in remedies)


_MAX_MOVES = 10
_MAX_TARGETS = 3


def rebalance(
    *,
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
    ] = replica_moves.DEFAULT_MAX_MOVES,
    orders: cluster_source.Orders,
    output: render.OutputOption = render.Output.TABLE,
    rules: cluster_source.Rules,
    query: cluster_source.Query,
) -> None:
    """Find the fewest replica moves after which more fits.

    A move makes one more replica of a volume, where Longhorn chooses, and then deletes an old one. A plan holds whatever Longhorn
    chooses, and makes nothing else worse.

    Nothing is changed in the cluster; the commands of the moves are printed.

    Exit code 0: the goal is reached already, or there is a plan. 1: there is none. 2: bad input.
    """
    least = None if size is None else positive_bytes(size, "--size")
    source = query.read(needs_nodes=True)
    situation = Situation(cluster_source.predicted_cluster(source), parallel=source.parallel_sets)
    name, storage_class = _goal_name(goal, situation, source)
    if name == replica_moves.WAITING_PODS and size is not None:
        raise CoreError(f"--size is for --goal {replica_moves.LARGEST_VOLUME}")
    if name == replica_moves.WAITING_PODS:
        objective = replica_moves.waiting_pods_goal(
            situation, rules.options, lambda: map(cluster_source.seeded_choice, orders.seeds)
        )
    else:
        objective = replica_moves.largest_volume_goal(situation.cluster, storage_class, least)
    with render.progress_of("Trying moves"):
        baseline = replica_moves.Baseline.of(situation, rules.options)
        result = replica_moves.find_moves(objective, baseline, max_moves)
    moves = _moves(result, situation.cluster, query.longhorn_namespace)
    notes = _notes(baseline)
    succeeds = result.plan is not None or result.reached
    data = {
        "succeeds": succeeds,
        "goal": {
            "name": name,
            "storageClass": storage_class or None,
            "unit": "pods" if name == replica_moves.WAITING_PODS else "bytes",
            "before": result.before,
            "target": result.target,
            "after": result.value,
            "reached": result.reached,
        },
        "moves": moves,
        "copiedBytes": result.plan.copied_bytes if result.plan is not None else 0,
        "maxMoves": result.max_moves,
        "exhaustedMoves": result.exhausted_moves,
        "notes": notes,
    }

    def table(console: render.Console) -> None:
        _print_moves(moves, console)
        console.end(notes, _summary(result, storage_class))

    render.show_answer("Rebalance", data, output, table, succeeds=succeeds)


def _goal_name(text: str | None, situation: Situation, source: cluster_source.ClusterSource) -> tuple[str, str]:
    """Returns the goal and its StorageClass, "" for none."""
    if text is None:
        text = replica_moves.WAITING_PODS if situation.all_pods() else replica_moves.LARGEST_VOLUME
    name, separator, storage_class = text.partition("=")
    if text == replica_moves.WAITING_PODS:
        return name, ""
    if name != replica_moves.LARGEST_VOLUME or (separator and not storage_class):
        raise CoreError(
            f"--goal {text}: expected {replica_moves.LARGEST_VOLUME}, {replica_moves.LARGEST_VOLUME}=STORAGECLASS or {replica_moves.WAITING_PODS}"
        )
    if storage_class:
        return name, storage_class
    default = situation.cluster.state.view.default_storage_class
    if default is not None and default.provisioner == DRIVER:
        return name, default.name
    names = sorted(entry.name for entry in source.snapshot.storage_classes.values() if entry.provisioner == DRIVER)
    if len(names) != 1:
        classes = f"there are {', '.join(names)}" if names else "there is none of Longhorn"
        raise CoreError(f"--goal {replica_moves.LARGEST_VOLUME}=STORAGECLASS must name a StorageClass: {classes}")
    return name, names[0]


def _moves(result: replica_moves.Rebalance, cluster: PredictedCluster, namespace: str) -> list[dict[str, Any]]:
    users = cluster.pods_by_volume()
    return [
        {
            "volume": move.volume,
            "replica": move.replica,
            "pods": users.get(move.volume, ()),
            "from": move.origin,
            "targets": move.targets,
            "size": move.size,
            "copiedBytes": move.copied_bytes,
            # In order; each must succeed before the next one.
            "commands": move_commands(cluster, move, namespace),
        }
        for move in (result.plan.moves if result.plan is not None else ())
    ]


def _notes(baseline: replica_moves.Baseline) -> list[str]:
    notes = ["Longhorn's status counts as current; meanwhile no other volume may be created or grow"]
    if baseline.unsettled:
        count = len(baseline.unsettled)
        notes.append(f"volumes of which Longhorn has to place replicas: {count}; no move changes whether it can")
    if baseline.cluster.state.view.settings.replica_auto_balance != AUTO_BALANCE_DISABLED:
        notes.append("replica-auto-balance is on: Longhorn may move replicas of other volumes, too")
    if baseline.busy_nodes:
        count = len(baseline.busy_nodes)
        notes.append(f"nodes where volumes of bound pods are still to be placed: {count}; no replica is moved there")
    return notes


def _print_moves(moves: Sequence[dict[str, Any]], console: render.Console) -> None:
    headers = ("MOVE", "VOLUME", "REPLICA", "FROM", "TO ONE OF", "COPIES", "USED BY")
    rows = (
        (
            str(number),
            move["volume"],
            move["replica"],
            "/".join(move["from"]),
            render.shorten(["/".join(target) for target in move["targets"]], _MAX_TARGETS),
            format_bytes(move["copiedBytes"]),
            ", ".join(move["pods"]),
        )
        for number, move in enumerate(moves, start=1)
    )
    console.section(headers, rows)
    for number, move in enumerate(moves, start=1):
        console.write(f"# {number}. {move['volume']}: each command must succeed before the next one")
        console.commands(map(shlex.join, move["commands"]))
        console.print()


def _summary(result: replica_moves.Rebalance, storage_class: str) -> str:
    subject = f"largest volume of {storage_class}" if storage_class else "waiting pods that fit"
    before, after = (
        format_bytes(value) if storage_class else f"{value} of {result.target}"
        for value in (result.before, result.value)
    )
    if result.plan is not None:
        moves = format_count(len(result.plan.moves), "move, which copies", "moves, which copy")
        proven = result.exhausted_moves >= len(result.plan.moves) - 1
        fewest = "fewer moves do not suffice" if proven else "not every plan of fewer moves was tried"
        return f"{subject}: {before} now, {after} after {moves} {format_bytes(result.plan.copied_bytes)}; {fewest}"
    if result.reached:
        return f"{subject}: {before} now; no move is needed"
    if result.exhausted_moves == result.max_moves:
        return f"{subject}: {before} now; no plan of up to {format_count(result.max_moves, 'move')} exists"
    tried = format_count(result.exhausted_moves, "move")
    return f"{subject}: {before} now; no plan was found; every plan of up to {tried} was tried, longer ones in part"
