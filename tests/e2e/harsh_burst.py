"""The report's harsh bursts: disks that the claims fill exactly, and that most orders of placement do not.

Each burst has eight pods of three or four claims: two pods on each of two nodes, one on each of four. The sizes come
from filling disks, so every node has an exact packing. Nodes are drawn again until at least 92 % of random orders fail
by Longhorn's own choice of disks: a volume finds no disk, although each placement is seen by the next. Half of the
claims are strict-local, half best-effort.

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
from scheduler_core.longhorn.placement import DiskCandidate, possible_choices
from scheduler_core.model import longhorn
from scheduler_core.values import replace
from tests.e2e.objects import LOCAL, Object, Volume, Workload
from tests.e2e.placement_audit import PlacementAudit
from tests.e2e.placement_latency import PlacementLatency
from tests.e2e.pod_states import PodState, Settled, wait_until_quiet
from tests.e2e.rig import RECOMMENDED_MANAGED, Rig

APP: Final = "harsh"
STRICT: Final = "longhorn-strict"
WITHOUT: Final = GuardMode.OFF
ENFORCE: Final = GuardMode.ENFORCE
MIN_FAILING_SHARE: Final = 0.92
# The number of pods on each node, and of disks for so many pods.
# With more nodes, more volumes find room on a wrong one.
_PODS: Final = (2, 2, 1, 1, 1, 1)
_DISKS: Final = {1: 3, 2: 4}
_DISK_SIZES: Final = (40, 60, 80, 100, 120)
_STEP: Final = 5
_PARTS: Final = (1, 2)
_CLAIMS_PER_POD: Final = (3, 4)
_ORDERS: Final = 200
_GIBIBYTE: Final = 2**30


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


@dataclass(frozen=True, slots=True)
class Outcome:
    """What happened in one burst."""

    seed: int
    overbooked: float  # Gi that were too many on disks, each disk at its worst
    misplaced: int  # bound pods with a local volume whose replicas are on other nodes
    mended: int  # replicas placed elsewhere than where their volume was, also if a local one was created later
    stuck: int  # bound pods that did not come to run
    waiting: int  # pods that got no node
    seconds: float | None  # until every pod ran, None if not every pod did

    @property
    def wrong(self) -> bool:
        """Whether anything but running pods with local volumes came out."""
        return bool(self.overbooked or self.misplaced or self.mended or self.stuck or self.waiting)


def run(folder: Path, seeds: Sequence[int], guards: Sequence[GuardMode]) -> dict[GuardMode, list[Outcome]]:
    """Runs every burst with each mode of the placement guard; returns the outcomes by mode."""
    outcomes: dict[GuardMode, list[Outcome]] = {}
    for guard in guards:
        arguments = ("--packing", Packing.EXACT)
        way = folder / guard
        with Rig(way, config=RECOMMENDED_MANAGED, more_arguments=arguments, audit=True, placement_guard=guard) as rig:
            for seed in seeds:
                outcome = run_once(rig, seed)
                outcomes.setdefault(guard, []).append(outcome)
                print(f"harsh burst, guard {guard}: {outcome}", file=sys.stderr)
            latency = PlacementLatency.of(rig.cluster.audit_events(), rig.cluster.api.text("/metrics"))
            print(f"harsh burst, guard {guard}: {latency}", file=sys.stderr)
    return outcomes


def run_once(rig: Rig, seed: int) -> Outcome:
    """Runs one burst on nodes of its own, which are removed with it."""
    burst = HarshBurst.of(seed)
    burst.add_nodes(rig)
    objects = burst.objects()
    rig.post(entry for entry in objects if entry["kind"] == CLAIMS.kind)
    try:
        with PlacementAudit(rig) as audit:
            rig.post(entry for entry in objects if entry["kind"] == PODS.kind)
            return outcome_of(rig, seed, audit, wait_until_quiet(rig, APP, audit.started))
    finally:
        rig.remove(APP)
        rig.remove_nodes(*burst.nodes)


def outcome_of(rig: Rig, seed: int, audit: PlacementAudit, settled: Settled) -> Outcome:
    """What happened in a burst that has come to rest."""
    return Outcome(
        seed,
        audit.bytes_overbooked / _GIBIBYTE,
        len(settled.bound.intersection(rig.misplaced_pods(APP, placed=True))),
        audit.misplacements,
        settled.count(PodState.BOUND),
        settled.count(PodState.WAITING),
        settled.seconds_until_ready,
    )


def failures(outcomes: dict[GuardMode, list[Outcome]]) -> list[str]:
    """What happened against expectation: something wrong with the guard, or nothing wrong without it."""
    texts = [
        f"harsh burst, guard {guard}: {each}"
        for guard, runs in outcomes.items()
        for each in runs
        if guard is not WITHOUT and each.wrong
    ]
    if WITHOUT in outcomes and not any(each.wrong for each in outcomes[WITHOUT]):
        texts.append("harsh burst: nothing went wrong without the guard")
    return texts


def table(outcomes: dict[GuardMode, list[Outcome]]) -> Table:
    """The outcomes as a table for people."""
    drawn = Table(
        "harsh burst", "seed", "Gi overbooked", "pods misplaced", "mended", "stuck", "waiting", "all ready (s)"
    )
    for guard, runs in outcomes.items():
        for each in runs:
            counts = (each.misplaced, each.mended, each.stuck, each.waiting)
            ready = "never" if each.seconds is None else f"{each.seconds:.1f}"
            drawn.add_row(f"guard: {guard}", str(each.seed), f"{each.overbooked:g}", *map(str, counts), ready)
    return drawn
