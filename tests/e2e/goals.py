"""The report's first part: the test plan, with and without the extended resource.

The plan is the proposal's. Goals 1 and 2 run ten times, goal 3 three times each. Half of the repetitions send whole nodes (the
proposal's configuration), half names (the recommended one); kube-scheduler has its default client limits throughout.
"""

import statistics
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from rich.table import Table

from scheduler_core.decide.extender_settings import GuardMode
from scheduler_core.errors import CoreError
from scheduler_core.values import replace
from tests.e2e import plan
from tests.e2e.plan import Result
from tests.e2e.rig import PROPOSAL, RECOMMENDED_MANAGED, Rig

FORMS: Final = (PROPOSAL, RECOMMENDED_MANAGED)


@dataclass(frozen=True)
class Goal:
    """One line of the plan."""

    name: str
    repetitions: int
    run: Callable[[Rig, bool], Result]  # runs one repetition on a rig
    holds: Callable[[Result], bool]  # whether its result, with the extender, is as planned


@dataclass
class Row:
    """All repetitions of a goal, with or without the extender."""

    goal: str
    extender: bool
    results: list[Result] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)


def _restart(rig: Rig, asks: bool) -> Result:  # one shape for all goals
    result, before = plan.goal_3_restart(rig, asks=asks)
    moved = sorted(name for name, node in result.nodes.items() if before.get(name) != node)
    return replace(result, misplaced=sorted({*result.misplaced, *moved}))


def _is_even(result: Result) -> bool:
    return list(result.per_node.values()) == [4, 4, 4, 4]


GOALS: Final = (
    Goal("1 race: 16 pods, 4 nodes", 10, lambda rig, asks: plan.goal_1(rig, asks=asks), _is_even),
    Goal(
        "2 pod with 4 claims", 10, lambda rig, asks: plan.goal_2(rig, asks=asks), lambda r: r.per_node == {"many-4": 1}
    ),
    Goal("3A drain", 3, lambda rig, asks: plan.goal_3_drain(rig, asks=asks), lambda r: r.per_node == {"drain-2": 4}),
    Goal("3B restart", 3, _restart, _is_even),
)


def run(
    folder: Path,
    repetitions: int | None,
    report: Callable[[list[Row]], None],
    placement_guard: GuardMode = GuardMode.OFF,
) -> list[Row]:
    """Runs every goal with and without the extender.

    Args:
        folder: the folder of the cluster
        repetitions: instead of the plan's ten and three
        report: receives the rows so far after each goal
        placement_guard: its mode
    """
    rows: list[Row] = []
    with Rig(folder, placement_guard=placement_guard) as rig:
        for prepare in (plan.goal_1_nodes, plan.goal_2_nodes, plan.goal_3_nodes):
            prepare(rig)
        for goal in GOALS:
            for asks in (True, False):
                rows += [_run_goal(rig, goal, repetitions or goal.repetitions, asks=asks)]
                report(rows)
    return rows


def failures(rows: Iterable[Row]) -> list[str]:
    """Results that differ from the plan. It is also a failure if nothing went wrong without the extender."""
    rows = list(rows)
    problems = [f"goal {row.goal}: {failure}" for row in rows for failure in row.failures]
    races = [result for row in rows if row.goal == GOALS[0].name and not row.extender for result in row.results]
    if not any(result.misplaced or result.mended or result.overbooked for result in races):
        problems.append("without the extender nothing went wrong either, so this rig proves nothing")
    return problems


def _run_goal(rig: Rig, goal: Goal, repetitions: int, *, asks: bool) -> Row:
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


def table(rows: Iterable[Row]) -> Table:
    """All rows as a table for people."""
    drawn = Table(
        "goal",
        "extender",
        "runs",
        "pods per node (times)",
        "misplaced",
        "mended",
        "overbooked disks",
        "stuck",
        "s to ready: median (min-max)",
    )
    for row in rows:
        spread: dict[str, int] = {}
        for result in row.results:
            shape = " ".join(f"{node.rpartition('-')[2]}:{count}" for node, count in result.per_node.items())
            spread[shape] = spread.get(shape, 0) + 1
        drawn.add_row(
            row.goal,
            "yes" if row.extender else "no",
            str(len(row.results)),
            "; ".join(f"{shape} ({count})" for shape, count in sorted(spread.items())),
            *counts(row.results),
            times(row.results),
        )
    return drawn


def counts(results: Iterable[Result]) -> list[str]:
    """The numbers of misplaced pods, mended replicas, overbooked disks and stuck pods."""
    results = list(results)
    return [
        str(sum(len(result.misplaced) for result in results)),
        str(sum(result.mended for result in results)),
        str(sum(len(result.overbooked) for result in results)),
        str(sum(len(result.stuck) for result in results)),
    ]


def times(results: Iterable[Result]) -> str:
    """The median and the range of the seconds until every pod ran."""
    seconds = [result.seconds for result in results if result.seconds is not None]
    return f"{statistics.median(seconds):.1f} ({min(seconds):.1f}-{max(seconds):.1f})" if seconds else "never"
