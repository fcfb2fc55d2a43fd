"""The report's first part: the test plan, with and without the extended resource.

The plan is the proposal's. Goals 1 and 2 run ten times, goal 3 three times each. Half of the repetitions send whole nodes (the
proposal's configuration), half names (the recommended one); kube-scheduler has its default client limits throughout.
"""

import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path

from rich.table import Table

from scheduler_core.errors import CoreError
from scheduler_core.structs import replace
from tests.e2e import plan
from tests.e2e.bursts import Result, columns
from tests.e2e.report import Options, Part, draw
from tests.e2e.rig import PROPOSAL, RECOMMENDED_MANAGED, Rig

FORMS = (PROPOSAL, RECOMMENDED_MANAGED)


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
    return result.per_node == plan.EVEN


GOALS = (
    Goal("1 race: 16 pods, 4 nodes", 10, lambda rig, asks: plan.goal_1(rig, asks=asks), _is_even),
    Goal(
        "2 pod with 4 claims", 10, lambda rig, asks: plan.goal_2(rig, asks=asks), lambda r: r.per_node == {"many-4": 1}
    ),
    Goal("3A drain", 3, lambda rig, asks: plan.goal_3_drain(rig, asks=asks), lambda r: r.per_node == {"drain-2": 4}),
    Goal("3B restart", 3, _restart, _is_even),
)


def report(folder: Path, options: Options) -> Part:
    """Runs every goal with and without the extender; the rows so far are written after each goal."""
    rows: list[Row] = []
    with Rig(folder, config=PROPOSAL, placement_guard=options.guard) as rig:
        for prepare in (plan.goal_1_nodes, plan.goal_2_nodes, plan.goal_3_nodes):
            prepare(rig)
        for goal in GOALS:
            for asks in (True, False):
                rows += [_run_goal(rig, goal, options.repetitions or goal.repetitions, asks=asks)]
                options.write([asdict(row) for row in rows])
    return Part(_failures(rows), [asdict(row) for row in rows], [_table(rows)])


def _failures(rows: Iterable[Row]) -> list[str]:
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


def _table(rows: Iterable[Row]) -> Table:
    return draw(
        {
            "goal": row.goal,
            "extender": "yes" if row.extender else "no",
            "runs": len(row.results),
            "pods per node (times)": "; ".join(f"{shape} ({count})" for shape, count in sorted(_shapes(row).items())),
            **columns(row.results),
        }
        for row in rows
    )


def _shapes(row: Row) -> Counter[str]:
    return Counter(
        " ".join(f"{node.rpartition('-')[2]}:{count}" for node, count in result.per_node.items())
        for result in row.results
    )
