"""Replays recorded decisions of the real Longhorn: ``python -m scheduler_core.longhorn.vectors FILE.jsonl [...]``.

Every line is a scenario, a question and what Longhorn answered. `schedule.op` selects a `RecordedQuestion`. Its `answer`
puts the question to the engine, its `read_answers` turns Longhorn's recorded decision into the same form. Where
Longhorn's answer depends on chance, the engine's set of possible outcomes must contain everything recorded, and all
other outcomes in it must be due to chance. Where Longhorn's answer was always the same, the sets must be equal. Reasons
are compared as sets; texts for people are not compared.

A scenario is read as a `Cluster`. It holds objects in Kubernetes' own form, and the recorder's short forms of engine images and instance
managers.
"""

import sys
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from operator import attrgetter, itemgetter
from typing import Any, TypeVar

from scheduler_core.convert.decision_replay import InputError, Runner
from scheduler_core.convert.snapshot_kinds import KINDS, LONGHORN_GROUP, build_snapshot
from scheduler_core.longhorn import csi_driver, new_volume_placement, replenish, stages, volume_validation
from scheduler_core.longhorn.cluster import Cluster, parse_time
from scheduler_core.longhorn.node_controller import CollectedDisk, ManagerPod, schedulable_condition, sync_node
from scheduler_core.longhorn.placement import Reasons, find_candidates, schedule_replica
from scheduler_core.longhorn.replica_request import ReplicaRequest
from scheduler_core.longhorn.settings import Settings
from scheduler_core.longhorn.space import disk_space, fits_without_pressure, space_refusal, under_pressure
from scheduler_core.model import kube, longhorn
from scheduler_core.model.longhorn import Disk, Replica, Volume
from scheduler_core.structs import Struct, replace

Json = Mapping[str, Any]
_Short = TypeVar("_Short")

NOW = datetime(2026, 1, 1, tzinfo=UTC)
ENGINE_IMAGE = "oracle/engine:1"
INSTANCE_MANAGER_IMAGE = "oracle/instance-manager:1"
_LONGHORN_LISTS = {"nodes": "Node", "volumes": "Volume", "replicas": "Replica", "backingImages": "BackingImage"}
_MAX_CHARACTERS = 400
_IMAGES = {"default-engine-image": ENGINE_IMAGE, "default-instance-manager-image": INSTANCE_MANAGER_IMAGE}


def read_cluster(scenario: Json) -> Cluster:
    """The cluster of a scenario. Settings that do not parse are kept as faults."""
    values = {**_IMAGES, **scenario.get("settings", {})}
    objects = [
        (KINDS[LONGHORN_GROUP, kind], entry)
        for field, kind in _LONGHORN_LISTS.items()
        for entry in scenario.get(field, ())
    ]
    kube_nodes = scenario.get("kubeNodes")
    if kube_nodes is None:
        kube_nodes = [{"metadata": {"name": entry["metadata"]["name"]}} for entry in scenario["nodes"]]
    snapshot = build_snapshot([*objects, *((KINDS["", "Node"], entry) for entry in kube_nodes)])
    # An absent spec.active is false in a record.
    inactive = {
        raw["metadata"]["name"] for raw in scenario.get("replicas", ()) if not raw.get("spec", {}).get("active")
    }
    snapshot = replace(
        snapshot,
        replicas={name: replace(each, active=name not in inactive) for name, each in snapshot.replicas.items()},
        settings=values,
        engine_images=_by_name(_engine_image, scenario.get("engineImages")),
        instance_managers=_by_name(_instance_manager, scenario.get("instanceManagers")),
    )
    now = parse_time(scenario.get("now", "")) or NOW
    cluster = Cluster.of(snapshot, now, Settings.read(values))
    if not scenario.get("deriveSchedulable"):
        return cluster
    return cluster.with_nodes(
        replace(node, conditions=(schedulable_condition(cluster, node), *node.conditions))
        for node in cluster.nodes.values()
    )


def _by_name(read: Callable[[str, Json], _Short], entries: Iterable[Json] | None) -> dict[str, _Short] | None:
    """The recorder's short forms, which have no names."""
    return None if entries is None else {str(index): read(str(index), entry) for index, entry in enumerate(entries)}


def _engine_image(name: str, entry: Json) -> longhorn.EngineImage:
    return longhorn.EngineImage(name, entry["image"], entry["state"], frozenset(entry.get("nodes") or ()))


def _instance_manager(name: str, entry: Json) -> longhorn.InstanceManager:
    image = entry.get("image") or INSTANCE_MANAGER_IMAGE
    place = (entry["node"], entry["dataEngine"], image)
    return longhorn.InstanceManager(name, *place, entry["state"], deleting=bool(entry.get("deleting")))


Answer = tuple[object, ...]
Answers = dict[Answer, bool]


class RecordedQuestion(Struct, frozen=True):
    """How to answer one kind of recorded question."""

    answer: Callable[[Cluster, Json], Answers]  # every possible answer of the engine, and whether it depends on chance
    read_answers: Callable[[Json], Iterable[Answer]]  # the recorded answers, in the engine's form


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


def _disk(cluster: Cluster, vector: Json) -> Disk:
    schedule = vector["schedule"]
    return next(disk for disk in cluster.nodes[schedule["node"]].disks if disk.name == schedule["disk"])


def _answer_candidates(cluster: Cluster, vector: Json) -> Answers:
    candidates = find_candidates(cluster, _request(cluster, vector), _replicas(cluster, vector))
    disks = tuple(sorted((each.node.name, each.disk.name, each.disk.uuid) for each in candidates.disks))
    cordons = [(name, kube.condition(node.conditions, "Schedulable").status) for name, node in cluster.nodes.items()]
    return {(disks, _texts(candidates.reasons), tuple(cordons) if vector.get("deriveSchedulable") else ()): False}


def _read_candidates(decision: Json) -> Iterable[Answer]:
    result = decision["result"]
    cordons = sorted((name, entry["status"]) for name, entry in result.get("nodeSchedulable", {}).items())
    disk = itemgetter("node", "disk", "diskUUID")
    for outcome in result.get("outcomes", [{**result, "reasons": decision["errors"]}]):
        yield tuple(sorted(map(disk, outcome["candidates"]))), frozenset(outcome["reasons"]), tuple(cordons)


def _texts(reasons: Reasons) -> frozenset[str]:
    return frozenset(str(reason) for reason in reasons)


def _answer_schedule(cluster: Cluster, vector: Json) -> Answers:
    replica = cluster.snapshot.replicas[vector["schedule"]["replica"]]
    placement = schedule_replica(cluster, _volume(cluster, vector), replica, _replicas(cluster, vector))
    if not placement.choices:
        return {(None, _texts(placement.reasons)): False}
    place = attrgetter("candidate.node.name", "candidate.disk.name", "candidate.disk.uuid", "candidate.disk.path")
    return {(place(choice), frozenset[str]()): choice.reason.chance for choice in placement.choices}


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


def _answer_capacity(cluster: Cluster, vector: Json) -> Answers:
    schedule = vector["schedule"]
    try:
        capacity = csi_driver.get_capacity(cluster, schedule["topology"], schedule["parameters"])
    except csi_driver.CapacityError as error:
        return {(str(error).partition(":")[0],): False}
    return {(capacity.available, capacity.maximum_volume_size): False}


_PLACE = itemgetter("node", "disk", "diskUUID", "diskPath")
_DISK_ANSWERS = itemgetter("schedulable", "conditionSchedulable", "underPressure", "schedulableConsideringPressure")
_CAPACITY = itemgetter("availableCapacity", "maximumVolumeSize")
_verdict = attrgetter("status", "reason")
_recorded_verdict = itemgetter("status", "reason")


def _answer_node_status(cluster: Cluster, vector: Json) -> Answers:
    schedule = vector["schedule"]
    name = schedule["node"]
    collected = schedule.get("collected")
    ready = {"node": name, "ready": True, "phase": "Running"}
    pods = [ManagerPod(pod["ready"], pod["phase"]) for pod in vector.get("managerPods", [ready]) if pod["node"] == name]
    measured = itemgetter("diskUUID", "storageMaximum", "storageAvailable", "filesystemType", "fsid", "errorReason")
    disks_by_name = {
        disk: CollectedDisk(*measured({"errorReason": "", **entry})) for disk, entry in (collected or {}).items()
    }
    node = sync_node(cluster, cluster.nodes[name], pods, None if collected is None else disks_by_name)
    disks = frozenset(_synced_disk(disk) for disk in node.disks if disk.in_status)
    verdicts = (_verdict(kube.condition(node.conditions, kind)) for kind in ("Ready", "Schedulable"))
    return {(*verdicts, node.zone, node.region, disks): False}


def _synced_disk(disk: Disk) -> Answer:
    verdicts = [_verdict(kube.condition(disk.conditions, kind)) for kind in ("Ready", "Schedulable")]
    sizes = (disk.storage_maximum, disk.storage_available, disk.storage_scheduled)
    listed = [frozenset(each.items()) for each in (disk.scheduled_replicas, disk.scheduled_backing_images)]
    return disk.name, *verdicts, *sizes, disk.status_type, disk.filesystem_type, *listed


def _read_node_status(decision: Json) -> Iterable[Answer]:
    result = decision["result"]
    disks = frozenset(_recorded_disk(name, entry) for name, entry in result["disks"].items())
    verdicts = (_recorded_verdict(result[key]) for key in ("ready", "schedulable"))
    return [(*verdicts, result["zone"], result["region"], disks)]


def _recorded_disk(name: str, entry: Json) -> Answer:
    verdicts = [_recorded_verdict(entry[key]) for key in ("ready", "schedulable")]
    sizes = (entry["storageMaximum"], entry["storageAvailable"], entry["storageScheduled"])
    listed = [frozenset((entry[key] or {}).items()) for key in ("scheduledReplica", "scheduledBackingImage")]
    return name, *verdicts, *sizes, entry["diskType"], entry["filesystemType"], *listed


def _answer_volume(cluster: Cluster, vector: Json) -> Answers:
    answers: Answers = {}
    for outcome, chance in new_volume_placement.create_volume(cluster, _volume(cluster, vector)).items():
        scheduled = (outcome.scheduled.status, outcome.scheduled.reason)
        answer = (outcome.placements, outcome.replicas, outcome.unscheduled, scheduled)
        answers[answer] = answers.get(answer, False) or chance
    return answers


def _read_volume(decision: Json) -> Iterable[Answer]:
    for outcome in decision["result"]["outcomes"]:
        placements = tuple(sorted((node, disk) for node, disk in outcome["placements"]))
        scheduled = (outcome["scheduled"]["status"] == "True", outcome["scheduled"]["reason"])
        yield placements, outcome["replicas"], outcome["unscheduled"], scheduled


def _answer_replenish(cluster: Cluster, vector: Json) -> Answers:
    answers = replenish.replenishments(cluster, _volume(cluster, vector), _replicas(cluster, vector))
    return {(entry.count, entry.hard_node_affinity): len(answers) > 1 for entry in answers}


def _answer_reuse(cluster: Cluster, vector: Json) -> Answers:
    affinity = vector["schedule"].get("hardNodeAffinity", "")
    volume = _volume(cluster, vector)
    replicas = _replicas(cluster, vector)
    names = replenish.replica_to_reuse(cluster, volume, replicas, affinity) or {""}
    wait = replenish.wait_before_new_replica(cluster, volume, replicas, affinity).total_seconds()
    return {(name, wait): len(names) > 1 for name in names}


def _answer_expand(cluster: Cluster, vector: Json) -> Answers:
    size = vector["schedule"]["newSize"]
    results = volume_validation.check_expansion(cluster, _volume(cluster, vector), _replicas(cluster, vector), size)
    return {(each.allowed, each.reason and str(each.reason)): len(results) > 1 for each in results}


QUESTIONS: dict[Any, RecordedQuestion] = {
    "candidates": RecordedQuestion(_answer_candidates, _read_candidates),
    "schedule": RecordedQuestion(
        _answer_schedule,
        lambda decision: [
            (_PLACE(each) if each["scheduled"] else None, frozenset(decision["errors"]))
            for each in decision["result"]["outcomes"]
        ],
    ),
    "disk": RecordedQuestion(_answer_disk, lambda decision: [_DISK_ANSWERS(decision["result"])]),
    "capacity": RecordedQuestion(
        _answer_capacity,
        lambda decision: [
            (decision["errors"][0].partition(":")[0],) if decision["errors"] else _CAPACITY(decision["result"])
        ],
    ),
    "nodestatus": RecordedQuestion(_answer_node_status, _read_node_status),
    "volume": RecordedQuestion(_answer_volume, _read_volume),
    "replenish": RecordedQuestion(
        _answer_replenish, lambda decision: map(itemgetter("count", "hardNodeAffinity"), decision["result"]["outcomes"])
    ),
    "reuse": RecordedQuestion(
        _answer_reuse,
        lambda decision: map(itemgetter("reused", "requireNewReplicaAfterSeconds"), decision["result"]["outcomes"]),
    ),
    "expand": RecordedQuestion(
        _answer_expand,
        lambda decision: [
            (each["allowed"], next(iter(each["reasons"]), None)) for each in decision["result"]["outcomes"]
        ],
    ),
}


def check(vector: Json) -> str:
    """The difference between a recorded decision and the engine's, "" for none."""
    question = QUESTIONS[vector["schedule"]["op"]]
    try:
        cluster = read_cluster(vector)
        recorded = frozenset(question.read_answers(vector["decision"]))
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise InputError(f"{vector.get('id')}: not a recorded decision: {error!r}") from error
    clusters = list(stages.one_manager_per_node(cluster))
    possible: Answers = {}
    try:
        for visible_cluster in clusters:
            for answer, chance in question.answer(visible_cluster, vector).items():
                possible[answer] = possible.get(answer, False) or chance or len(clusters) > 1
    except KeyError as error:
        raise InputError(f"{vector.get('id')}: the question names {error}, which the scenario lacks") from error
    by_chance = vector["decision"]["result"].get("deterministic") is False
    extra = {answer for answer, chance in possible.items() if answer not in recorded and not (by_chance and chance)}
    if recorded <= possible.keys() and not extra:
        return ""
    heading = f"{vector.get('id')} ({vector['note']})" if vector.get("note") else str(vector.get("id"))
    decided = _describe_rules(cluster, vector)
    return f"{heading}\n  expected {_format_answers(recorded)}\n  got      {_format_answers(possible)}\n  decided  {decided}"


def _describe_rules(cluster: Cluster, vector: Json) -> str:
    """The rules that decided, as one line; the question itself where no rule for a node or a disk does."""
    schedule = vector["schedule"]
    if schedule["op"] == "disk":
        space = disk_space(_disk(cluster, vector), cluster.settings)
        return f"{space_refusal(schedule.get('size', 0), schedule.get('required', 0), space)}, {space}"
    if schedule["op"] in ("capacity", "nodestatus", "expand"):
        return str(schedule)
    explanation = new_volume_placement.explain(cluster, _request(cluster, vector), _replicas(cluster, vector))
    words = [explanation.refusal.rule.name] if explanation.refusal else []
    for entry in explanation.nodes:
        verdict = entry.refusal.rule.name if entry.refusal else entry.tier.name if entry.tier else "open"
        words.append(f"{entry.node.name}: {verdict}")
        words += [
            f"{entry.node.name}/{disk.disk.name}: {disk.refusal.rule.name if disk.refusal else 'open'}"
            for disk in entry.disks
        ]
    return ", ".join(words)


def _format_answers(answers: Iterable[object]) -> str:
    text = " | ".join(sorted(str(answer) for answer in answers)) or "nothing"
    return text if len(text) <= _MAX_CHARACTERS else text[:_MAX_CHARACTERS] + "..."


class _Schedule(Struct, rename="camel"):
    op: str
    volume: str = ""
    replica: str = ""
    hard_node_affinity: str = ""
    node: str = ""
    disk: str = ""
    size: int = 0
    required: int = 0
    new_size: int = 0
    topology: dict[str, str] = {}
    parameters: dict[str, str] = {}
    collected: dict[str, dict[str, str | int]] | None = None


class _Decision(Struct):
    result: dict[str, Any]
    errors: list[str]


class _Vector(Struct):
    id: str
    nodes: list[dict[str, Any]]
    schedule: _Schedule
    decision: _Decision


def _find_problem(vector: _Vector) -> str:
    if vector.schedule.op in QUESTIONS:
        return ""
    return f"schedule.op {vector.schedule.op!r} is none of {', '.join(QUESTIONS)}"


RUNNER = Runner(
    "scheduler_core.longhorn.vectors",
    "Replays recorded decisions of the real Longhorn through the policy engine.",
    _Vector,
    _find_problem,
    check,
)

if __name__ == "__main__":
    sys.exit(RUNNER.main(sys.argv[1:]))
