"""The questions recorded decisions ask, each answered by one function of the engine.

`ask` answers with every possible outcome and whether it depends on chance, `read` turns what was recorded into the same
form, and `decided` names the rules, for whoever looks at a mismatch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from scheduler_core.longhorn.capacity import CapacityError, get_capacity
from scheduler_core.longhorn.cluster import Cluster
from scheduler_core.longhorn.conformance.scenario import Json, node_schedulable
from scheduler_core.longhorn.disk_choice import Choice
from scheduler_core.longhorn.explain import explain
from scheduler_core.longhorn.new_volume import create_volume
from scheduler_core.longhorn.node_status import Collected, ManagerPod, synced_node
from scheduler_core.longhorn.placement import Reasons, find_candidates, schedule_replica
from scheduler_core.longhorn.replenish import replenishments
from scheduler_core.longhorn.replica_request import Ask
from scheduler_core.longhorn.replica_reuse import reused, wait_before_new_replica
from scheduler_core.longhorn.space import fits_without_pressure, room, space_refusal, under_pressure
from scheduler_core.longhorn.volume_expansion import expansions
from scheduler_core.model.kube import Condition, condition
from scheduler_core.model.longhorn import Disk, Replica, Volume

Answer = tuple[object, ...]
Answers = dict[Answer, bool]


@dataclass(frozen=True, slots=True)
class Question:
    """How a question is put to the engine, how its recorded answer is read, and which rules decided."""

    ask: Callable[[Cluster, Json], Answers]
    read: Callable[[Json], Iterable[Answer]]
    decided: Callable[[Cluster, Json], str]


def _volume(cluster: Cluster, vector: Json) -> Volume:
    return cluster.snapshot.volumes[vector["schedule"]["volume"]]


def _replicas(cluster: Cluster, vector: Json) -> tuple[Replica, ...]:
    return cluster.replicas_of(vector["schedule"]["volume"])


def _ask_of(cluster: Cluster, vector: Json) -> Ask:
    schedule = vector["schedule"]
    volume = _volume(cluster, vector)
    if "replica" in schedule:
        return Ask.of(volume, cluster.snapshot.replicas[schedule["replica"]])
    return Ask.fresh(volume, schedule.get("hardNodeAffinity", ""))


def _placement_rules(cluster: Cluster, vector: Json) -> str:
    """Every refusal of the placement, in one line."""
    found = explain(cluster, _ask_of(cluster, vector), _replicas(cluster, vector))
    words = [found.refusal.rule.name] if found.refusal else []
    for entry in found.nodes:
        verdict = entry.refusal.rule.name if entry.refusal else entry.tier.name if entry.tier else "open"
        words.append(f"{entry.node.name}: {verdict}")
        words += [
            f"{entry.node.name}/{disk.disk.name}: {disk.refusal.rule.name if disk.refusal else 'open'}"
            for disk in entry.disks
        ]
    return ", ".join(words)


def _no_rules(_cluster: Cluster, vector: Json) -> str:
    return str(vector["schedule"])


def _ask_candidates(cluster: Cluster, vector: Json) -> Answers:
    found = find_candidates(cluster, _ask_of(cluster, vector), _replicas(cluster, vector))
    disks = tuple(sorted((each.node.name, each.disk.name, each.disk.uuid) for each in found.disks))
    cordons = [(name, node_schedulable(node)) for name, node in cluster.nodes.items()]
    return {(disks, _texts(found.reasons), tuple(cordons) if vector.get("deriveSchedulable") else ()): False}


def _read_candidates(decision: Json) -> Iterable[Answer]:
    result = decision["result"]
    cordons = sorted((name, entry["status"]) for name, entry in result.get("nodeSchedulable", {}).items())
    for outcome in result.get("outcomes", [{**result, "reasons": decision["errors"]}]):
        disks = sorted((each["node"], each["disk"], each["diskUUID"]) for each in outcome["candidates"])
        yield tuple(disks), frozenset(outcome["reasons"]), tuple(cordons)


def _texts(reasons: Reasons) -> frozenset[str]:
    return frozenset(str(reason) for reason in reasons)


def _ask_schedule(cluster: Cluster, vector: Json) -> Answers:
    replica = cluster.snapshot.replicas[vector["schedule"]["replica"]]
    found = schedule_replica(cluster, _volume(cluster, vector), replica, _replicas(cluster, vector))
    if not found.choices:
        return {(None, _texts(found.reasons)): False}
    return {(_place(choice), frozenset[str]()): choice.why.chance for choice in found.choices}


def _place(choice: Choice) -> Answer:
    node, disk = choice.candidate.node, choice.candidate.disk
    return node.name, disk.name, disk.uuid, disk.path


def _read_schedule(decision: Json) -> Iterable[Answer]:
    for outcome in decision["result"]["outcomes"]:
        keys = ("node", "disk", "diskUUID", "diskPath")
        place = tuple(outcome[key] for key in keys) if outcome["scheduled"] else None
        yield place, frozenset(decision["errors"])


def _ask_disk(cluster: Cluster, vector: Json) -> Answers:
    schedule, settings = vector["schedule"], cluster.settings
    disk = _disk(cluster, vector)
    size, required = schedule.get("size", 0), schedule.get("required", 0)
    found = room(disk, settings)
    answer = (
        space_refusal(size, required, found) is None,
        space_refusal(0, 0, found) is None,
        under_pressure(disk, settings.replica_auto_balance_disk_pressure_percentage),
        fits_without_pressure(disk, settings, size, required),
    )
    return {answer: False}


def _disk(cluster: Cluster, vector: Json) -> Disk:
    schedule = vector["schedule"]
    return next(disk for disk in cluster.nodes[schedule["node"]].disks if disk.name == schedule["disk"])


def _read_disk(decision: Json) -> Iterable[Answer]:
    keys = ("schedulable", "conditionSchedulable", "underPressure", "schedulableConsideringPressure")
    return [tuple(decision["result"][key] for key in keys)]


def _disk_rules(cluster: Cluster, vector: Json) -> str:
    schedule, found = vector["schedule"], room(_disk(cluster, vector), cluster.settings)
    return f"{space_refusal(schedule.get('size', 0), schedule.get('required', 0), found)}, {found}"


def _ask_capacity(cluster: Cluster, vector: Json) -> Answers:
    schedule = vector["schedule"]
    try:
        capacity = get_capacity(cluster, schedule["topology"], schedule["parameters"])
    except CapacityError as error:
        return {(_code(str(error)),): False}
    return {(capacity.available, capacity.maximum_volume_size): False}


def _read_capacity(decision: Json) -> Iterable[Answer]:
    if decision["errors"]:
        return [(_code(decision["errors"][0]),)]
    return [(decision["result"]["availableCapacity"], decision["result"]["maximumVolumeSize"])]


def _code(error: str) -> str:
    return error.partition(":")[0]


def _ask_node_status(cluster: Cluster, vector: Json) -> Answers:
    schedule = vector["schedule"]
    name, collected = schedule["node"], schedule.get("collected")
    pods = [ManagerPod(pod["ready"], pod["phase"]) for pod in _pods(vector, name)]
    found = None if collected is None else {disk: _collected(entry) for disk, entry in collected.items()}
    node = synced_node(cluster, cluster.nodes[name], pods, found)
    disks = frozenset(_synced_disk(disk) for disk in node.disks if disk.in_status)
    verdicts = (_verdict(condition(node.conditions, kind)) for kind in ("Ready", "Schedulable"))
    return {(*verdicts, node.zone, node.region, disks): False}


def _pods(vector: Json, node: str) -> Sequence[Json]:
    ready = {"node": node, "ready": True, "phase": "Running"}
    return [pod for pod in vector.get("managerPods", [ready]) if pod["node"] == node]


def _collected(entry: Json) -> Collected:
    return Collected(
        uuid=entry["diskUUID"],
        storage_maximum=entry["storageMaximum"],
        storage_available=entry["storageAvailable"],
        filesystem_type=entry["filesystemType"],
        fsid=entry["fsid"],
        error_reason=entry.get("errorReason", ""),
    )


def _synced_disk(disk: Disk) -> Answer:
    return (
        disk.name,
        _verdict(condition(disk.conditions, "Ready")),
        _verdict(condition(disk.conditions, "Schedulable")),
        (disk.storage_maximum, disk.storage_available, disk.storage_scheduled),
        (disk.status_type, disk.filesystem_type),
        frozenset(disk.scheduled_replicas.items()),
        frozenset(disk.scheduled_backing_images.items()),
    )


def _verdict(found: Condition) -> Answer:
    return found.status, found.reason


def _read_node_status(decision: Json) -> Iterable[Answer]:
    result = decision["result"]
    disks = frozenset(_recorded_disk(name, entry) for name, entry in result["disks"].items())
    verdicts = (_recorded_verdict(result[key]) for key in ("ready", "schedulable"))
    yield (*verdicts, result["zone"], result["region"], disks)


def _recorded_disk(name: str, entry: Json) -> Answer:
    return (
        name,
        _recorded_verdict(entry["ready"]),
        _recorded_verdict(entry["schedulable"]),
        (entry["storageMaximum"], entry["storageAvailable"], entry["storageScheduled"]),
        (entry["diskType"], entry["filesystemType"]),
        frozenset((entry["scheduledReplica"] or {}).items()),
        frozenset((entry["scheduledBackingImage"] or {}).items()),
    )


def _recorded_verdict(entry: Json) -> Answer:
    return entry["status"], entry["reason"]


def _ask_volume(cluster: Cluster, vector: Json) -> Answers:
    answers: Answers = {}
    for outcome, chance in create_volume(cluster, _volume(cluster, vector)).items():
        scheduled = (outcome.scheduled.status, outcome.scheduled.reason)
        answer = (outcome.placements, outcome.replicas, outcome.unscheduled, scheduled)
        answers[answer] = answers.get(answer, False) or chance
    return answers


def _read_volume(decision: Json) -> Iterable[Answer]:
    for outcome in decision["result"]["outcomes"]:
        places = tuple(sorted((node, disk) for node, disk in outcome["placements"]))
        scheduled = (outcome["scheduled"]["status"] == "True", outcome["scheduled"]["reason"])
        yield places, outcome["replicas"], outcome["unscheduled"], scheduled


def _ask_replenish(cluster: Cluster, vector: Json) -> Answers:
    found = replenishments(cluster, _volume(cluster, vector), _replicas(cluster, vector))
    return {(entry.count, entry.hard_node_affinity): len(found) > 1 for entry in found}


def _read_replenish(decision: Json) -> Iterable[Answer]:
    return [(entry["count"], entry["hardNodeAffinity"]) for entry in decision["result"]["outcomes"]]


def _ask_reuse(cluster: Cluster, vector: Json) -> Answers:
    affinity = vector["schedule"].get("hardNodeAffinity", "")
    volume, replicas = _volume(cluster, vector), _replicas(cluster, vector)
    names = reused(cluster, volume, replicas, affinity) or {""}
    wait = wait_before_new_replica(cluster, volume, replicas, affinity).total_seconds()
    return {(name, wait): len(names) > 1 for name in names}


def _read_reuse(decision: Json) -> Iterable[Answer]:
    return [
        (entry["reused"], float(entry["requireNewReplicaAfterSeconds"])) for entry in decision["result"]["outcomes"]
    ]


def _ask_expand(cluster: Cluster, vector: Json) -> Answers:
    size = vector["schedule"]["newSize"]
    found = expansions(cluster, _volume(cluster, vector), _replicas(cluster, vector), size)
    return {(each.allowed, each.reason and str(each.reason)): len(found) > 1 for each in found}


def _read_expand(decision: Json) -> Iterable[Answer]:
    for outcome in decision["result"]["outcomes"]:
        yield outcome["allowed"], next(iter(outcome["reasons"]), None)


QUESTIONS: Final[dict[Any, Question]] = {
    "candidates": Question(_ask_candidates, _read_candidates, _placement_rules),
    "schedule": Question(_ask_schedule, _read_schedule, _placement_rules),
    "disk": Question(_ask_disk, _read_disk, _disk_rules),
    "capacity": Question(_ask_capacity, _read_capacity, _no_rules),
    "nodestatus": Question(_ask_node_status, _read_node_status, _no_rules),
    "volume": Question(_ask_volume, _read_volume, _placement_rules),
    "replenish": Question(_ask_replenish, _read_replenish, _placement_rules),
    "reuse": Question(_ask_reuse, _read_reuse, _placement_rules),
    "expand": Question(_ask_expand, _read_expand, _no_rules),
}
