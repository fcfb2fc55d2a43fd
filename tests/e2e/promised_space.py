"""The report's disks that close in a burst: whether the volumes that they displace take space that was promised to other pods.

Six nodes of 400Gi, in one disk or two, get twenty pods of 100Gi in one to three best-effort claims. Between 0.2 and 1.5 s after they were
created a disk is switched off, filled or evicted, or its node is cordoned. Longhorn places what is displaced on other nodes, by figures
that lag.

What went wrong is counted from watches alone, and for each case a brute force over the objects as they were at that moment says whether
Longhorn could have placed the replica where nothing was promised.
"""

import json
import random
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from app.kube.resources import CLAIMS, LONGHORN_NODES, LONGHORN_REPLICAS, NODES, PERSISTENT_VOLUMES
from devcluster.programs import NAMESPACE
from devcluster.stack import disk_statuses
from scheduler_core.decide.extender_settings import GUARD_OTHER_NODES
from simulator.objects import DISKS
from tests.e2e.as_installed import fit
from tests.e2e.bursts import settled_burst
from tests.e2e.object_watch import ObjectWatch
from tests.e2e.objects import Object, Volume, Workload, name_of, selected_node
from tests.e2e.report import Options, Part, draw
from tests.e2e.rig import Rig

APP = "promised"
CHANGES = ("off", "full", "evict", "cordon")
SIMULATOR = {"provision_seconds": [0.5, 4.0], "schedule_retry": 5, "strict_local_retry": 5, "resync_period": 5}
_NODES = 6
_PODS = 20
_NODE_SIZE = 400
_POD_SIZE = 100
_GIBIBYTE = 2**30
_BURSTS = 10


@dataclass(frozen=True, slots=True)
class Round:
    """What happened in one burst."""

    change: str
    other_nodes: bool
    overfull: int  # placements that left a disk with more than Longhorn allows
    displaced: int  # volumes of pods on nodes that nothing happened to, which were placed elsewhere
    # Of both, those with an allowed and unpromised place at that moment; on their pod's node if they were to be local.
    avoidable: int
    over: float  # Gi that were too many, each disk at its worst


class _Objects:
    """The cluster as watches deliver it, and the placements that took promised space."""

    def __init__(self, percentage: int, changed_node: str) -> None:
        self._percentage = percentage
        self._changed_node = changed_node
        self._lock = threading.Lock()
        self._kinds: dict[str, dict[str, Object]] = {}
        self.overfull: list[bool] = []
        self.displaced: list[bool] = []

    def note(self, kind: str, raw: Object, _at: float) -> None:
        with self._lock:
            name = name_of(raw)
            objects = self._kinds.setdefault(raw["kind"], {})
            if kind == "DELETED":
                objects.pop(name, None)
                return
            before = objects.get(name)
            objects[name] = raw
            if raw["kind"] == "Replica" and raw["spec"].get("diskID") and not (before or raw)["spec"].get("diskID"):
                self._judge(raw["spec"])

    def _judge(self, spec: Object) -> None:
        node = spec["nodeID"]
        home = self._homes().get(spec["volumeName"], "")
        over = self._load()[spec["diskID"]] > self._limits()[node][spec["diskID"]]
        displaced = home not in {"", self._changed_node, node}
        if over or displaced:
            # A volume that was to be local had a place if its own node had one.
            could = self._has_unpromised_place(spec, [home] if displaced or home == node else self._limits())
            (self.overfull if over else self.displaced).append(could)

    def _homes(self) -> dict[str, str]:
        volumes = {
            raw["spec"]["claimRef"]["name"]: name
            for name, raw in self._kinds.get("PersistentVolume", {}).items()
            if raw["spec"].get("claimRef")
        }
        homes: dict[str, str] = {}
        for name, raw in self._kinds.get("PersistentVolumeClaim", {}).items():
            homes[volumes.get(name, f"pvc-{raw['metadata']['uid']}")] = selected_node(raw)
        return homes

    def _load(self) -> dict[str, int]:
        load: dict[str, int] = {}
        for raw in self._kinds.get("Replica", {}).values():
            disk = raw["spec"].get("diskID", "")
            load[disk] = load.get(disk, 0) + int(raw["spec"]["volumeSize"])
        return load

    def _limits(self) -> dict[str, dict[str, int]]:
        """The bytes that each disk of each node may be promised."""
        return {
            name: {
                status["diskUUID"]: status.get("storageMaximum", 0) * self._percentage // 100
                for status in disk_statuses(raw).values()
            }
            for name, raw in self._kinds["Node"].items()
        }

    def _has_unpromised_place(self, spec: Object, nodes: Iterable[str]) -> bool:
        """Whether an open disk of a node had space for the replica, with all that was promised on the node still fitting."""
        size = int(spec["volumeSize"])
        load = self._load()
        load[spec["diskID"]] -= size
        homes = self._homes()
        placed = {(raw["spec"]["volumeName"], raw["spec"].get("nodeID", "")) for raw in self._kinds["Replica"].values()}
        sizes = {raw["spec"]["volumeName"]: int(raw["spec"]["volumeSize"]) for raw in self._kinds["Replica"].values()}
        for name in nodes:
            disks = self._limits()[name]
            if name == self._changed_node:
                continue
            promised = [
                sizes.get(volume, 0)
                for volume, home in homes.items()
                if home == name and (volume, name) not in placed and volume != spec["volumeName"]
            ]
            free = [limit - load.get(disk, 0) for disk, limit in disks.items()]
            for index, space in enumerate(free):
                if space >= size and fit(
                    [(each, False) for each in promised],
                    [(each, False) for each in (*free[:index], space - size, *free[index + 1 :])],
                ):
                    return True
        return False


def report(folder: Path, options: Options) -> Part:
    """Runs so many bursts with each change, with steering to other nodes and without."""
    rounds: list[Round] = []
    rows = []
    with Rig(folder, simulator=SIMULATOR) as rig:
        for other_nodes in (False, True):
            rig.change_settings({GUARD_OTHER_NODES: str(other_nodes).lower()})
            for change in CHANGES:
                own = []
                for seed in range(1, (options.repetitions or _BURSTS) + 1):
                    own.append(_run_once(rig, change, seed, other_nodes=other_nodes))
                    print(f"promised space: {own[-1]}", file=sys.stderr)
                rounds += own
                rows.append(_row(change, "yes" if other_nodes else "no", own))
    avoidable = sum(each.avoidable for each in rounds if each.other_nodes)
    wrong = [f"promised space: {avoidable} times it was taken though another place was free"] if avoidable else []
    return Part(wrong, [asdict(each) for each in rounds], [draw(rows)])


def _run_once(rig: Rig, change: str, seed: int, *, other_nodes: bool) -> Round:
    chance = random.Random(f"{change} {seed}")  # noqa: S311 # repeatable, not secret
    group = f"{APP}-{change}-{seed}-{int(other_nodes)}"
    layouts = [[f"{_NODE_SIZE}Gi"], [f"{_NODE_SIZE // 2}Gi"] * 2]
    disks = {f"{group}-{number}": chance.choice(layouts) for number in range(_NODES)}
    rig.add_nodes(group, disks)
    objects = [entry for number in range(_PODS) for entry in _pod(group, number, chance)]
    changed = chance.choice(list(disks))
    watched = _Objects(rig.over_provisioning(), changed)

    @contextmanager
    def close_disk() -> Iterator[None]:
        time.sleep(chance.uniform(0.2, 1.5))
        _change(rig, change, changed, disks[changed])
        yield

    with ExitStack() as stack:
        for resource, namespace in (
            (LONGHORN_NODES, NAMESPACE), (LONGHORN_REPLICAS, NAMESPACE), (PERSISTENT_VOLUMES, ""), (CLAIMS, "default"),
        ):  # fmt: skip
            stack.enter_context(ObjectWatch(rig.cluster, resource.path(namespace), watched.note))
        audit, _ = stack.enter_context(settled_burst(rig, APP, objects, disks, close_disk))
        over = audit.bytes_overbooked / _GIBIBYTE
        avoidable = sum(watched.overfull) + sum(watched.displaced)
        return Round(change, other_nodes, len(watched.overfull), len(watched.displaced), avoidable, over)


def _pod(group: str, number: int, chance: random.Random) -> list[Object]:
    cuts = sorted(chance.sample(range(10, _POD_SIZE, 10), chance.choice((0, 1, 2))))
    sizes = [end - start for start, end in zip([0, *cuts], [*cuts, _POD_SIZE], strict=True)]
    return Workload(app=APP, group=group, volumes=[Volume(f"{size}Gi") for size in sizes]).loose(number)


def _change(rig: Rig, change: str, node: str, disks: Sequence[str]) -> None:
    path = LONGHORN_NODES.path(NAMESPACE, node)
    name = next(iter(rig.cluster.api.get(path)["spec"]["disks"]))
    if change == "cordon":
        rig.cluster.api.patch(NODES.path(name=node), {"spec": {"unschedulable": True}})
    elif change == "full":
        layout = [{"name": f"disk-{number}", "size": size} for number, size in enumerate(disks, start=1)]
        layout[0]["used"] = disks[0]
        rig.cluster.api.patch(NODES.path(name=node), {"metadata": {"annotations": {DISKS: json.dumps(layout)}}})
    else:
        closed = {"allowScheduling": False, "evictionRequested": change == "evict"}
        rig.cluster.api.patch(path, {"spec": {"disks": {name: closed}}})


def _row(change: str, other_nodes: str, rounds: Sequence[Round]) -> dict[str, object]:
    return {
        "a disk in a burst": change,
        "other nodes": other_nodes,
        "rounds": len(rounds),
        "overfull": sum(each.overfull for each in rounds),
        "Gi over": f"{sum(each.over for each in rounds):g}",
        "displaced elsewhere": sum(each.displaced for each in rounds),
        "avoidable": sum(each.avoidable for each in rounds),
    }
