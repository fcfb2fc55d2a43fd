"""The report's harsh bursts: disks that the claims fill exactly, and that most orders of placement do not.

Each burst has eight pods of three or four claims: two pods on each of two nodes, one on each of four. The sizes come
from filling disks, so every node has an exact packing. Nodes are drawn again until at least 92 % of random orders fail
by Longhorn's own choice of disks: a volume finds no disk, although each placement is seen by the next. Half of the
claims are strict-local, half best-effort.

What happened is counted from API objects and watches alone (`placement_audit.py`).
"""

import random
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self

from scheduler_core.decide.decision import Packing
from scheduler_core.decide.extender_settings import GuardMode
from scheduler_core.longhorn.placement import DiskCandidate, possible_choices
from scheduler_core.model import longhorn
from scheduler_core.structs import replace
from tests.e2e.bursts import Outcome, settled_burst
from tests.e2e.objects import LOCAL, Object, Volume, Workload
from tests.e2e.report import Options, Part, draw
from tests.e2e.rig import Rig

APP = "harsh"
STRICT = "longhorn-strict"
WITHOUT = GuardMode.OFF
ENFORCE = GuardMode.ENFORCE
MIN_FAILING_SHARE = 0.92
# The number of pods on each node, and of disks for so many pods.
# With more nodes, more volumes find room on a wrong one.
_PODS = (2, 2, 1, 1, 1, 1)
_DISKS = {1: 3, 2: 4}
_DISK_SIZES = (40, 60, 80, 100, 120)
_STEP = 5
_PARTS = (1, 2)
_CLAIMS_PER_POD = (3, 4)
_ORDERS = 200
_BURSTS = 5


@dataclass(frozen=True, slots=True)
class HarshNode:
    """A node that its pods fill exactly; sizes in Gi."""

    disks: tuple[int, ...]  # the size of each disk
    pods: tuple[tuple[int, ...], ...]  # the sizes of each pod's claims

    @classmethod
    def draw(cls, pods: int, chance: random.Random) -> Self:
        while True:
            node = cls._draw_full(pods, chance)
            if node is not None and node.failing_share(chance) >= MIN_FAILING_SHARE:
                return node

    @classmethod
    def _draw_full(cls, pods: int, chance: random.Random) -> Self | None:
        """A node with exactly full disks, None if the number of its claims is wrong."""
        disks = tuple(chance.choice(_DISK_SIZES) for _ in range(_DISKS[pods]))
        claims = [size for disk in disks for size in _split(disk, chance)]
        least, most = (count * pods for count in _CLAIMS_PER_POD)
        if not least <= len(claims) <= most:
            return None
        chance.shuffle(claims)
        return cls(disks, tuple(tuple(claims[pod::pods]) for pod in range(pods)))

    def failing_share(self, chance: random.Random) -> float:
        """The share of random orders in which Longhorn's choices leave a volume without a disk."""
        return sum(not self._places_all(chance) for _ in range(_ORDERS)) / _ORDERS

    def _places_all(self, chance: random.Random) -> bool:
        """Whether all claims find a disk in a random order, if each placement is seen by the next."""
        sizes = [size for pod in self.pods for size in pod]
        chance.shuffle(sizes)
        disks = {
            str(number): longhorn.Disk(str(number), str(number), storage_available=size)
            for number, size in enumerate(self.disks)
        }
        for size in sizes:
            open_disks = [disk for disk in disks.values() if disk.storage_scheduled + size <= disk.storage_available]
            candidates = [DiskCandidate(longhorn.Node("node"), disk) for disk in open_disks]
            if not candidates:
                return False
            chosen = chance.choice(possible_choices(candidates, size)).candidate.disk
            disks[chosen.uuid] = replace(chosen, storage_scheduled=chosen.storage_scheduled + size)
        return True


def _split(disk: int, chance: random.Random) -> list[int]:
    cuts = sorted(chance.sample(range(_STEP, disk, _STEP), chance.choice(_PARTS) - 1))
    return [end - start for start, end in zip([0, *cuts], [*cuts, disk], strict=True)]


@dataclass(frozen=True, slots=True)
class HarshBurst:
    """The nodes and pods of one seed."""

    group: str  # the label of its nodes
    nodes: dict[str, HarshNode]  # the nodes by name
    volumes: tuple[tuple[str, tuple[Volume, ...]], ...]  # the claims of each pod, with its node's name

    @classmethod
    def of(cls, seed: int) -> Self:
        """The burst of a seed, always the same."""
        chance = random.Random(seed)  # noqa: S311 # repeatable, not secret
        group = f"{APP}-{seed}"
        nodes = {f"{group}-{number}": HarshNode.draw(pods, chance) for number, pods in enumerate(_PODS)}
        pods = [(name, sizes) for name, node in nodes.items() for sizes in node.pods]
        count = sum(len(sizes) for _, sizes in pods)
        classes = [STRICT] * (count // 2) + [LOCAL] * (count - count // 2)
        chance.shuffle(classes)
        volumes = tuple((name, tuple(Volume(f"{size}Gi", classes.pop()) for size in sizes)) for name, sizes in pods)
        return cls(group, nodes, volumes)

    def add_nodes(self, rig: Rig) -> None:
        rig.add_nodes(self.group, {name: [f"{size}Gi" for size in node.disks] for name, node in self.nodes.items()})

    def objects(self) -> list[Object]:
        """Every claim and pod. Each pod has one node, because not every distribution over the nodes has an exact packing."""
        return [
            entry
            for number, (node, volumes) in enumerate(self.volumes)
            for entry in Workload(app=APP, group=self.group, volumes=volumes, only=node).loose(number)
        ]


def report(folder: Path, options: Options) -> Part:
    """Runs every burst without the placement guard and, if it is on, with it."""
    outcomes: dict[GuardMode, list[Outcome]] = {}
    for guard in dict.fromkeys((WITHOUT, options.guard)):
        arguments = ("--packing", Packing.EXACT)
        with Rig(folder / guard, more_arguments=arguments, placement_guard=guard) as rig:
            for seed in range(1, (options.repetitions or _BURSTS) + 1):
                outcomes.setdefault(guard, []).append(run_once(rig, seed))
                print(f"harsh burst, guard {guard}: {outcomes[guard][-1]}", file=sys.stderr)
    rows = [
        {
            "harsh burst": f"guard: {guard}",
            "seed": each.seed,
            "Gi overbooked": f"{each.overbooked:g}",
            "pods misplaced": each.misplaced,
            "mended": each.mended,
            "stuck": each.stuck,
            "waiting": each.waiting,
            "all ready (s)": "never" if each.seconds is None else f"{each.seconds:.1f}",
        }
        for guard, runs in outcomes.items()
        for each in runs
    ]
    content = {guard: [asdict(each) for each in runs] for guard, runs in outcomes.items()}
    return Part(failures(outcomes), content, [draw(rows)])


def run_once(rig: Rig, seed: int) -> Outcome:
    """Runs one burst on nodes of its own, which are removed with it."""
    burst = HarshBurst.of(seed)
    burst.add_nodes(rig)
    with settled_burst(rig, APP, burst.objects(), burst.nodes) as (audit, settled):
        return Outcome.of(rig, APP, seed, audit, settled)


def is_wrong(outcome: Outcome) -> bool:
    """Whether anything but running pods with local volumes came out: every node has an exact packing of its pods."""
    return outcome.faulty or outcome.waiting > 0


def failures(outcomes: Mapping[GuardMode, Sequence[Outcome]]) -> list[str]:
    """What happened against expectation: something wrong with the guard, or nothing wrong without it."""
    texts = [
        f"harsh burst, guard {guard}: {each}"
        for guard, runs in outcomes.items()
        for each in runs
        if guard is not WITHOUT and is_wrong(each)
    ]
    if WITHOUT in outcomes and not any(map(is_wrong, outcomes[WITHOUT])):
        texts.append("harsh burst: nothing went wrong without the guard")
    return texts
