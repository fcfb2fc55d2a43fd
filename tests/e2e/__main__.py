"""`make e2e-report`: the proposal's whole test plan, with and without the extended resource, as a table.

Goals 1 and 2 run ten times, goal 3 three times each. Half of the repetitions send whole nodes (the proposal's configuration),
half names (the recommended one); kube-scheduler has its default client limits throughout. Exit code 1: with the extender something
else happened than the plan says.
"""

from __future__ import annotations

import json
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated, Final

import typer
from rich.console import Console
from rich.table import Table

from scheduler_core.errors import CoreError
from tests.e2e import plan
from tests.e2e.plan import Result
from tests.e2e.rig import PROPOSAL, RECOMMENDED_MANAGED, Rig

FORMS = (PROPOSAL, RECOMMENDED_MANAGED)
NOTES: Final = """
The nodes of goal 1 have other work (10, 40, 60 and 80 % of CPU and memory), as in any cluster: on idle equal nodes kube-scheduler spreads
the pods of a StatefulSet evenly by itself. "mended": replicas placed elsewhere than where their volume was, also if a local one was
made later. "overfull disks": Longhorn placed two volumes before its own status followed (what DiskSchedule is to end); in goal 2
that happens with the extender too, because the four volumes of the pod are attached at once. In 3B "misplaced" also counts
pods that came back to another node."""


@dataclass(frozen=True)
class Goal:
    """One line of the plan.

    Attributes:
        run: one repetition on a rig
        holds: whether its result, with the extender, is what the plan says
    """

    name: str
    repetitions: int
    run: Callable[[Rig, bool], Result]
    holds: Callable[[Result], bool]


@dataclass
class Row:
    """One goal with or without the extender, all repetitions."""

    goal: str
    extender: bool
    results: list[Result] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)


def _restart(rig: Rig, asks: bool) -> Result:  # one shape for all goals
    result, before = plan.goal_3_restart(rig, asks=asks)
    moved = sorted(name for name, node in result.nodes.items() if before.get(name) != node)
    return replace(result, misplaced=sorted({*result.misplaced, *moved}))


def _even(result: Result) -> bool:
    return list(result.per_node.values()) == [4, 4, 4, 4]


GOALS = (
    Goal("1 race: 16 pods, 4 nodes", 10, lambda rig, asks: plan.goal_1(rig, asks=asks), _even),
    Goal(
        "2 pod with 4 claims", 10, lambda rig, asks: plan.goal_2(rig, asks=asks), lambda r: r.per_node == {"many-4": 1}
    ),
    Goal("3A drain", 3, lambda rig, asks: plan.goal_3_drain(rig, asks=asks), lambda r: r.per_node == {"drain-2": 4}),
    Goal("3B restart", 3, _restart, _even),
)


def main(
    repetitions: Annotated[
        int | None, typer.Option(min=1, help="Of every goal, instead of the plan's ten and three.")
    ] = None,
    file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Also write every repetition here.")
    ] = None,
) -> None:
    """Run the proposal's whole test plan, with and without the extended resource, and print a table.

    Exit code 1: with the extender something else happened than the plan says, or without it nothing went wrong.
    """
    rows: list[Row] = []
    folder = Path(tempfile.mkdtemp(prefix="e2e-report-"))
    with Rig(folder) as rig:
        for prepare in (plan.goal_1_nodes, plan.goal_2_nodes, plan.goal_3_nodes):
            prepare(rig)
        for goal in GOALS:
            for asks in (True, False):
                rows += [_row(rig, goal, repetitions or goal.repetitions, asks=asks)]
                if file is not None:
                    file.write_text(json.dumps([asdict(row) for row in rows], indent=1))
    Console(width=None if sys.stdout.isatty() else 180).print(_table(rows), NOTES)
    failures = [f"goal {row.goal}: {failure}" for row in rows for failure in row.failures]
    races = [result for row in rows if row.goal == GOALS[0].name and not row.extender for result in row.results]
    if not any(result.misplaced or result.mended or result.overfull for result in races):
        failures.append("without the extender nothing went wrong either, so this rig proves nothing")
    for failure in failures:
        typer.echo(failure, err=True)
    if failures:
        typer.echo(f"the logs are in {folder}", err=True)
        raise typer.Exit(1)
    shutil.rmtree(folder)


def _row(rig: Rig, goal: Goal, repetitions: int, *, asks: bool) -> Row:
    row = Row(goal.name, asks)
    for number in range(repetitions):
        config = FORMS[number * len(FORMS) // repetitions]
        rig.use_config(config)
        started = time.monotonic()
        try:
            result = goal.run(rig, asks)
        except (AssertionError, CoreError) as error:
            row.failures.append(f"{config.stem}: {str(error)[:300]}")
            continue
        row.results.append(result)
        if asks and (not goal.holds(result) or result.misplaced or result.mended or result.stuck):
            row.failures.append(f"{config.stem}: {result}")
        print(
            f"goal {goal.name}, {'with' if asks else 'without'} the extender, {config.stem}, "
            f"{number + 1} of {repetitions}: {result.per_node} in {time.monotonic() - started:.0f} s",
            file=sys.stderr,
        )
    return row


def _table(rows: Iterable[Row]) -> Table:
    table = Table(
        "goal",
        "extender",
        "runs",
        "pods per node (times)",
        "misplaced",
        "mended",
        "overfull disks",
        "stuck",
        "s to ready: median (min-max)",
    )
    for row in rows:
        spread: dict[str, int] = {}
        for result in row.results:
            shape = " ".join(f"{node.rpartition('-')[2]}:{count}" for node, count in result.per_node.items())
            spread[shape] = spread.get(shape, 0) + 1
        seconds = [result.seconds for result in row.results if result.seconds is not None]
        times = f"{statistics.median(seconds):.1f} ({min(seconds):.1f}-{max(seconds):.1f})" if seconds else "never"
        table.add_row(
            row.goal,
            "yes" if row.extender else "no",
            str(len(row.results)),
            "; ".join(f"{shape} ({count})" for shape, count in sorted(spread.items())),
            *(
                str(sum(len(getattr(result, name)) for result in row.results))
                for name in ("misplaced", "mended", "overfull", "stuck")
            ),
            times,
        )
    return table


if __name__ == "__main__":
    typer.run(main)
