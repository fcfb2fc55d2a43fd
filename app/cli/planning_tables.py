"""The tables of `longhorn-extender headroom` and `maintenance`."""

from __future__ import annotations

from typing import Final

from rich.console import Console
from rich.text import Text

from app.cli.list_output import plain_table, shorten
from app.cli.what_if_tables import format_duration, format_range, print_table, wait_line
from app.schemas.planning_answer import (
    DrainStepAnswer,
    FailedDrainAnswer,
    HeadroomAnswer,
    MaintenanceAnswer,
    RefusedPodAnswer,
)
from scheduler_core.model.quantity import format_bytes, format_count
from scheduler_core.predict.prediction import refusal_text

_MAX_REFUSALS: Final = 2
_MAX_PROBLEMS: Final = 2


def print_headroom(answer: HeadroomAnswer, console: Console) -> None:
    """Prints the pods per node, and why the next one is refused."""
    if answer.nodes:
        table = plain_table("NODE", "PODS")
        for node in answer.nodes:
            table.add_row(node.node, format_range(str(node.least), str(node.most)))
        print_table(console, table)
    if answer.refused is not None:
        _print_refused_pod(answer, answer.refused, console)
    for note in answer.notes:
        console.print(Text(f"note: {note}"))
    console.print()
    most = answer.limit if answer.limit_reached else answer.most
    least = "at least " if answer.limit_reached else "" if answer.least == most else f"{answer.least} to "
    fit = format_count(most, f"more pod of {answer.template} fits", f"more pods of {answer.template} fit")
    console.print(Text(f"{least}{fit}, in {format_count(answer.orders, 'order')}", style="bold"))


def _print_refused_pod(answer: HeadroomAnswer, refused: RefusedPodAnswer, console: Console) -> None:
    after = format_count(answer.least, "pod")
    console.print(Text(f"{refused.pod} does not fit after {after}: {refusal_text(refused.reasons)}"))
    closest = refused.closest
    if closest is not None:
        lacks = f", {format_bytes(closest.missing)} are missing" if closest.missing else ""
        detail = f" ({closest.detail})" if closest.detail else ""
        console.print(Text(f"closest: {closest.node}: {closest.reason}{lacks}{detail}"))
    others = [text for text in answer.refusals if text != refusal_text(refused.reasons)]
    for text in others[:_MAX_REFUSALS]:
        console.print(Text(f"in {answer.refusals[text]} of {format_count(answer.orders, 'order')}: {text}"))


def print_maintenance(answer: MaintenanceAnswer, console: Console) -> None:
    """Prints the order of nodes, and why others cannot be drained."""
    if answer.steps:
        table = plain_table("", "DRAIN", "PODS", "FEWER REPLICAS", "REBUILDS", *(["TAKES"] if answer.rate else []))
        for number, step in enumerate(answer.steps, start=1):
            table.add_row(str(number), *_step_cells(step))
        print_table(console, table)
    wait = max((step.wait_seconds for step in answer.steps), default=0)
    if wait:
        console.print(Text(f"after each drain {wait_line(wait)}"))
        console.print()
    if answer.failed:
        table = plain_table("NODE", "WHEN", "DOES NOT FIT BECAUSE")
        for entry in answer.failed:
            table.add_row(entry.node, _when(entry, answer), _first_problems(entry))
        print_table(console, table)
    for note in answer.notes:
        console.print(Text(f"note: {note}"))
    console.print()
    console.print(Text(_maintenance_summary(answer), style="bold"))


def _step_cells(step: DrainStepAnswer) -> list[str]:
    cells = [
        step.node,
        format_range(str(step.least_pods), str(step.most_pods)),
        format_range(str(step.least_reduced_volumes), str(step.most_reduced_volumes)),
        format_range(format_bytes(step.least_bytes), format_bytes(step.most_bytes)),
    ]
    if step.least_seconds is not None and step.most_seconds is not None:
        cells.append(format_range(format_duration(step.least_seconds), format_duration(step.most_seconds)))
    return cells


def _when(entry: FailedDrainAnswer, answer: MaintenanceAnswer) -> str:
    if entry.blocked:
        return "in any order"
    if not answer.steps:
        return "first"
    return "after these, and even first" if entry.first_problems else "after these"


def _first_problems(entry: FailedDrainAnswer) -> str:
    return shorten(entry.problems or entry.first_problems, _MAX_PROBLEMS, "; ")


def _maintenance_summary(answer: MaintenanceAnswer) -> str:
    total = format_count(len(answer.steps) + len(answer.failed), "node")
    drained = f"{len(answer.steps)} of {total} can be drained"
    orders = format_count(answer.orders, "order")
    if answer.succeeds:
        return f"{drained} in this order, in {orders} of events"
    longest = f"{drained} one after the other, in {orders} of events"
    if answer.exhaustive:
        return f"{longest}; every order was tried, so that no other one drains more"
    if any(entry.blocked for entry in answer.failed):
        longest = f"{longest}; there is no order of all nodes"
    return f"{longest}; no longer order was found in {format_count(answer.tries, 'try', 'tries')}"
