"""`make e2e-report`: the proposal's test plan, and ways to place pods compared. Exit code 1: with the extender something else happened than
the plan says.
"""

import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from devcluster import kubernetes_version
from scheduler_core.decide.decision import Packing
from scheduler_core.decide.extender_settings import GuardMode
from scheduler_core.structs import replace
from tests.e2e import (
    as_installed,
    backlog,
    comparisons,
    goals,
    guard_faults,
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
from tests.e2e.report import Options, Part

NOTES = """
The nodes of goal 1 have other work (10, 40, 60 and 80 % of CPU and memory), as in any cluster: on idle equal nodes kube-scheduler spreads
the pods of a StatefulSet evenly by itself. "mended": replicas placed elsewhere than where their volume was, also if a local one was
made later. "overbooked disks": Longhorn placed several volumes on one disk before its own status followed (what DiskSchedule is to end),
also if one of them left later; their pods are on the right node, so nothing is misplaced. In goal 2
that happens with the extender too, because the four volumes of the pod are attached at once. In 3B "misplaced" also counts
pods that came back to another node. "times without" and "times capacity" compare medians."""

_PARTS: Mapping[str, Callable[[Path, Options], Part]] = {
    "plan": goals.report,
    "goal-1": partial(comparisons.report, comparisons.GOAL_1),
    "burst-100": partial(comparisons.report, comparisons.BURST_100),
    "burst-200": partial(comparisons.report, comparisons.BURST_200),
    "slow": partial(comparisons.report, comparisons.SLOW),
    "tight-burst": tight_burst.report,
    "harsh-burst": harsh_burst.report,
    "as-installed": as_installed.report,
    "guard-faults": guard_faults.report,
    "promised-space": promised_space.report,
    "tight-nodes": tight_nodes.report,
    "strategies": strategies.report,
    "disk-schedules": partial(comparisons.report, comparisons.SCHEDULES),
    "size": size.report,
    "backlog": backlog.report,
    "bindings": static_volumes.report,
    "versions": versions.report,
    "todays-rules": todays_rules.report,
    "predictions": predictions.report,
}


def _check_sections(sections: list[str] | None) -> list[str] | None:
    for each in set(sections or ()) - _PARTS.keys():
        raise typer.BadParameter(f"{each} is none of {', '.join(_PARTS)}")
    return sections


def main(  # noqa: PLR0917 # the options of the command
    sections: Annotated[
        list[str] | None,
        typer.Option(
            "--section",
            callback=_check_sections,
            metavar="|".join(_PARTS),
            help="Only this part; may be given several times.",
        ),
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
    guard = GuardMode.ENFORCE if placement_guard else GuardMode.OFF
    options = Options(repetitions=repetitions, pods=pods, seed=seed, packing=packing, guard=guard)
    folder = Path(tempfile.mkdtemp(prefix="e2e-report-"))
    console = Console(width=None if sys.stdout.isatty() else 180)
    failures: list[str] = []
    written: dict[str, object] = {}

    def write(section: str, content: object) -> None:
        written[section] = content
        if file is not None:
            file.write_text(json.dumps(written, indent=1))

    for section in sections or _PARTS:
        part = _PARTS[section](folder / section, replace(options, write=partial(write, section)))
        failures += part.failures
        write(section, part.content)
        for each in part.drawn:
            console.print(each)
    console.print(NOTES)
    for failure in failures:
        typer.echo(failure, err=True)
    if failures:
        # The logs stay.
        typer.echo(f"the logs are in {folder}", err=True)
        raise typer.Exit(1)
    shutil.rmtree(folder)


if __name__ == "__main__":
    typer.run(main)
