"""What the parts of the report take and return, and the figures that several of them have."""

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from rich.table import Table

from scheduler_core.decide.decision import Packing
from scheduler_core.decide.extender_settings import GuardMode


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The options of the report."""

    repetitions: int | None = None  # of everything but the size, instead of what each part says
    pods: int = 1000  # the number of pods of the part `size`
    seed: int = 1  # which pods these are
    packing: Packing = Packing.ORDER_SAFE  # which nodes with room the part `size` offers
    guard: GuardMode = GuardMode.OFF  # the mode of the placement guard in some parts
    write: Callable[[object], None] = lambda _: None  # writes what a part has measured so far


@dataclass(frozen=True, slots=True)
class Part:
    """What a part has measured."""

    failures: Sequence[str]  # what is against the plan
    content: object  # every repetition, as JSON
    drawn: Sequence[object]  # tables and texts for people


@dataclass
class Figures:
    """Figures to print, and problems."""

    problems: list[str] = field(default_factory=list)
    figures: list[tuple[str, str]] = field(default_factory=list)

    def text(self) -> str:
        return "\n".join(f"{name}: {value}" for name, value in self.figures)


def draw(rows: Iterable[Mapping[str, object]], caption: str | None = None) -> Table:
    """The rows as a table for people; the keys are its heads."""
    rows = list(rows)
    drawn = Table(*(rows[0] if rows else ()), caption=caption)
    for row in rows:
        drawn.add_row(*map(str, row.values()))
    return drawn


def spread(seconds: Iterable[float | None]) -> str:
    """The median and the range of the times until every pod ran; None where not every pod did."""
    times = [each for each in seconds if each is not None]
    return f"{statistics.median(times):.1f} ({min(times):.1f} to {max(times):.1f})" if times else "never"
