"""Random small clusters in which a pod waits, and its remedies.

Remedies are applied as an administrator would: their kubectl commands change
the objects, and then the controllers of Longhorn and Kubernetes write what follows from that.
"""

import copy
import json
import random
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from hypothesis import strategies as st

from app.schemas.remedies_answer import step_commands
from scheduler_core.longhorn.node_controller import ROUNDING, schedulable_condition
from scheduler_core.model import kube
from scheduler_core.predict.pod_decision import PodDecider
from scheduler_core.predict.predicted_cluster import PredictedCluster, with_schedulable_condition
from scheduler_core.predict.predicted_replicas import DiskPlace
from scheduler_core.predict.remedies import find_remedies
from scheduler_core.predict.remedy import RemedyKind, Step
from scheduler_core.structs import replace
from tests.builders import Object, claim, condition, disk, kube_node, longhorn_node, pod, setting, storage_class
from tests.worlds.predicted_clusters import OPTIONS, running, situation

NAMESPACE = "longhorn-system"
POD = ("default", "db")
_LARGEST = 2**52


def cluster_of(objects: Sequence[Object]) -> PredictedCluster:
    """The cluster of some objects, with current conditions. Longhorn's node controller has written those of nodes and disks."""
    cluster = situation(*objects).cluster
    for node in [*cluster.snapshot.longhorn_nodes.values()]:
        others = tuple(entry for entry in node.conditions if entry.type != "Schedulable")
        conditions = (*others, schedulable_condition(cluster.state.view.cluster, node))
        disks = tuple(with_schedulable_condition(cluster, each) for each in node.disks)
        cluster = cluster.update({("longhorn_nodes", node.name): replace(node, conditions=conditions, disks=disks)})
    return cluster


def write_conditions(objects: Sequence[Object]) -> None:
    """Writes conditions of nodes and disks, as Longhorn's node controller does."""
    read = [each for each in objects if each["kind"] in ("Node", "Setting")]
    for node in cluster_of(read).snapshot.longhorn_nodes.values():
        status = object_of(objects, "longhorn.io/v1beta2", "Node", node.name)["status"]
        _write_schedulable(status, node.conditions)
        for each in node.disks:
            _write_schedulable(status["diskStatus"][each.name], each.conditions)


def _write_schedulable(status: Object, conditions: tuple[kube.Condition, ...]) -> None:
    others = [entry for entry in status["conditions"] if entry["type"] != "Schedulable"]
    written = kube.condition(conditions, "Schedulable")
    status["conditions"] = [*others, condition("Schedulable", written.status, written.reason)]


def waiting(cluster: PredictedCluster) -> kube.Pod:
    return cluster.snapshot.pods[POD]


def fits(objects: Sequence[Object]) -> bool:
    cluster = cluster_of(objects)
    return bool(PodDecider(OPTIONS).decide(waiting(cluster), cluster, lambda _: 0).node)


def after(objects: Sequence[Object], cluster: PredictedCluster, steps: Sequence[Step]) -> list[Object]:
    """The objects of a cluster after the steps of a remedy without moves."""
    changed = copy.deepcopy([*objects])
    for step in steps:
        for command in step_commands(cluster, step, NAMESPACE):
            run_command(changed, command)
        if step.kind in (RemedyKind.FREE_SCHEDULED, RemedyKind.FREE_AVAILABLE, RemedyKind.GROW_DISK):
            add_space(changed, step)
    return changed


def run_command(objects: list[Object], command: Sequence[str]) -> None:
    """Changes the objects as kubectl would. The taint of an uncordoned node changes as its controller would."""
    match command:
        case ("kubectl", "uncordon", name):
            node = object_of(objects, "v1", "Node", name)
            node["spec"] = {
                "taints": [taint for taint in node["spec"]["taints"] if "unschedulable" not in taint["key"]]
            }
        case ("kubectl", "-n", "longhorn-system", "patch", "nodes.longhorn.io", name, "--type=merge", "-p", body):
            merge_patch(object_of(objects, "longhorn.io/v1beta2", "Node", name), json.loads(body))
        case ("kubectl", "-n", "longhorn-system", "patch", "settings.longhorn.io", name, "--type=merge", "-p", body):
            # Longhorn has each of its settings; a snapshot may leave out those with default values.
            objects[:] = [each for each in objects if (each["kind"], each["metadata"]["name"]) != ("Setting", name)]
            objects.append(setting(name, json.loads(body)["value"]))
        case _:
            raise AssertionError(shlex.join(command))


def merge_patch(target: Object, patch: Object) -> None:
    """Applies a JSON merge patch (RFC 7396)."""
    for key, value in patch.items():
        if isinstance(value, dict):
            merge_patch(target.setdefault(key, {}), value)
        elif value is None:
            target.pop(key, None)
        else:
            target[key] = value


def object_of(objects: Sequence[Object], version: str, kind: str, name: str) -> Any:
    """The object of a kind and name."""
    return next(
        each
        for each in objects
        if (each["apiVersion"], each["kind"], each["metadata"]["name"]) == (version, kind, name)
    )


def add_space(objects: list[Object], step: Step) -> None:
    """Changes a disk's status by bytes that are freed or added. It is as Longhorn would measure it."""
    status = object_of(objects, "longhorn.io/v1beta2", "Node", step.node)["status"]["diskStatus"][step.disk]
    if step.kind is RemedyKind.FREE_SCHEDULED:
        status["storageScheduled"] -= step.size
        return
    if step.kind is RemedyKind.GROW_DISK:
        status["storageMaximum"] += step.size
    status["storageAvailable"] += step.size
    status["storageAvailable"] -= status["storageAvailable"] % ROUNDING


def after_move(objects: Sequence[Object], step: Step, target: DiskPlace) -> list[Object]:
    """The objects after a replica was moved to a disk."""
    assert step.move is not None
    changed = copy.deepcopy([*objects])
    replica = object_of(changed, "longhorn.io/v1beta2", "Replica", step.move.replica)
    for place, sign in ((step.move.origin, -1), (target, 1)):
        status = object_of(changed, "longhorn.io/v1beta2", "Node", place.node)["status"]["diskStatus"][place.disk]
        status["storageScheduled"] += sign * step.move.size
        status["storageAvailable"] -= sign * step.move.copied_bytes
        status["storageAvailable"] -= status["storageAvailable"] % ROUNDING
        if sign < 0:
            del status["scheduledReplica"][step.move.replica]
        else:
            status["scheduledReplica"]["moved"] = step.move.size
            replica["metadata"]["name"] = "moved"
            replica["spec"] |= {"nodeID": place.node, "diskID": status["diskUUID"]}
    return changed


def every_step(cluster: PredictedCluster, size: int | None) -> Iterator[Step]:
    """Every step of the offered kinds on every node and disk. `size` bytes of space, or as many as there are."""
    # A persistent map has another order each time, and the same choices would mean other steps.
    for _, node in sorted(cluster.snapshot.longhorn_nodes.items()):
        if cluster.snapshot.nodes[node.name].unschedulable:
            yield Step(RemedyKind.UNCORDON, node.name)
        yield Step(RemedyKind.ALLOW_NODE, node.name)
        yield Step(RemedyKind.TAG_NODE, node.name, tags=("storage",))
        for each in node.disks:
            yield Step(RemedyKind.ALLOW_DISK, node.name, each.name)
            yield Step(RemedyKind.TAG_DISK, node.name, each.name, tags=("ssd",))
            most = {
                RemedyKind.LOWER_RESERVE: each.storage_reserved,
                RemedyKind.FREE_SCHEDULED: each.storage_scheduled,
                RemedyKind.FREE_AVAILABLE: each.storage_maximum - each.storage_available,
                RemedyKind.GROW_DISK: _LARGEST,
            }
            for kind, bound in most.items():
                amount = bound if size is None else min(size, bound)
                if amount > 0:
                    yield Step(kind, node.name, each.name, amount)


@dataclass(frozen=True)
class World:
    """The objects of a cluster in which a pod waits."""

    objects: list[Object]

    @cached_property
    def cluster(self) -> PredictedCluster:
        return cluster_of(self.objects)

    @cached_property
    def _cluster_as_read(self) -> PredictedCluster:
        return situation(*self.objects).cluster

    @cached_property
    def fits(self) -> bool:
        return fits(self.objects)

    @cached_property
    def remedies(self) -> tuple[Step, ...]:
        return self.find(20)

    def find(self, limit: int) -> tuple[Step, ...]:
        return find_remedies(waiting(self.cluster), self.cluster, OPTIONS, limit).remedies

    def fits_after(self, *steps: Step) -> bool:
        """Whether the pod fits after steps without moves."""
        return fits(after(self.objects, self._cluster_as_read, steps))

    def works(self, remedy: Step) -> bool:
        """Whether the pod fits after a remedy, for every move's target. Longhorn may put a moved replica anywhere."""
        if remedy.move is None:
            return self.fits_after(remedy)
        return all(fits(after_move(self.objects, remedy, target)) for target in remedy.move.targets)


def worlds(*, elsewhere: float = 0.2) -> st.SearchStrategy[World]:
    return st.integers(0, 2**32).map(lambda seed: draw_world(random.Random(seed), elsewhere))  # noqa: S311


def draw_world(chance: random.Random, elsewhere: float = 0.2) -> World:
    """One to three nodes with one or two disks, and a pod. Any disk may be closed or full, and the pod has one or two
    claims. `elsewhere` is the probability of volumes with replicas that may go to other nodes than the pod.
    """
    names = [f"n{number}" for number in range(chance.randint(1, 3))]
    objects: list[Object] = [
        setting("storage-over-provisioning-percentage", chance.choice(("100", "100", "150", "200"))),
        setting("storage-minimal-available-percentage", chance.choice(("0", "25"))),
        setting("disable-scheduling-on-cordoned-node", chance.choice(("true", "true", "false"))),
    ]
    listed: dict[str, dict[str, float]] = {name: {} for name in names}
    objects += _running_pods(chance, names, listed)
    for name in names:
        objects += _node(chance, name, listed[name])
    selectors: dict[str, Any] = {}
    if chance.random() < 0.4:
        selectors["diskSelector"] = "ssd"
    if chance.random() < 0.3:
        selectors["nodeSelector"] = "storage"
    replicas = "1"
    if chance.random() < elsewhere:
        selectors["dataLocality"] = chance.choice(("disabled", "best-effort"))
        replicas = chance.choice(("1", "2"))
        objects.append(setting("allow-volume-creation-with-degraded-availability", chance.choice(("true", "false"))))
    objects.append(storage_class("selective", numberOfReplicas=replicas, **selectors))
    claims = [f"claim-{number}" for number in range(chance.randint(1, 2))]
    classes = [chance.choice(("selective", "longhorn")) for _ in claims]
    objects += [
        claim(name, chance.choice((10, 25, 40)), storage_class=kind) for name, kind in zip(claims, classes, strict=True)
    ]
    objects.append(pod(*claims, name="db", uid="uid-db"))
    if chance.random() < 0.3:
        # Another pod is decided, and its volume takes space that no status shows yet.
        other = claim("other", chance.choice((10, 25, 40)))
        other["metadata"]["annotations"] = {"volume.kubernetes.io/selected-node": chance.choice(names)}
        objects += [other, pod("other", name="other", uid="uid-other")]
    return World(objects)


def full_worlds() -> st.SearchStrategy[World]:
    return st.integers(0, 2**32).map(lambda seed: draw_full_world(random.Random(seed)))  # noqa: S311


def draw_full_world(chance: random.Random) -> World:
    """Two or three nodes with full disks, and a waiting pod. Each has one open disk, full of the replicas of running
    pods. The pod has one claim.
    """
    names = [f"n{number}" for number in range(chance.randint(2, 3))]
    listed: dict[str, dict[str, float]] = {name: {} for name in names}
    objects: list[Object] = [storage_class("alone"), setting("storage-minimal-available-percentage", "0")]
    for _ in range(2):
        objects += _running_pods(chance, names, listed, first=len(objects))
    for name in names:
        used = sum(listed[name].values())
        size = used + chance.choice((0, 5, 10, 20, 30))
        raw_disk = disk(size, available=size - used, listed=listed[name])
        objects += [kube_node(name), longhorn_node(name, {"disk-1": raw_disk})]
    objects += [claim("claim-0", chance.choice((25, 35)), storage_class="alone")]
    return World([*objects, pod("claim-0", name="db", uid="uid-db")])


def _running_pods(
    chance: random.Random, names: list[str], listed: dict[str, dict[str, float]], *, first: int = 0
) -> Iterator[Object]:
    for number in range(first, first + chance.randint(0, 3)):
        size = chance.choice((10, 20, 30))
        places = chance.sample(names, min(len(names), chance.randint(1, 2)))
        for place in places:
            listed[place][f"app-{number}-{place}"] = size
        yield from running(f"app-{number}", places[0], size, replicas=places, locality="disabled")


def _node(chance: random.Random, name: str, listed: dict[str, float]) -> list[Object]:
    raw = kube_node(name)
    cordoned = chance.random() < 0.25
    if cordoned:
        taint = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}
        raw["spec"] = {"unschedulable": True, "taints": [taint]}
    first = _disk(chance, listed)
    disks = {"disk-1": first}
    if chance.random() < 0.5:
        disks["disk-2"] = _disk(chance, {})
    node = longhorn_node(
        name,
        disks,
        allow=chance.random() > 0.15,
        evict=chance.random() < 0.05,
        tags=("storage",) if chance.random() < 0.6 else (),
    )
    return [raw, node]


def _disk(chance: random.Random, listed: dict[str, float]) -> Object:
    used = sum(listed.values())
    size = chance.choice((60, 100)) + used
    return disk(
        size,
        available=size - used - chance.choice((0, 0, 20, 50)),
        reserved=chance.choice((0, 0, 10, 30)),
        scheduled=chance.choice((0, 30, 55, 90)),
        listed=listed,
        tags=("ssd",) if chance.random() < 0.6 else (),
        allow=chance.random() > 0.2,
    )
