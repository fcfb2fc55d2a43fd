"""What `longhorn-extender remedies` prints for people."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from app.schemas.remedies_answer import RemediesAnswer
from scheduler_core.model.quantity import format_count


def print_remedies(answer: RemediesAnswer, console: Console) -> None:
    """Prints the remedies with their commands, which are never wrapped."""
    if answer.fits:
        console.print(f"pod {answer.pod} fits as it is")
        return
    for number, remedy in enumerate(answer.remedies, start=1):
        console.print(Text(f"{number}. {remedy.text}", style="bold"))
        for step in remedy.steps:
            for command in step.commands:
                console.print(Text(f"   {command}"), soft_wrap=True)
    if answer.remedies:
        console.print()
    if not answer.complete:
        console.print(
            "not searched further: so many changed clusters were decided already; there may be cheaper remedies"
        )
    count = len(answer.remedies)
    shown = f"{format_count(count, 'remedy', 'remedies')}, the cheapest first" if count else "no remedy was found"
    console.print(Text(f"pod {answer.pod} fits nowhere; {shown}", style="bold"))
