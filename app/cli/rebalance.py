"""`longhorn-extender rebalance`: replica moves after which more fits."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from msgspec import Struct

from app.cli.query import ClusterSource, Orders, Query, Rules, positive_bytes, predicted_cluster, seeded_choice
from app.cli.render import Output, OutputOption, shorten, show_answer, show_status
from app.schemas.remedies_answer import move_commands
from scheduler_core.convert.kubectl import Command
from scheduler_core.errors import CoreError
from scheduler_core.longhorn.csi_driver import DRIVER
from scheduler_core.longhorn.settings import AUTO_BALANCE_DISABLED
from scheduler_core.model.quantity import format_bytes, format_count
from scheduler_core.predict.move_search import DEFAULT_MAX_MOVES, Baseline, Rebalance, find_moves
from scheduler_core.predict.predicted_cluster import PredictedCluster
from scheduler_core.predict.predicted_replicas import ReplicaMove
from scheduler_core.predict.rebalance_goals import (
    LARGEST_VOLUME,
    WAITING_PODS,
    Goal,
    LargestVolumeGoal,
    WaitingPodsGoal,
)
from scheduler_core.predict.situation import Situation

if TYPE_CHECKING:
    from app.cli.console import EscapingConsole

_MAX_MOVES: Final = 10
_MAX_TARGETS: Final = 3


class _Step(Struct, frozen=True):
    """A replica that is moved, with what people need to do it."""

    move: ReplicaMove
    pods: Sequence[str]  # the pods that use the volume
    commands: Sequence[Command]  # in order; each must succeed before the next one


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
    ] = DEFAULT_MAX_MOVES,
    orders: Orders,
    output: OutputOption = Output.TABLE,
    rules: Rules,
    query: Query,
) -> None:
    """Find the fewest replica moves after which more fits.

    A move makes one more replica of a volume, where Longhorn chooses, and then deletes an old one. A plan holds whatever Longhorn
    chooses, and makes nothing else worse.

    Nothing is changed in the cluster; the commands of the moves are printed.

    Exit code 0: the goal is reached already, or there is a plan. 1: there is none. 2: bad input.
    """
    least = None if size is None else positive_bytes(size, "--size")
    source = query.read(needs_nodes=True)
    situation = Situation(predicted_cluster(source), parallel=source.parallel_sets)
    name, storage_class = _goal_name(goal, situation, source)
    if name == WAITING_PODS and size is not None:
        raise CoreError(f"--size is for --goal {LARGEST_VOLUME}")
    objective: Goal
    if name == WAITING_PODS:
        objective = WaitingPodsGoal(situation, rules.options, lambda: map(seeded_choice, orders.seeds))
    else:
        objective = LargestVolumeGoal(situation.cluster, storage_class, least)
    with show_status("Trying moves"):
        baseline = Baseline.of(situation, rules.options)
        result = find_moves(objective, baseline, max_moves)
    steps = _steps(result, situation.cluster, query.longhorn_namespace)
    notes = _notes(baseline)
    succeeds = result.plan is not None or result.reached

    def table(console: EscapingConsole) -> None:
        _print_steps(steps, console)
        console.end(notes, _summary(result, storage_class))

    data = {"succeeds": succeeds, **_data(result, name, storage_class, steps), "notes": notes}
    show_answer("Rebalance", data, output, table, succeeds=succeeds)


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


def _steps(result: Rebalance, cluster: PredictedCluster, namespace: str) -> list[_Step]:
    users = cluster.pods_by_volume()
    moves = result.plan.moves if result.plan is not None else ()
    return [_Step(move, users.get(move.volume, ()), move_commands(cluster, move, namespace)) for move in moves]


def _data(result: Rebalance, name: str, storage_class: str, steps: Sequence[_Step]) -> dict[str, Any]:
    return {
        "goal": {
            "name": name,
            "storageClass": storage_class or None,
            "unit": "pods" if name == WAITING_PODS else "bytes",
            "before": result.before,
            "target": result.target,
            "after": result.value,
            "reached": result.reached,
        },
        "moves": [
            {
                "volume": step.move.volume,
                "replica": step.move.replica,
                "pods": step.pods,
                "from": step.move.origin,
                "targets": step.move.targets,
                "size": step.move.size,
                "copiedBytes": step.move.copied_bytes,
                "commands": step.commands,
            }
            for step in steps
        ],
        "copiedBytes": result.plan.copied_bytes if result.plan is not None else 0,
        "maxMoves": result.max_moves,
        "exhaustedMoves": result.exhausted_moves,
    }


def _notes(baseline: Baseline) -> list[str]:
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


def _print_steps(steps: Sequence[_Step], console: EscapingConsole) -> None:
    headers = ("MOVE", "VOLUME", "REPLICA", "FROM", "TO ONE OF", "COPIES", "USED BY")
    console.section(headers, ([str(number), *_cells(step)] for number, step in enumerate(steps, start=1)))
    for number, step in enumerate(steps, start=1):
        console.write(f"# {number}. {step.move.volume}: each command must succeed before the next one")
        console.commands(shlex.join(command) for command in step.commands)
        console.print()


def _cells(step: _Step) -> list[str]:
    move = step.move
    targets = shorten(["/".join(target) for target in move.targets], _MAX_TARGETS)
    copies = format_bytes(move.copied_bytes)
    return [move.volume, move.replica, "/".join(move.origin), targets, copies, ", ".join(step.pods)]


def _summary(result: Rebalance, storage_class: str) -> str:
    subject = f"largest volume of {storage_class}" if storage_class else "waiting pods that fit"
    before, after = (
        format_bytes(value) if storage_class else f"{value} of {result.target}"
        for value in (result.before, result.value)
    )
    if result.plan is None:
        return f"{subject}: {before} now; {_without_plan(result)}"
    moves = format_count(len(result.plan.moves), "move, which copies", "moves, which copy")
    copied = format_bytes(result.plan.copied_bytes)
    proven = result.exhausted_moves >= len(result.plan.moves) - 1
    fewest = "fewer moves do not suffice" if proven else "not every plan of fewer moves was tried"
    return f"{subject}: {before} now, {after} after {moves} {copied}; {fewest}"


def _without_plan(result: Rebalance) -> str:
    if result.reached:
        return "no move is needed"
    if result.exhausted_moves == result.max_moves:
        return f"no plan of up to {format_count(result.max_moves, 'move')} exists"
    moves = format_count(result.exhausted_moves, "move")
    return f"no plan was found; every plan of up to {moves} was tried, longer ones in part"
