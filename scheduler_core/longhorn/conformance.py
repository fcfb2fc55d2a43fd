"""The questions of recorded decisions, each answered by one function of the engine.

Data flow: `schedule.op` of a recorded line selects a `RecordedQuestion`. Its `answer` puts the question to the engine,
its `read_answers` turns Longhorn's recorded decision into the same form, and `vectors` compares the two.
`describe_rules` names the rules that decided, for the report of a mismatch.

A scenario is read as a `Cluster`. It holds objects in Kubernetes' own form, and the recorder's short forms of engine images and instance
managers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from msgspec import Struct

from scheduler_core.convert.snapshot_kinds import KINDS, LONGHORN_GROUP, build_snapshot
from scheduler_core.longhorn.cluster import Cluster, parse_time
from scheduler_core.longhorn.csi_driver import CapacityError, get_capacity
from scheduler_core.longhorn.new_volume_placement import create_volume, explain
from scheduler_core.longhorn.node_status import CollectedDisk, ManagerPod, schedulable_condition, sync_node
from scheduler_core.longhorn.placement import Choice, Reasons, find_candidates, schedule_replica
from scheduler_core.longhorn.replenish import replenishments, replica_to_reuse, wait_before_new_replica
from scheduler_core.longhorn.replica_request import ReplicaRequest
from scheduler_core.longhorn.settings import Settings
from scheduler_core.longhorn.space import disk_space, fits_without_pressure, space_refusal, under_pressure
from scheduler_core.longhorn.volume_validation import check_expansion
from scheduler_core.model import longhorn
from scheduler_core.model.kube import Condition, condition
from scheduler_core.model.longhorn import Disk, Replica, Volume
from scheduler_core.model.snapshot import Snapshot
from scheduler_core.values import replace

Json = Mapping[str, Any]

NOW: Final = datetime(2026, 1, 1, tzinfo=UTC)
ENGINE_IMAGE: Final = "oracle/engine:1"
INSTANCE_MANAGER_IMAGE: Final = "oracle/instance-manager:1"
_LONGHORN_LISTS: Final = {"nodes": "Node", "volumes": "Volume", "replicas": "Replica", "backingImages": "BackingImage"}
_IMAGES: Final = {"default-engine-image": ENGINE_IMAGE, "default-instance-manager-image": INSTANCE_MANAGER_IMAGE}


def read_cluster(scenario: Json) -> Cluster:
    """The cluster of a scenario. Settings that do not parse are kept as faults."""
    values = {**_IMAGES, **scenario.get("settings", {})}
    snapshot = replace(
        _snapshot(scenario),
        settings=values,
        engine_images=_engine_images(scenario.get("engineImages")),
        instance_managers=_instance_managers(scenario.get("instanceManagers")),
    )
    now = parse_time(scenario.get("now", "")) or NOW
    cluster = Cluster.of(snapshot, now, Settings.read(values))
    if not scenario.get("deriveSchedulable"):
        return cluster
    return cluster.with_nodes(_derive_schedulable(cluster, node) for node in cluster.nodes.values())


def _snapshot(scenario: Json) -> Snapshot:
    objects = [
        (KINDS[LONGHORN_GROUP, kind], entry)
        for field, kind in _LONGHORN_LISTS.items()
        for entry in scenario.get(field, ())
    ]
    kube_nodes = scenario.get("kubeNodes")
    if kube_nodes is None:
        kube_nodes = [{"metadata": {"name": entry["metadata"]["name"]}} for entry in scenario["nodes"]]
    snapshot = build_snapshot([*objects, *((KINDS["", "Node"], entry) for entry in kube_nodes)])
    return replace(snapshot, replicas=_with_zero_values(snapshot.replicas, scenario.get("replicas", ())))


def _with_zero_values(replicas: Mapping[str, longhorn.Replica], raw: Iterable[Json]) -> dict[str, longhorn.Replica]:
    """Replicas as recorded: an absent spec.active is false."""
    active = {entry["metadata"]["name"]: bool(entry.get("spec", {}).get("active")) for entry in raw}
    return {name: replace(replica, active=active[name]) for name, replica in replicas.items()}


def _engine_images(entries: Iterable[Json] | None) -> dict[str, longhorn.EngineImage] | None:
    if entries is None:
        return None
    images = [
        longhorn.EngineImage(f"ei-{index}", entry["image"], entry["state"], frozenset(entry.get("nodes") or ()))
        for index, entry in enumerate(entries)
    ]
    return {image.name: image for image in images}


def _instance_managers(entries: Iterable[Json] | None) -> dict[str, longhorn.InstanceManager] | None:
    if entries is None:
        return None
    managers = [
        longhorn.InstanceManager(
            name=f"im-{index}",
            node=entry["node"],
            data_engine=entry["dataEngine"],
            image=entry.get("image") or INSTANCE_MANAGER_IMAGE,
            state=entry["state"],
            deleting=bool(entry.get("deleting")),
        )
        for index, entry in enumerate(entries)
    ]
    return {manager.name: manager for manager in managers}


def _derive_schedulable(cluster: Cluster, node: longhorn.Node) -> longhorn.Node:
    other_conditions = tuple(entry for entry in node.conditions if entry.type != "Schedulable")
    return replace(node, conditions=(schedulable_condition(cluster, node), *other_conditions))


Answer = tuple[object, ...]
Answers = dict[Answer, bool]


class RecordedQuestion(Struct, frozen=True):
    """How to answer one kind of recorded question."""

    answer: Callable[[Cluster, Json], Answers]  # every possible answer of the engine, and whether it depends on chance
    read_answers: Callable[[Json], Iterable[Answer]]  # the recorded answers, in the engine's form
    describe_rules: Callable[[Cluster, Json], str]  # the rules that decided, as one line


def _volume(cluster: Cluster, vector: Json) -> Volume:
    return cluster.snapshot.volumes[vector["schedule"]["volume"]]


def _replicas(cluster: Cluster, vector: Json) -> tuple[Replica, ...]:
    return cluster.replicas_of(vector["schedule"]["volume"])


def _request(cluster: Cluster, vector: Json) -> ReplicaRequest:
    schedule = vector["schedule"]
    volume = _volume(cluster, vector)
    if "replica" in schedule:
        return ReplicaRequest.for_replica(volume, cluster.snapshot.replicas[schedule["replica"]])
    return ReplicaRequest.for_volume(volume, schedule.get("hardNodeAffinity", ""))


def _describe_placement(cluster: Cluster, vector: Json) -> str:
    explanation = explain(cluster, _request(cluster, vector), _replicas(cluster, vector))
    words = [explanation.refusal.rule.name] if explanation.refusal else []
    for entry in explanation.nodes:
        verdict = entry.refusal.rule.name if entry.refusal else entry.tier.name if entry.tier else "open"
        words.append(f"{entry.node.name}: {verdict}")
        words += [
            f"{entry.node.name}/{disk.disk.name}: {disk.refusal.rule.name if disk.refusal else 'open'}"
            for disk in entry.disks
        ]
    return ", ".join(words)


def _describe_schedule(_cluster: Cluster, vector: Json) -> str:
    return str(vector["schedule"])


def _answer_candidates(cluster: Cluster, vector: Json) -> Answers:
    candidates = find_candidates(cluster, _request(cluster, vector), _replicas(cluster, vector))
    disks = tuple(sorted((each.node.name, each.disk.name, each.disk.uuid) for each in candidates.disks))
    cordons = [(name, condition(node.conditions, "Schedulable").status) for name, node in cluster.nodes.items()]
    return {(disks, _texts(candidates.reasons), tuple(cordons) if vector.get("deriveSchedulable") else ()): False}


def _read_candidates(decision: Json) -> Iterable[Answer]:
    result = decision["result"]
    cordons = sorted((name, entry["status"]) for name, entry in result.get("nodeSchedulable", {}).items())
    return [
        (
            tuple(sorted((each["node"], each["disk"], each["diskUUID"]) for each in outcome["candidates"])),
            frozenset(outcome["reasons"]),
            tuple(cordons),
        )
        for outcome in result.get("outcomes", [{**result, "reasons": decision["errors"]}])
    ]


def _texts(reasons: Reasons) -> frozenset[str]:
    return frozenset(str(reason) for reason in reasons)


def _answer_schedule(cluster: Cluster, vector: Json) -> Answers:
    replica = cluster.snapshot.replicas[vector["schedule"]["replica"]]
    placement = schedule_replica(cluster, _volume(cluster, vector), replica, _replicas(cluster, vector))
    if not placement.choices:
        return {(None, _texts(placement.reasons)): False}
    return {(_place(choice), frozenset[str]()): choice.reason.chance for choice in placement.choices}


def _place(choice: Choice) -> Answer:
    disk = choice.candidate.disk
    return choice.candidate.node.name, disk.name, disk.uuid, disk.path


def _read_schedule(decision: Json) -> Iterable[Answer]:
    keys = ("node", "disk", "diskUUID", "diskPath")
    outcomes = decision["result"]["outcomes"]
    places = (tuple(outcome[key] for key in keys) if outcome["scheduled"] else None for outcome in outcomes)
    return [(place, frozenset(decision["errors"])) for place in places]


def _answer_disk(cluster: Cluster, vector: Json) -> Answers:
    schedule = vector["schedule"]
    settings = cluster.settings
    disk = _disk(cluster, vector)
    size = schedule.get("size", 0)
    required = schedule.get("required", 0)
    space = disk_space(disk, settings)
    answer = (
        space_refusal(size, required, space) is None,
        space_refusal(0, 0, space) is None,
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


def _describe_disk(cluster: Cluster, vector: Json) -> str:
    schedule = vector["schedule"]
    space = disk_space(_disk(cluster, vector), cluster.settings)
    return f"{space_refusal(schedule.get('size', 0), schedule.get('required', 0), space)}, {space}"


def _answer_capacity(cluster: Cluster, vector: Json) -> Answers:
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


def _answer_node_status(cluster: Cluster, vector: Json) -> Answers:
    schedule = vector["schedule"]
    name = schedule["node"]
    collected = schedule.get("collected")
    pods = [ManagerPod(pod["ready"], pod["phase"]) for pod in _manager_pods(vector, name)]
    disks_by_name = None if collected is None else {disk: _collected_disk(entry) for disk, entry in collected.items()}
    node = sync_node(cluster, cluster.nodes[name], pods, disks_by_name)
    disks = frozenset(_synced_disk(disk) for disk in node.disks if disk.in_status)
    verdicts = (_verdict(condition(node.conditions, kind)) for kind in ("Ready", "Schedulable"))
    return {(*verdicts, node.zone, node.region, disks): False}


def _manager_pods(vector: Json, node: str) -> Sequence[Json]:
    ready = {"node": node, "ready": True, "phase": "Running"}
    return [pod for pod in vector.get("managerPods", [ready]) if pod["node"] == node]


def _collected_disk(entry: Json) -> CollectedDisk:
    return CollectedDisk(
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


def _verdict(entry: Condition) -> Answer:
    return entry.status, entry.reason


def _read_node_status(decision: Json) -> Iterable[Answer]:
    result = decision["result"]
    disks = frozenset(_recorded_disk(name, entry) for name, entry in result["disks"].items())
    verdicts = (_recorded_verdict(result[key]) for key in ("ready", "schedulable"))
    return [(*verdicts, result["zone"], result["region"], disks)]


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


def _answer_volume(cluster: Cluster, vector: Json) -> Answers:
    answers: Answers = {}
    for outcome, chance in create_volume(cluster, _volume(cluster, vector)).items():
        scheduled = (outcome.scheduled.status, outcome.scheduled.reason)
        answer = (outcome.placements, outcome.replicas, outcome.unscheduled, scheduled)
        answers[answer] = answers.get(answer, False) or chance
    return answers


def _read_volume(decision: Json) -> Iterable[Answer]:
    return [
        (
            tuple(sorted((node, disk) for node, disk in outcome["placements"])),
            outcome["replicas"],
            outcome["unscheduled"],
            (outcome["scheduled"]["status"] == "True", outcome["scheduled"]["reason"]),
        )
        for outcome in decision["result"]["outcomes"]
    ]


def _answer_replenish(cluster: Cluster, vector: Json) -> Answers:
    answers = replenishments(cluster, _volume(cluster, vector), _replicas(cluster, vector))
    return {(entry.count, entry.hard_node_affinity): len(answers) > 1 for entry in answers}


def _read_replenish(decision: Json) -> Iterable[Answer]:
    return [(entry["count"], entry["hardNodeAffinity"]) for entry in decision["result"]["outcomes"]]


def _answer_reuse(cluster: Cluster, vector: Json) -> Answers:
    affinity = vector["schedule"].get("hardNodeAffinity", "")
    volume = _volume(cluster, vector)
    replicas = _replicas(cluster, vector)
    names = replica_to_reuse(cluster, volume, replicas, affinity) or {""}
    wait = wait_before_new_replica(cluster, volume, replicas, affinity).total_seconds()
    return {(name, wait): len(names) > 1 for name in names}


def _read_reuse(decision: Json) -> Iterable[Answer]:
    return [
        (entry["reused"], float(entry["requireNewReplicaAfterSeconds"])) for entry in decision["result"]["outcomes"]
    ]


def _answer_expand(cluster: Cluster, vector: Json) -> Answers:
    size = vector["schedule"]["newSize"]
    results = check_expansion(cluster, _volume(cluster, vector), _replicas(cluster, vector), size)
    return {(each.allowed, each.reason and str(each.reason)): len(results) > 1 for each in results}


def _read_expand(decision: Json) -> Iterable[Answer]:
    outcomes = decision["result"]["outcomes"]
    return [(outcome["allowed"], next(iter(outcome["reasons"]), None)) for outcome in outcomes]


QUESTIONS: Final[dict[Any, RecordedQuestion]] = {
    "candidates": RecordedQuestion(_answer_candidates, _read_candidates, _describe_placement),
    "schedule": RecordedQuestion(_answer_schedule, _read_schedule, _describe_placement),
    "disk": RecordedQuestion(_answer_disk, _read_disk, _describe_disk),
    "capacity": RecordedQuestion(_answer_capacity, _read_capacity, _describe_schedule),
    "nodestatus": RecordedQuestion(_answer_node_status, _read_node_status, _describe_schedule),
    "volume": RecordedQuestion(_answer_volume, _read_volume, _describe_placement),
    "replenish": RecordedQuestion(_answer_replenish, _read_replenish, _describe_placement),
    "reuse": RecordedQuestion(_answer_reuse, _read_reuse, _describe_placement),
    "expand": RecordedQuestion(_answer_expand, _read_expand, _describe_schedule),
}
