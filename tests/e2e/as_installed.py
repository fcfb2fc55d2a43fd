"""The report's promise of an installation: packing auto with the placement guard on, in bursts that need every disk.

Goal 2 is the proposal's: a pod with four claims of 100Gi on a node with four disks of 100Gi. The harsh bursts fill their disks exactly.
The mix has volumes with one, two and three replicas, strict-local and best-effort ones, and a disk tag. Its second row lets the guard
move replicas that take promised space to other nodes. What went wrong is counted from API objects and watches alone; whether a pod waits
although it fits, by brute force over the objects.
"""

import random
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

from app.kube.resources import LONGHORN_NODES
from devcluster.programs import NAMESPACE
from devcluster.stack import disk_statuses
from scheduler_core.decide.extender_settings import GUARD_OTHER_NODES
from tests.builders import storage_class
from tests.e2e import harsh_burst, plan
from tests.e2e.bursts import Outcome, settled_burst
from tests.e2e.harsh_burst import STRICT
from tests.e2e.objects import LOCAL, Object, Volume, Workload
from tests.e2e.report import Options, Part, draw, spread
from tests.e2e.rig import Rig

APP = "mix"
_TWO = "mix-two"
_THREE = "mix-three"
_TAGGED = "mix-ssd"
_TAG = "ssd"
_GIBIBYTE = 2**30
# How many replicas a volume of each class takes, in the share of the disks that pods may fill.
_REPLICAS = {LOCAL: 1, STRICT: 1, _TAGGED: 1, _TWO: 2, _THREE: 3}
_NODES = 6
_DISK_SIZES = (60, 80, 100, 120)
_SHARE = 0.8
_BURSTS = 10
_TAKEN = 'longhorn_scheduler_extender_placement_guard_placements_total{outcome="promised-space-taken"}'


@dataclass(frozen=True, slots=True)
class Run:
    """What happened in one burst."""

    part: str
    misplaced: int
    mended: int
    stuck: int
    overbooked: int
    waits: int  # pods that wait although they fit, by brute force
    seconds: float | None  # until every pod ran, None if not every pod did
    taken: int = 0  # placements that took promised space because the guard may move them nowhere else

    @property
    def wrong(self) -> bool:
        """Whether a pod or a disk came out wrong."""
        elsewhere = max(self.misplaced, self.mended) > self.taken
        return bool(elsewhere or self.stuck or self.overbooked or self.waits)


def report(folder: Path, options: Options) -> Part:
    """Runs so many bursts of each part on one rig."""
    parts: dict[str, Callable[[Rig, int], Run]] = {
        "goal 2": _goal_2,
        "harsh burst": _harsh_burst,
        "mix": partial(_mix, other_nodes=False),
        "mix, other nodes": partial(_mix, other_nodes=True),
    }
    runs: list[Run] = []
    with Rig(folder) as rig:
        plan.goal_2_nodes(rig)
        for name, part in parts.items():
            if name == "mix":
                # Other nodes have no disk for some of them, and would report no capacity.
                rig.create(*_classes())
            for seed in range(1, (options.repetitions or _BURSTS) + 1):
                runs.append(part(rig, seed))
                print(f"as installed: {runs[-1]}", file=sys.stderr)
    wrong = [f"as installed: {each}" for each in runs if each.wrong]
    rows = [_row(name, [each for each in runs if each.part == name]) for name in parts]
    return Part(wrong, [asdict(each) for each in runs], [draw(rows)])


def _goal_2(rig: Rig, _seed: int) -> Run:
    result = plan.goal_2(rig, asks=True)
    wrong = (len(result.misplaced), result.mended, len(result.stuck), len(result.overbooked))
    return Run("goal 2", *wrong, sum(not node for node in result.nodes.values()), result.seconds)


def _harsh_burst(rig: Rig, seed: int) -> Run:
    outcome = harsh_burst.run_once(rig, seed)
    # Every node has an exact packing of its pods, so each pod that waits would fit.
    wrong = (outcome.misplaced, outcome.mended, outcome.stuck, int(outcome.overbooked > 0))
    return Run("harsh burst", *wrong, outcome.waiting, outcome.seconds)


def _classes() -> list[Object]:
    return [
        storage_class(_TWO, numberOfReplicas="2"),
        storage_class(_THREE, numberOfReplicas="3", dataLocality="disabled"),
        storage_class(_TAGGED, diskSelector=_TAG),
    ]


def _mix(rig: Rig, seed: int, *, other_nodes: bool) -> Run:
    rig.change_settings({GUARD_OTHER_NODES: str(other_nodes).lower()})
    chance = random.Random(seed)  # noqa: S311 # repeatable, not secret
    group = f"{APP}-{seed}"
    disks = {
        f"{group}-{number}": [
            {"size": f"{chance.choice(_DISK_SIZES)}Gi", "tags": [_TAG] if position == 0 else []}
            for position in range(3)
        ]
        for number in range(_NODES)
    }
    room = _SHARE * sum(int(str(disk["size"]).removesuffix("Gi")) for each in disks.values() for disk in each)
    pods: list[list[Volume]] = []
    while room > 0:
        volumes = [
            Volume(f"{chance.choice((10, 20, 30, 40))}Gi", chance.choice(list(_REPLICAS)))
            for _ in range(chance.choice((1, 2, 3)))
        ]
        room -= sum(int(each.size.removesuffix("Gi")) * _REPLICAS[each.storage_class] for each in volumes)
        pods += [volumes] if room > 0 else []
    objects = [
        entry
        for number, volumes in enumerate(pods)
        for entry in Workload(app=APP, group=group, volumes=volumes).loose(number)
    ]
    rig.add_nodes(group, disks)
    leader = rig.wait_for_leader()
    taken = rig.metric(leader, _TAKEN)
    with settled_burst(rig, APP, objects, disks) as (audit, settled):
        outcome = Outcome.of(rig, APP, seed, audit, settled)
        elsewhere = settled.bound.intersection(rig.misplaced_pods(APP, placed=True))
        return Run(
            "mix, other nodes" if other_nodes else "mix",
            len(elsewhere & _local_pods(pods)),
            outcome.mended,
            outcome.stuck,
            outcome.disks,
            sum(_fits_somewhere(rig, list(disks), pods[int(name.rpartition("-")[2])]) for name in settled.waiting),
            outcome.seconds,
            int(rig.metric(leader, _TAKEN) - taken),
        )


def _local_pods(pods: Sequence[Sequence[Volume]]) -> set[str]:
    return {
        f"{APP}-{number}"
        for number, volumes in enumerate(pods)
        if all(each.storage_class != _THREE for each in volumes)
    }


def _fits_somewhere(rig: Rig, nodes: Sequence[str], volumes: Sequence[Volume]) -> bool:
    """Whether a node has disks for one replica of each of a pod's local volumes; tries every way."""
    used = rig.replica_bytes()
    local = [each for each in volumes if each.storage_class != _THREE]
    wanted = [(int(each.size.removesuffix("Gi")) * _GIBIBYTE, each.storage_class == _TAGGED) for each in local]
    for name in nodes:
        raw = rig.cluster.api.get(LONGHORN_NODES.path(NAMESPACE, name))
        free = [
            (
                status["storageMaximum"] - used.get(status["diskUUID"], 0),
                _TAG in (raw["spec"]["disks"][disk].get("tags") or []),
            )
            for disk, status in disk_statuses(raw).items()
        ]
        if fit(wanted, free):
            return True
    return False


def fit(wanted: Sequence[tuple[int, bool]], free: Sequence[tuple[int, bool]]) -> bool:
    """Whether all sizes fit, each on one disk, and those that need the tag on disks that have it; tries every way."""
    if not wanted:
        return True
    (size, needs_tag), *others = wanted
    return any(
        space >= size
        and tagged >= needs_tag
        and fit(others, [*free[:index], (space - size, tagged), *free[index + 1 :]])
        for index, (space, tagged) in enumerate(free)
    )


def _row(part: str, runs: Sequence[Run]) -> dict[str, object]:
    return {
        "as installed": part,
        "bursts": len(runs),
        "misplaced": sum(each.misplaced for each in runs),
        "mended": sum(each.mended for each in runs),
        "stuck": sum(each.stuck for each in runs),
        "overbooked disks": sum(each.overbooked for each in runs),
        "wait although they fit": sum(each.waits for each in runs),
        "promised space taken": sum(each.taken for each in runs),
        "all run (s)": spread(each.seconds for each in runs),
    }
