"""The tables of `longhorn-extender compare`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

from app.cli.list_output import plain_table
from app.schemas.comparison_answer import ComparisonAnswer, SpreadAnswer
from scheduler_core.model.quantity import format_bytes, format_count

_BARS: Final = "▁▂▃▄▅▆▇█"
_SPARKLINE_CELLS: Final = 40
_ROWS: Final = 6


def print_comparison(answer: ComparisonAnswer, console: Console) -> None:
    """Prints the final figures, and how many pods wait over time."""
    orders = format_count(answer.orders, "order")
    for table in (_figures_table(answer), _sparkline_table(answer)):
        console.print(table)
        console.print()
    console.print(Text("pods that wait, misplaced volumes, overbooked disks:"))
    console.print(_sample_table(answer))
    console.print()
    for strategy in answer.strategies:
        for reason, count in list(strategy.reasons.items())[:1]:
            waiting = format_count(count, "pod waits", "pods wait")
            console.print(Text(f"{strategy.name}: {waiting} in {orders}: {reason}"))
    for note in answer.notes:
        console.print(Text(f"note: {note}"))
    console.print()
    size = f"{format_count(answer.pods, 'pod')} on {format_count(answer.nodes, 'node')}"
    console.print(Text(f"{size}, in {orders}: median (least to most)", style="bold"))


def _spread(spread: SpreadAnswer) -> str:
    if spread.least == spread.most:
        return str(spread.median)
    return f"{spread.median} ({spread.least} to {spread.most})"


def _figures_table(answer: ComparisonAnswer) -> Table:
    table = plain_table(
        "STRATEGY", "PLACED", "WAITING", "STUCK", "MISPLACED", "OVERBOOKED", "BY", "LAST PLACED AT STEP"
    )
    for entry in answer.strategies:
        spreads = (entry.placed, entry.waiting, entry.stuck, entry.misplaced, entry.overbooked)
        overbooked_bytes = format_bytes(entry.overbooked_bytes.median)
        table.add_row(entry.name, *map(_spread, spreads), overbooked_bytes, _spread(entry.last_placement))
    return table


def _sparkline_table(answer: ComparisonAnswer) -> Table:
    last = answer.strategies[0].samples[-1].step
    table = plain_table("STRATEGY", f"PODS THAT WAIT, STEPS 0 TO {last}")
    for entry in answer.strategies:
        waiting = [sample.waiting for sample in entry.samples]
        table.add_row(entry.name, _sparkline(_pick(waiting, _SPARKLINE_CELLS), answer.pods))
    return table


def _pick(values: Sequence[int], limit: int) -> list[int]:
    """Returns at most `limit` values, evenly, with the first and the last."""
    cells = min(limit, len(values))
    return [values[(len(values) - 1) * cell // max(1, cells - 1)] for cell in range(cells)]


def _sparkline(values: Sequence[int], most: int) -> str:
    """Returns a bar per value: none for 0, and the lowest for the least other values."""
    return "".join(_BARS[(value * len(_BARS) - 1) // most] if value else " " for value in values).rstrip()


def _sample_table(answer: ComparisonAnswer) -> Table:
    table = plain_table("STEP", *(entry.name for entry in answer.strategies))
    positions = _pick(range(len(answer.strategies[0].samples)), _ROWS)
    for position in positions:
        samples = [entry.samples[position] for entry in answer.strategies]
        cells = (f"{sample.waiting}, {sample.misplaced}, {sample.overbooked}" for sample in samples)
        table.add_row(str(samples[0].step), *cells)
    return table
