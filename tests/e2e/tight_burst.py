"""The report's tight bursts: what goes wrong per 1,000 pods without the extender, and with each packing mode.

Each burst has pods of one to four claims on nodes with three unequal disks, which the claims fill almost. Every way gets the same
pods and nodes. Longhorn places the volumes of a pod within milliseconds, on a status that lags behind. So a node may be right, and its
disks overbooked all the same. Pods that find no safe node wait: `stale-safe` trades room for safety. The placement guard needs no such
trade. A burst in which no pod gets a node says nothing; it is repeated, and a second one ends the run.

What happened is counted from API objects and watches alone (`placement_audit.py`).
"""

import random
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from rich.table import Table

from app.kube.resources import CLAIMS, PODS
from scheduler_core.decide.decision import Packing
from scheduler_core.decide.extender_settings import GuardMode
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
_WITHOUT: Final = "without the extender"
GUARDED: Final = "as installed"
# What each rig runs: which ways, the packing mode, and the mode of the placement guard.
_RIGS: Final = (
    ((GUARDED,), Packing.AUTO, GuardMode.ENFORCE),
    ((_WITHOUT, f"--packing {Packing.EXACT}, no guard"), Packing.EXACT, GuardMode.OFF),
    *(((f"--packing {packing}, no guard",), packing, GuardMode.OFF) for packing in (Packing.AUTO, Packing.ORDER_SAFE)),
    ((f"--packing {Packing.STALE_SAFE}, no guard",), Packing.STALE_SAFE, GuardMode.OFF),
)
# The ways in which nothing may go wrong.
PROMISES: Final = (_RIGS[0][0][0], _RIGS[-1][0][0])


@dataclass(frozen=True, slots=True)
class Tally:
    """The outcomes of the pods of one burst."""

    pods: int
    bound: int  # pods that got a node
    misplaced: int  # bound pods with a local volume without a replica on their node in the end
    mended: int  # replicas placed elsewhere than where their volume was, also if a local one was created later
    overbooked: int  # disks that held more than Longhorn allows, also if a volume left later
    stuck: int  # bound pods that did not come to run

    @property
    def wrong(self) -> bool:
        """Whether a pod or a disk came out wrong."""
        return bool(self.misplaced or self.mended or self.overbooked or self.stuck)


@dataclass(frozen=True, slots=True)
class _Burst:
    """The nodes and pods of one seed; their sizes are in Gi."""

    group: str
    nodes: dict[str, list[str]]
    pods: list[list[Volume]]

    @classmethod
    def of(cls, seed: int) -> Self:
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
        return [
            entry
            for number, volumes in enumerate(self.pods)
            for entry in Workload(app=APP, group=self.group, volumes=volumes, asks=asks).loose(number)
        ]


def run(folder: Path, seeds: Sequence[int]) -> dict[str, list[Tally]]:
    """Runs every burst in every way; returns the tallies by way, one for each burst."""
    tallies: dict[str, list[Tally]] = {}
    for ways, packing, guard in _RIGS:
        arguments = ("--packing", packing)
        way_folder = folder / f"{packing}-{guard}"
        with Rig(way_folder, config=RECOMMENDED_MANAGED, more_arguments=arguments, placement_guard=guard) as rig:
            for seed in seeds:
                burst = _Burst.of(seed)
                rig.add_nodes(burst.group, burst.nodes)
                for way in ways:
                    tally = _run_valid(rig, burst, asks=way != _WITHOUT)
                    tallies.setdefault(way, []).append(tally)
                    print(f"tight burst, {way}, seed {seed}: {tally}", file=sys.stderr)
                rig.remove_nodes(*burst.nodes)
    return tallies


def _run_valid(rig: Rig, burst: _Burst, *, asks: bool) -> Tally:
    try:
        return _run_once(rig, burst, asks=asks)
    except AssertionError as error:
        print(f"tight burst: not valid, repeated: {error}", file=sys.stderr)
        return _run_once(rig, burst, asks=asks)


def _run_once(rig: Rig, burst: _Burst, *, asks: bool) -> Tally:
    objects = burst.objects(asks=asks)
    rig.post(entry for entry in objects if entry["kind"] == CLAIMS.kind)
    try:
        with PlacementAudit(rig) as audit:
            rig.post(entry for entry in objects if entry["kind"] == PODS.kind)
            settled = wait_until_quiet(rig, APP, audit.started)
            return Tally(
                pods=len(settled.states),
                bound=len(settled.bound),
                misplaced=len(settled.bound.intersection(rig.misplaced_pods(APP))),
                mended=audit.misplacements,
                overbooked=len(audit.overbooked),
                stuck=settled.count(PodState.BOUND),
            )
    finally:
        rig.remove(APP)


def table(tallies: dict[str, list[Tally]]) -> Table:
    """The tallies as a table for people; per 1,000 bound pods, with the least and the most of one burst."""
    drawn = Table(
        "tight burst",
        "bursts",
        "pods with a node",
        "stuck",
        "misplaced or mended per 1,000",
        "overbooked disks per 1,000",
    )
    for way, bursts in tallies.items():
        bound = sum(each.bound for each in bursts)
        drawn.add_row(
            way,
            str(len(bursts)),
            f"{bound} of {sum(each.pods for each in bursts)}",
            str(sum(each.stuck for each in bursts)),
            _per_thousand([(max(each.misplaced, each.mended), each.bound) for each in bursts]),
            _per_thousand([(each.overbooked, each.bound) for each in bursts]),
        )
    return drawn


def _per_thousand(counts: Sequence[tuple[int, int]]) -> str:
    bound = sum(each for _, each in counts)
    if not bound:
        return "-"
    shares = [1000 * count / each for count, each in counts if each]
    return f"{1000 * sum(count for count, _ in counts) / bound:.0f} ({min(shares):.0f} to {max(shares):.0f})"
