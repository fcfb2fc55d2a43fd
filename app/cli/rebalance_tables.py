"""The tables of `longhorn-extender rebalance`."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

from app.cli.list_output import plain_table, shorten
from app.schemas.rebalance_answer import DiskAnswer, GoalAnswer, RebalanceAnswer
from scheduler_core.model.quantity import format_bytes, format_count

_MAX_TARGETS: Final = 3


def print_rebalance(answer: RebalanceAnswer, console: Console) -> None:
    """Prints the moves, their commands, and what they lead to."""
    if answer.moves:
        console.print(_move_table(answer))
        console.print()
    for number, move in enumerate(answer.moves, start=1):
        console.print(Text(f"# {number}. {move.volume}: each command must succeed before the next one"))
        for command in move.commands:
            # Commands are copied, so that they are not wrapped.
            console.print(Text(shlex.join(command)), soft_wrap=True)
        console.print()
    for note in answer.notes:
        console.print(Text(f"note: {note}"))
    console.print()
    console.print(Text(_summary(answer), style="bold"))


def _move_table(answer: RebalanceAnswer) -> Table:
    headers = ("MOVE", "VOLUME", "REPLICA", "FROM", "TO ONE OF", "COPIES", "USED BY")
    table = plain_table(*headers)
    for number, move in enumerate(answer.moves, start=1):
        table.add_row(
            str(number),
            move.volume,
            move.replica,
            _disk(move.origin),
            _targets(move.targets),
            format_bytes(move.copied_bytes),
            ", ".join(move.pods),
        )
    return table


def _targets(disks: Sequence[DiskAnswer]) -> str:
    return shorten([_disk(disk) for disk in disks], _MAX_TARGETS)


def _disk(disk: DiskAnswer) -> str:
    return f"{disk.node}/{disk.disk}"


def _summary(answer: RebalanceAnswer) -> str:
    goal = answer.goal
    before = f"{_subject(goal)}: {_value(goal, goal.before)} now"
    if not answer.moves:
        return f"{before}; {_without_plan(answer)}"
    moves = format_count(len(answer.moves), "move, which copies", "moves, which copy")
    after = f"{_value(goal, goal.after)} after {moves} {format_bytes(answer.copied_bytes)}"
    proven = answer.exhausted_moves >= len(answer.moves) - 1
    fewest = "fewer moves do not suffice" if proven else "not every plan of fewer moves was tried"
    return f"{before}, {after}; {fewest}"


def _subject(goal: GoalAnswer) -> str:
    return "waiting pods that fit" if goal.storage_class is None else f"largest volume of {goal.storage_class}"


def _value(goal: GoalAnswer, value: int) -> str:
    return format_bytes(value) if goal.storage_class is not None else f"{value} of {goal.target}"


def _without_plan(answer: RebalanceAnswer) -> str:
    if answer.goal.reached:
        return "no move is needed"
    if answer.exhausted_moves == answer.max_moves:
        return f"no plan of up to {format_count(answer.max_moves, 'move')} exists"
    return f"no plan was found; every plan of up to {format_count(answer.exhausted_moves, 'move')} was tried, longer ones in part"
