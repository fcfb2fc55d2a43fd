"""The tables of `longhorn-extender headroom` and `maintenance`."""

from __future__ import annotations

from typing import Final

from rich.console import Console
from rich.text import Text

from app.cli.what_if_tables import format_range, new_table, print_table
from app.schemas.planning_answer import HeadroomAnswer, RefusedPodAnswer
from scheduler_core.extender.what_if.prediction import refusal_text
from scheduler_core.model.quantity import format_bytes

_MAX_REFUSALS: Final = 2


def print_headroom(answer: HeadroomAnswer, console: Console) -> None:
    """Prints the pods per node, and why the first pod that does not fit is refused."""
    if answer.nodes:
        table = new_table("NODE", "PODS")
        for node in answer.nodes:
            table.add_row(node.node, format_range(str(node.least), str(node.most)))
        print_table(console, table)
    if answer.refused is not None:
        _print_refused_pod(answer, answer.refused, console)
    for note in answer.notes:
        console.print(Text(f"note: {note}"))
    console.print()
    count = format_range(str(answer.least), str(answer.most))
    count = f"at least {answer.limit}" if answer.limit_reached else count
    console.print(Text(f"{count} more pods of {answer.template} fit, in {answer.orders} orders", style="bold"))


def _print_refused_pod(answer: HeadroomAnswer, refused: RefusedPodAnswer, console: Console) -> None:
    console.print(Text(f"{refused.pod} does not fit after {answer.least} pods: {refusal_text(refused.reasons)}"))
    closest = refused.closest
    if closest is not None:
        lacks = f", {format_bytes(closest.missing)} are missing" if closest.missing else ""
        detail = f" ({closest.detail})" if closest.detail else ""
        console.print(Text(f"closest: {closest.node}: {closest.reason}{lacks}{detail}"))
    others = [text for text in answer.refusals if text != refusal_text(refused.reasons)]
    for text in others[:_MAX_REFUSALS]:
        console.print(Text(f"in {answer.refusals[text]} of {answer.orders} orders: {text}"))
