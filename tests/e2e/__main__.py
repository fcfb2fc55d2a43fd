"""`make e2e-report`: the proposal's test plan, and ways to place pods compared. Exit code 1: with the extender something else happened than
the plan says.
"""

import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from rich.console import Console

from devcluster import kubernetes_version
from scheduler_core.decide.decision import Packing
from scheduler_core.decide.extender_settings import GuardMode
from tests.e2e import (
    as_installed,
    backlog,
    comparisons,
    disk_schedule_burst,
    goals,
    guard_faults,
    hand_over,
    harsh_burst,
    predictions,
    promised_space,
    size,
    static_volumes,
    strategies,
    tight_burst,
    tight_nodes,
    todays_rules,
    versions,
)
from tests.e2e.comparisons import Comparison
from tests.e2e.goals import Row

NOTES: Final = """
The nodes of goal 1 have other work (10, 40, 60 and 80 % of CPU and memory), as in any cluster: on idle equal nodes kube-scheduler spreads
the pods of a StatefulSet evenly by itself. "mended": replicas placed elsewhere than where their volume was, also if a local one was
made later. "overbooked disks": Longhorn placed several volumes on one disk before its own status followed (what DiskSchedule is to end),
also if one of them left later; their pods are on the right node, so nothing is misplaced. In goal 2
that happens with the extender too, because the four volumes of the pod are attached at once. In 3B "misplaced" also counts
pods that came back to another node. "times without" and "times capacity" compare medians."""


class Section(StrEnum):
    """A part of the report."""

    PLAN = "plan"
    GOAL_1 = "goal-1"
    BURST_100 = "burst-100"
    BURST_200 = "burst-200"
    SLOW = "slow"
    TIGHT_BURST = "tight-burst"
    HARSH_BURST = "harsh-burst"
    AS_INSTALLED = "as-installed"
    GUARD_FAULTS = "guard-faults"
    PROMISED_SPACE = "promised-space"
    TIGHT_NODES = "tight-nodes"
    STRATEGIES = "strategies"
    DISK_SCHEDULES = "disk-schedules"
    HAND_OVER = "hand-over"
    SIZE = "size"
    BACKLOG = "backlog"
    BINDINGS = "bindings"
    VERSIONS = "versions"
    TODAYS_RULES = "todays-rules"
    PREDICTIONS = "predictions"


_BACKLOGS: Final = (1500, 3000)
# Random clusters of the part `bindings`.
_SEEDS: Final = 40
# Random clusters of 60 pods each, of the part `todays-rules`.
_RULE_SEEDS: Final = 40
# Random clusters that `what-if` predicts; each fourth one has the same verb.
_PREDICTED_CLUSTERS: Final = 32
# Random tight bursts of some twenty-six pods.
_TIGHT_BURSTS: Final = 10
# Random tight clusters, whose bursts are computed.
_TIGHT_CLUSTERS: Final = 100
# Random orders in which pods arrive at each strategy.
_ARRIVALS: Final = 5
# Bursts that exactly fit, without DiskSchedules and with them.
_EXACT_BURSTS: Final = 1
# Random bursts of eight pods whose claims fill the disks exactly.
_HARSH_BURSTS: Final = 5
_FAULTY_BURSTS: Final = 10
_COMPARISONS: Final = {
    Section.GOAL_1: comparisons.GOAL_1,
    Section.BURST_100: comparisons.BURST_100,
    Section.BURST_200: comparisons.BURST_200,
    Section.SLOW: comparisons.SLOW,
}


def main(  # noqa: PLR0917 # the options of the command
    sections: Annotated[
        list[Section] | None, typer.Option("--section", help="Only this part; may be given several times.")
    ] = None,
    repetitions: Annotated[
        int | None, typer.Option(min=1, help="Of everything but the size, instead of what each part says.")
    ] = None,
    pods: Annotated[int, typer.Option(min=200, help="How many pods the part `size` has.")] = 1000,
    seed: Annotated[int, typer.Option(help="Which pods these are.")] = 1,
    packing: Annotated[
        Packing,
        typer.Option(help="Which nodes with room the part `size` offers; with auto, misplacements are only counted."),
    ] = Packing.ORDER_SAFE,
    placement_guard: Annotated[
        bool,
        typer.Option(
            help="Run the parts `plan`, `size` and `harsh-burst` with the placement guard, which keeps to the plan."
        ),
    ] = False,
    version: Annotated[
        str | None,
        typer.Option(
            "--kubernetes-version",
            metavar="VERSION",
            envvar=kubernetes_version.VARIABLE,
            help="The release of Kubernetes.",
            show_default="the pinned one",
        ),
    ] = None,
    file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Also write every repetition here.")
    ] = None,
) -> None:
    """Run the proposal's test plan with and without the extender. Ways to place pods are compared, too. Each result is a table. Exit code
    1: with the extender something else happened than the plan says, or without it nothing went wrong.
    """
    if version:
        os.environ[kubernetes_version.VARIABLE] = version  # for every cluster of this process
    mode = GuardMode.ENFORCE if placement_guard else GuardMode.OFF
    report = _Report(Path(tempfile.mkdtemp(prefix="e2e-report-")), file, repetitions, mode)
    counted = {
        Section.TIGHT_BURST: (report.tight_burst, _TIGHT_BURSTS),
        Section.HARSH_BURST: (report.harsh_burst, _HARSH_BURSTS),
        Section.AS_INSTALLED: (report.as_installed, _FAULTY_BURSTS),
        Section.GUARD_FAULTS: (report.guard_faults, _FAULTY_BURSTS),
        Section.PROMISED_SPACE: (report.promised_space, _FAULTY_BURSTS),
        Section.DISK_SCHEDULES: (report.disk_schedules, _EXACT_BURSTS),
        Section.TIGHT_NODES: (report.tight_nodes, _TIGHT_CLUSTERS),
        Section.STRATEGIES: (report.strategies, _ARRIVALS),
        Section.BINDINGS: (report.bindings, _SEEDS),
        Section.TODAYS_RULES: (report.todays_rules, _RULE_SEEDS),
        Section.PREDICTIONS: (report.predictions, _PREDICTED_CLUSTERS),
    }
    for section in sections or Section:
        if section is Section.PLAN:
            report.plan()
        elif section is Section.HAND_OVER:
            report.hand_over()
        elif section is Section.SIZE:
            report.size(size.Size(pods=pods, seed=seed, packing=packing, placement_guard=mode))
        elif section is Section.BACKLOG:
            report.backlog()
        elif section is Section.VERSIONS:
            report.versions()
        elif section in counted:
            part, count = counted[section]
            part(repetitions or count)
        else:
            report.compare(section, _COMPARISONS[section])
    report.finish()


class _Report:
    """Runs each part, prints it when it is done, and collects the failures."""

    def __init__(self, folder: Path, file: Path | None, repetitions: int | None, guard: GuardMode) -> None:
        self._folder = folder
        self._guard = guard
        self._file = file
        self._repetitions = repetitions
        self._failures: list[str] = []
        self._written: dict[str, object] = {}
        self._console = Console(width=None if sys.stdout.isatty() else 180)

    def plan(self) -> None:
        def write(rows: list[Row]) -> None:
            self._write(Section.PLAN, [asdict(row) for row in rows])

        rows = goals.run(self._folder / Section.PLAN, self._repetitions, write, self._guard)
        self._add(Section.PLAN, goals.failures(rows), [asdict(row) for row in rows], goals.table(rows))

    def compare(self, section: Section, comparison: Comparison) -> None:
        compared = comparisons.run(comparison, self._folder / section, self._repetitions)
        self._add(section, compared.failures, asdict(compared), comparisons.table([compared]))

    def hand_over(self) -> None:
        """Runs the bursts in which leaders end; those that have ended are written before the next one begins."""
        rows = []
        for row in hand_over.run_all(self._folder / Section.HAND_OVER, self._repetitions or 3):
            rows.append(row)
            self._add(Section.HAND_OVER, row.failures, [asdict(outcome) for row in rows for outcome in row.outcomes])
        self._console.print(hand_over.table(rows))

    def size(self, wanted: size.Size) -> None:
        outcome = size.run(self._folder / Section.SIZE, wanted)
        self._add(Section.SIZE, outcome.problems, asdict(outcome), outcome.text())

    def backlog(self) -> None:
        for pods in _BACKLOGS:
            outcome = backlog.run(self._folder / f"backlog-{pods}", backlog.Backlog(pods))
            self._add(f"{Section.BACKLOG}-{pods}", outcome.problems, asdict(outcome), outcome.text())

    def versions(self) -> None:
        rows, outcome = versions.run(self._folder / Section.VERSIONS, self._repetitions)
        self._add(Section.VERSIONS, outcome.problems, asdict(outcome), goals.table(rows), outcome.text())

    def bindings(self, seeds: int) -> None:
        outcome = static_volumes.run(self._folder / Section.BINDINGS, range(1, seeds + 1))
        self._add(Section.BINDINGS, outcome.wrong, asdict(outcome), outcome.text())

    def todays_rules(self, seeds: int) -> None:
        outcome = todays_rules.run(self._folder / Section.TODAYS_RULES, range(1, seeds + 1))
        self._add(Section.TODAYS_RULES, outcome.wrong, asdict(outcome), outcome.text())

    def predictions(self, seeds: int) -> None:
        outcome = predictions.run(self._folder / Section.PREDICTIONS, range(1, seeds + 1))
        self._add(Section.PREDICTIONS, outcome.wrong, asdict(outcome), outcome.text())

    def tight_burst(self, seeds: int) -> None:
        tallies = tight_burst.run(self._folder / Section.TIGHT_BURST, range(1, seeds + 1))
        wrong = [f"tight burst, {way}: {each}" for way in tight_burst.PROMISES for each in tallies[way] if each.wrong]
        self._add(Section.TIGHT_BURST, wrong, _by_way(tallies), tight_burst.table(tallies))

    def harsh_burst(self, seeds: int) -> None:
        """Runs harsh bursts without the placement guard and, if it is on, with it."""
        guards = [harsh_burst.WITHOUT, *([self._guard] if self._guard is not GuardMode.OFF else [])]
        outcomes = harsh_burst.run(self._folder / Section.HARSH_BURST, range(1, seeds + 1), guards)
        self._add(Section.HARSH_BURST, harsh_burst.failures(outcomes), _by_way(outcomes), harsh_burst.table(outcomes))

    def as_installed(self, repetitions: int) -> None:
        runs, latency = as_installed.run(self._folder / Section.AS_INSTALLED, repetitions)
        wrong = [f"as installed: {each}" for each in runs if each.wrong]
        self._add(Section.AS_INSTALLED, wrong, [asdict(each) for each in runs], as_installed.table(runs, latency))

    def guard_faults(self, repetitions: int) -> None:
        bursts = guard_faults.run(self._folder / Section.GUARD_FAULTS, repetitions)
        self._add(Section.GUARD_FAULTS, [], [asdict(each) for each in bursts], guard_faults.table(bursts))

    def promised_space(self, repetitions: int) -> None:
        rounds = promised_space.run(self._folder / Section.PROMISED_SPACE, repetitions)
        avoidable = sum(each.avoidable for each in rounds if each.other_nodes)
        wrong = [f"promised space: {avoidable} times it was taken though another place was free"] if avoidable else []
        self._add(Section.PROMISED_SPACE, wrong, [asdict(each) for each in rounds], promised_space.table(rounds))

    def disk_schedules(self, repetitions: int) -> None:
        results = disk_schedule_burst.run(self._folder / Section.DISK_SCHEDULES, repetitions)
        wrong = disk_schedule_burst.failures(results)
        self._add(Section.DISK_SCHEDULES, wrong, _by_way(results), disk_schedule_burst.table(results))

    def tight_nodes(self, clusters: int) -> None:
        seeds = range(1, clusters + 1)
        tallies = tight_nodes.run(seeds)
        content = {way: asdict(tally) for way, tally in tallies.items()}
        self._add(Section.TIGHT_NODES, tight_nodes.failures(tallies), content, tight_nodes.table(tallies, seeds))

    def strategies(self, orders: int) -> None:
        compared = strategies.run(orders)
        tables = map(strategies.table, compared)
        self._add(Section.STRATEGIES, strategies.failures(compared), [asdict(each) for each in compared], *tables)

    def _add(self, section: str, failures: Iterable[str], content: object, *drawn: object) -> None:
        self._failures += failures
        self._write(section, content)
        for each in drawn:
            self._console.print(each)

    def finish(self) -> None:
        """Prints the notes and the failures. The logs stay if anything failed."""
        self._console.print(NOTES)
        for failure in self._failures:
            typer.echo(failure, err=True)
        if self._failures:
            typer.echo(f"the logs are in {self._folder}", err=True)
            raise typer.Exit(1)
        shutil.rmtree(self._folder)

    def _write(self, section: str, content: object) -> None:
        self._written[str(section)] = content
        if self._file is not None:
            self._file.write_text(json.dumps(self._written, indent=1))


def _by_way(runs: Mapping[Any, Sequence[Any]]) -> dict[str, list[Any]]:
    return {str(way): [asdict(each) for each in own] for way, own in runs.items()}


if __name__ == "__main__":
    typer.run(main)
