"""The report's tight bursts: what goes wrong per 1,000 pods without the extender, and with each packing mode.

Each burst has pods of one to four claims on nodes with three unequal disks, which the claims fill almost. Every way gets the same
pods and nodes. Longhorn places the volumes of a pod within milliseconds, on a status that lags behind. So a node may be right, and its
disks overbooked all the same. Pods that find no safe node wait: `stale-safe` trades room for safety. The placement guard needs no such
trade.

What happened is counted from API objects and watches alone (`placement_audit.py`).
"""

from __future__ import annotations

import random
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rich.table import Table

from app.kube.resources import CLAIMS, PODS
from scheduler_core.extender.decision import Packing
from scheduler_core.extender.settings import GuardMode
from tests.e2e.objects import Object, Volume, Workload
from tests.e2e.placement_audit import PlacementAudit
from tests.e2e.pod_states import PodState, wait_until_quiet
from tests.e2e.rig import RECOMMENDED_MANAGED, Rig

APP: Final = "tight"
_NODES: Final = 8
_DISKS: Final = 3
_DISK_SIZES: Final = (60, 80, 100, 120)
_CLAIM_SIZES: Final = (8, 16, 24, 32, 48)
_SHARE: Final = 0.9
_WITHOUT: Final = "without"
_PACKINGS: Final = (Packing.EXACT, Packing.AUTO, Packing.ORDER_SAFE, Packing.STALE_SAFE)
_GUARDED_PACKINGS: Final = (Packing.EXACT, Packing.AUTO)


@dataclass(slots=True)
class Tally:
    """The outcomes of the pods of some bursts.

    Attributes:
        bound: pods that got a node
        misplaced: bound pods with a local volume without a replica on their node in the end
        mended: replicas placed elsewhere than where their volume was, also if a local one was created later
        overbooked: disks that held more than Longhorn allows, also if a volume left later
        stuck: bound pods that did not come to run
    """

    pods: int = 0
    bound: int = 0
    misplaced: int = 0
    mended: int = 0
    overbooked: int = 0
    stuck: int = 0

    def per_thousand(self, count: int) -> str:
        """A count per 1,000 bound pods."""
        return f"{1000 * count / self.bound:.0f}" if self.bound else "-"


@dataclass(frozen=True, slots=True)
class _Burst:
    """The nodes and pods of one seed; their sizes are in Gi."""

    group: str
    nodes: dict[str, list[str]]
    pods: list[list[Volume]]

    @classmethod
    def of(cls, seed: int) -> _Burst:
        chance = random.Random(seed)  # noqa: S311 # repeatable, not secret
        group = f"{APP}-{seed}"
        disks = {f"{group}-{number}": [chance.choice(_DISK_SIZES) for _ in range(_DISKS)] for number in range(_NODES)}
        room = _SHARE * sum(map(sum, disks.values()))
        pods: list[list[Volume]] = []
        while room > 0:
            sizes = [chance.choice(_CLAIM_SIZES) for _ in range(chance.choice((1, 2, 3, 4)))]
            room -= sum(sizes)
            if room > 0:
                pods.append([Volume(f"{size}Gi") for size in sizes])
        return cls(group, {name: [f"{size}Gi" for size in sizes] for name, sizes in disks.items()}, pods)

    def objects(self, *, asks: bool) -> list[Object]:
        """Every claim and pod."""
        return [
            entry
            for number, volumes in enumerate(self.pods)
            for entry in Workload(app=APP, group=self.group, volumes=volumes, asks=asks).loose(number)
        ]


def run(folder: Path, seeds: Sequence[int], *, guard: bool = False) -> dict[str, Tally]:
    """Runs every burst in every way, with the placement guard or without it; returns the tallies by way."""
    tallies: dict[str, Tally] = {}
    for packing in _GUARDED_PACKINGS if guard else _PACKINGS:
        ways = [f"{packing}, guarded" if guard else packing.value]
        if packing is Packing.EXACT and not guard:
            ways.insert(0, _WITHOUT)
        mode = GuardMode.ENFORCE if guard else GuardMode.OFF
        arguments = ("--packing", packing)
        with Rig(folder / packing, config=RECOMMENDED_MANAGED, more_arguments=arguments, placement_guard=mode) as rig:
            for seed in seeds:
                burst = _Burst.of(seed)
                rig.add_nodes(burst.group, burst.nodes)
                for way in ways:
                    tally = tallies.setdefault(way, Tally())
                    _run_once(rig, burst, tally, asks=way != _WITHOUT)
                    print(f"tight burst, {way}, seed {seed}: {tally} so far", file=sys.stderr)
    return tallies


def _run_once(rig: Rig, burst: _Burst, tally: Tally, *, asks: bool) -> None:
    objects = burst.objects(asks=asks)
    rig.post(entry for entry in objects if entry["kind"] == CLAIMS.kind)
    try:
        with PlacementAudit(rig) as audit:
            rig.post(entry for entry in objects if entry["kind"] == PODS.kind)
            settled = wait_until_quiet(rig, APP, audit.started)
            tally.pods += len(settled.states)
            tally.bound += len(settled.bound)
            tally.stuck += settled.count(PodState.BOUND)
            tally.misplaced += len(settled.bound.intersection(rig.misplaced_pods(APP)))
            tally.mended += audit.misplacements
            tally.overbooked += len(audit.overbooked)
    finally:
        rig.remove(APP)


def table(tallies: dict[str, Tally]) -> Table:
    """The tallies as a table for people; the last columns are per 1,000 bound pods."""
    columns = ("tight burst", "pods", "bound", "misplaced", "mended", "overbooked disks", "stuck")
    drawn = Table(*columns, "misplaced or mended per 1,000", "overbooked per 1,000")
    for way, tally in tallies.items():
        counts = (tally.pods, tally.bound, tally.misplaced, tally.mended, tally.overbooked, tally.stuck)
        wrong = tally.per_thousand(max(tally.misplaced, tally.mended))
        drawn.add_row(way, *map(str, counts), wrong, tally.per_thousand(tally.overbooked))
    return drawn
