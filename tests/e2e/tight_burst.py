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
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self

from scheduler_core.decide.decision import Packing
from scheduler_core.decide.extender_settings import GuardMode
from tests.e2e.bursts import Outcome, settled_burst
from tests.e2e.objects import Object, Volume, Workload
from tests.e2e.report import Options, Part, draw
from tests.e2e.rig import Rig

APP = "tight"
_NODES = 8
_DISKS = 3
_DISK_SIZES = (60, 80, 100, 120)
_CLAIM_SIZES = (8, 16, 24, 32, 48)
_SHARE = 0.9
_BURSTS = 10  # of some twenty-six pods
_WITHOUT = "without the extender"
_GUARDED = "as installed"
# What each rig runs: which ways, the packing mode, and the mode of the placement guard.
_RIGS = (
    ((_GUARDED,), Packing.AUTO, GuardMode.ENFORCE),
    ((_WITHOUT, f"--packing {Packing.EXACT}, no guard"), Packing.EXACT, GuardMode.OFF),
    *(((f"--packing {packing}, no guard",), packing, GuardMode.OFF) for packing in (Packing.AUTO, Packing.ORDER_SAFE)),
    ((f"--packing {Packing.STALE_SAFE}, no guard",), Packing.STALE_SAFE, GuardMode.OFF),
)
# The ways in which nothing may go wrong.
_PROMISES = (_RIGS[0][0][0], _RIGS[-1][0][0])


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


def report(folder: Path, options: Options) -> Part:
    """Runs every burst in every way."""
    outcomes: dict[str, list[Outcome]] = {}
    for ways, packing, guard in _RIGS:
        with Rig(folder / f"{packing}-{guard}", more_arguments=("--packing", packing), placement_guard=guard) as rig:
            for seed in range(1, (options.repetitions or _BURSTS) + 1):
                burst = _Burst.of(seed)
                rig.add_nodes(burst.group, burst.nodes)
                for way in ways:
                    outcome = _run_valid(rig, burst, seed, asks=way != _WITHOUT)
                    outcomes.setdefault(way, []).append(outcome)
                    print(f"tight burst, {way}: {outcome}", file=sys.stderr)
                rig.remove_nodes(*burst.nodes)
    wrong = [f"tight burst, {way}: {each}" for way in _PROMISES for each in outcomes[way] if each.faulty]
    content = {way: [asdict(each) for each in runs] for way, runs in outcomes.items()}
    return Part(wrong, content, [draw(_row(way, bursts) for way, bursts in outcomes.items())])


def _run_valid(rig: Rig, burst: _Burst, seed: int, *, asks: bool) -> Outcome:
    try:
        return _run_once(rig, burst, seed, asks=asks)
    except AssertionError as error:
        print(f"tight burst: not valid, repeated: {error}", file=sys.stderr)
        return _run_once(rig, burst, seed, asks=asks)


def _run_once(rig: Rig, burst: _Burst, seed: int, *, asks: bool) -> Outcome:
    with settled_burst(rig, APP, burst.objects(asks=asks)) as (audit, settled):
        return Outcome.of(rig, APP, seed, audit, settled, placed=False)


def _row(way: str, bursts: Sequence[Outcome]) -> dict[str, object]:
    """The figures of a way; per 1,000 bound pods, with the least and the most of one burst."""
    return {
        "tight burst": way,
        "bursts": len(bursts),
        "pods with a node": f"{sum(each.bound for each in bursts)} of {sum(each.pods for each in bursts)}",
        "stuck": sum(each.stuck for each in bursts),
        "misplaced or mended per 1,000": _per_thousand(
            [(max(each.misplaced, each.mended), each.bound) for each in bursts]
        ),
        "overbooked disks per 1,000": _per_thousand([(each.disks, each.bound) for each in bursts]),
    }


def _per_thousand(counts: Sequence[tuple[int, int]]) -> str:
    bound = sum(each for _, each in counts)
    if not bound:
        return "-"
    shares = [1000 * count / each for count, each in counts if each]
    return f"{1000 * sum(count for count, _ in counts) / bound:.0f} ({min(shares):.0f} to {max(shares):.0f})"
