"""Situations about each of which the extender says one reason, for `test_statements.py`.

Each has a node of its own, and a pod that may run nowhere else. `is_true` compares raw objects in a few plain lines, without the program's
rules. `mend` changes the one fact.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from app.kube.resources import (
    CLAIMS,
    LONGHORN_BACKING_IMAGES,
    LONGHORN_INSTANCE_MANAGERS,
    LONGHORN_NODES,
    LONGHORN_REPLICAS,
    LONGHORN_SETTINGS,
    LONGHORN_VOLUMES,
    PERSISTENT_VOLUMES,
    PODS,
    STORAGE_CLASSES,
    Resource,
)
from devcluster.api import Api
from devcluster.programs import NAMESPACE
from scheduler_core.model.quantity import parse_bytes
from scheduler_core.model.verdict import Reason
from simulator.images import ENGINE_IMAGE
from tests import builders
from tests.builders import GI, storage_class
from tests.e2e.objects import (
    HOSTNAME,
    Object,
    asking_pod,
    claim_of,
    longhorn_volume,
    name_of,
    retained_volume,
    selected_node,
)

# A node with room, on which nothing is spoilt.
ELSEWHERE = "elsewhere"
DISK = "disk-1"
LONG_AGO = "2026-01-01T00:00:00Z"


@dataclass(frozen=True, slots=True)
class Facts:
    """The raw objects of one situation, as the API server has them now; `name` is that of the situation."""

    api: Api
    name: str

    def get(self, resource: Resource, name: str = "", namespace: str = NAMESPACE) -> Any:
        """An object, by default of Longhorn and with the situation's name."""
        return self.api.get(resource.path(namespace, name or self.name))

    def patch(self, resource: Resource, body: Object, name: str = "", namespace: str = NAMESPACE) -> None:
        """Merges a patch into an object; a status goes to its own path."""
        path = resource.path(namespace, name or self.name)
        self.api.patch(f"{path}/status" if "status" in body else path, body)

    @property
    def node(self) -> Any:
        return self.get(LONGHORN_NODES)

    @property
    def disk(self) -> Any:
        return self.node["status"]["diskStatus"][DISK]

    @property
    def free(self) -> int:
        """The bytes that may still be scheduled on the disk; nothing is reserved, and no more is promised than there is."""
        return int(self.disk["storageMaximum"]) - int(self.disk["storageScheduled"])

    @property
    def volume(self) -> Any:
        return self.get(LONGHORN_VOLUMES)

    @property
    def sizes(self) -> list[int]:
        claims = self.api.get(CLAIMS.path("default"))["items"]
        own = [claim for claim in claims if claim["metadata"]["labels"]["situation"] == self.name]
        return [parse_bytes(claim["spec"]["resources"]["requests"]["storage"]) for claim in own]

    def replica_nodes(self, volume: str = "") -> list[str]:
        replicas = self.api.get(LONGHORN_REPLICAS.path(NAMESPACE))["items"]
        return [entry["spec"]["nodeID"] for entry in replicas if entry["spec"]["volumeName"] == (volume or self.name)]

    def condition(self, conditions: Sequence[Object], kind: str) -> tuple[str, str]:
        return next(((entry["status"], entry["reason"]) for entry in conditions if entry["type"] == kind), ("", ""))

    def tagged(self, tag: str) -> list[str]:
        nodes = self.api.get(LONGHORN_NODES.path(NAMESPACE))["items"]
        return [name_of(node) for node in nodes if tag in (node["spec"].get("tags") or ())]


def replica(api: Api, volume: str, node: str) -> Object:
    """A healthy replica of a volume of 100Gi."""
    raw = builders.replica(f"{volume}-r", volume, node, image=ENGINE_IMAGE, diskID=disk_of(api, node))
    return {**raw, "metadata": {**raw["metadata"], "labels": {"longhornvolume": volume}}}


def disk_of(api: Api, node: str) -> str:
    """The UUID of a node's disk."""
    return str(api.get(LONGHORN_NODES.path(NAMESPACE, node))["status"]["diskStatus"][DISK]["diskUUID"])


def node_spec(**changes: Any) -> Callable[[Facts], None]:
    return lambda facts: facts.patch(LONGHORN_NODES, {"spec": changes})


def disk_spec(**changes: Any) -> Callable[[Facts], None]:
    return node_spec(disks={DISK: changes})


def disk_status(**changes: Any) -> Callable[[Facts], None]:
    return lambda facts: facts.patch(LONGHORN_NODES, {"status": {"diskStatus": {DISK: changes}}})


def node_conditions(**entries: tuple[str, str]) -> Callable[[Facts], None]:
    return lambda facts: facts.patch(LONGHORN_NODES, {"status": {"conditions": conditions(entries)}})


def conditions(entries: Mapping[str, tuple[str, str]]) -> list[Object]:
    empty = {"message": "", "lastProbeTime": "", "lastTransitionTime": LONG_AGO}
    return [{"type": kind, "status": status, "reason": reason, **empty} for kind, (status, reason) in entries.items()]


def volume_spec(**changes: Any) -> Callable[[Facts], None]:
    return lambda facts: facts.patch(LONGHORN_VOLUMES, {"spec": changes})


def volume_status(**changes: Any) -> Callable[[Facts], None]:
    return lambda facts: facts.patch(LONGHORN_VOLUMES, {"status": changes})


def set_manager_state(state: str) -> Callable[[Facts], None]:
    """Sets the state of the node's instance managers."""

    def change(facts: Facts) -> None:
        for raw in managers_of(facts):
            facts.patch(LONGHORN_INSTANCE_MANAGERS, {"status": {"currentState": state}}, name_of(raw))

    return change


def managers_of(facts: Facts) -> list[Object]:
    managers = facts.api.get(LONGHORN_INSTANCE_MANAGERS.path(NAMESPACE))["items"]
    return [raw for raw in managers if raw["spec"]["nodeID"] == facts.name]


def delete_node(facts: Facts) -> None:
    path = LONGHORN_NODES.path(NAMESPACE, facts.name)
    facts.api.patch(path, {"metadata": {"finalizers": None}})
    facts.api.delete(path)


def create_node(facts: Facts) -> None:
    """Creates a Longhorn node like the one elsewhere."""
    raw = facts.get(LONGHORN_NODES, ELSEWHERE)
    body = {"apiVersion": raw["apiVersion"], "kind": raw["kind"], "metadata": {"name": facts.name}}
    facts.api.create(LONGHORN_NODES.path(NAMESPACE), {**body, "spec": {**raw["spec"], "name": facts.name}})
    status = raw["status"]
    status["diskStatus"][DISK]["diskUUID"] = f"uuid-{facts.name}"
    facts.patch(LONGHORN_NODES, {"status": status})


def delete_volume(facts: Facts) -> None:
    facts.patch(LONGHORN_VOLUMES, {"metadata": {"finalizers": ["example.com/busy"]}})
    facts.api.delete(LONGHORN_VOLUMES.path(NAMESPACE, facts.name))


def create_volume_again(facts: Facts) -> None:
    facts.patch(LONGHORN_VOLUMES, {"metadata": {"finalizers": None}})
    facts.api.create(LONGHORN_VOLUMES.path(NAMESPACE), longhorn_volume(facts.name))


def create_backing_image(facts: Facts) -> None:
    spec = {"sourceType": "download", "sourceParameters": {"url": "http://example.com/image"}, "dataEngine": "v1"}
    body = {"apiVersion": LONGHORN_BACKING_IMAGES.api_version, "kind": LONGHORN_BACKING_IMAGES.kind}
    metadata = {"name": facts.name, "namespace": NAMESPACE}
    facts.api.create(LONGHORN_BACKING_IMAGES.path(NAMESPACE), {**body, "metadata": metadata, "spec": spec})


def has_backing_image(facts: Facts) -> bool:
    images = facts.api.get(LONGHORN_BACKING_IMAGES.path(NAMESPACE))["items"]
    return facts.name in map(name_of, images)


def create_user(facts: Facts) -> None:
    pod = asking_pod(f"{facts.name}-user", [f"{facts.name}-0"], {})
    pod["spec"]["nodeName"] = ELSEWHERE
    facts.api.create(PODS.path("default"), pod)


def delete_user(facts: Facts) -> None:
    facts.api.delete(PODS.path("default", f"{facts.name}-user"), {"gracePeriodSeconds": 0})


def create_earlier_pod(facts: Facts) -> None:
    """Creates a pod, for which kube-scheduler chooses the node."""
    name = f"{facts.name}-9"
    facts.api.create(CLAIMS.path("default"), claim_of(name, "100Gi", facts.name, {"situation": "earlier"}))
    facts.api.create(PODS.path("default"), asking_pod(name, [name], {HOSTNAME: facts.name}))


def delete_earlier_pod(facts: Facts) -> None:
    facts.api.delete(PODS.path("default", f"{facts.name}-9"), {"gracePeriodSeconds": 0})
    facts.api.delete(CLAIMS.path("default", f"{facts.name}-9"))


def promised(facts: Facts) -> int:
    """What the claim of the earlier pod takes on the node that kube-scheduler has chosen for it."""
    claim = facts.get(CLAIMS, f"{facts.name}-9", "default")
    chosen = selected_node(claim) == facts.name
    return parse_bytes(claim["spec"]["resources"]["requests"]["storage"]) if chosen else 0


def move_replica(facts: Facts) -> None:
    spec = {"nodeID": facts.name, "diskID": disk_of(facts.api, facts.name)}
    facts.patch(LONGHORN_REPLICAS, {"spec": spec}, f"{facts.name}-r")


def set_over_provisioning(value: str) -> Callable[[Facts], None]:
    return lambda facts: facts.patch(LONGHORN_SETTINGS, {"value": value}, "storage-over-provisioning-percentage")


def ready_condition(facts: Facts) -> tuple[str, str]:
    return facts.condition(facts.node["status"]["conditions"], "Ready")


def nothing(_: Facts) -> None:
    """Changes nothing."""


@dataclass(frozen=True, slots=True)
class Situation:
    """One reason, and what makes it true.

    Attributes:
        spoil: makes it true, before there is a pod
        mend: changes the one fact; kube-scheduler then chooses the node
        sizes: of the claims
        parameters: of the StorageClass
        disk: of the node, as in the annotation `simulator/disks`
        volume: fields of the spec of a volume that exists; None for a new one
        replica_on: the node of its replica; "" for none, "own" for the node of the situation
        twin: whether the pod may also run on a second node like the first
        remedy: the kind of the remedy whose printed commands mend it; "" for `mend`
    """

    reason: Reason
    is_true: Callable[[Facts], bool]
    spoil: Callable[[Facts], None] = nothing
    mend: Callable[[Facts], None] = nothing
    sizes: Sequence[str] = ("100Gi",)
    parameters: Mapping[str, str] = field(default_factory=dict[str, str])
    disk: Mapping[str, str] = field(default_factory=lambda: {"size": "300Gi"})
    volume: Mapping[str, Any] | None = None
    replica_on: str = ""
    twin: bool = False
    remedy: str = ""

    @property
    def name(self) -> str:
        """The name of its node, class, pod and volume."""
        kind = f"-{self.remedy}" if self.remedy else ""
        return self.reason.name.lower().replace("_", "-") + kind

    @property
    def nodes(self) -> list[str]:
        """The nodes of its pod; the statement is about the first."""
        return [self.name, f"{self.name}-2"] if self.twin else [self.name]

    def objects(self, api: Api) -> Iterator[tuple[Resource, str, Object]]:
        """What exists before the pod, with its namespace."""
        parameters = {key: value.format(name=self.name) for key, value in self.parameters.items()}
        raw = storage_class(self.name)
        yield STORAGE_CLASSES, "", {**raw, "parameters": {**raw["parameters"], **parameters}}
        bound = {"volumeName": self.name} if self.volume is not None else {}
        for number, size in enumerate(self.sizes):
            labels = {"situation": self.name}
            yield CLAIMS, "default", claim_of(f"{self.name}-{number}", size, self.name, labels, **bound)
        if self.volume is not None:
            yield PERSISTENT_VOLUMES, "", retained_volume(self.name, "100Gi", self.name)
            yield LONGHORN_VOLUMES, NAMESPACE, longhorn_volume(self.name, **self.volume)
        if self.replica_on:
            node = self.name if self.replica_on == "own" else self.replica_on
            yield LONGHORN_REPLICAS, NAMESPACE, replica(api, self.name, node)

    def pod(self) -> Object:
        claims = [f"{self.name}-{number}" for number in range(len(self.sizes))]
        return asking_pod(self.name, claims, {"group": self.name} if self.twin else {HOSTNAME: self.name})


_TAG = {"nodeSelector": "{name}"}
_READY = {"Ready": ("True", ""), "Schedulable": ("True", "")}
SITUATIONS = (
    Situation(Reason.ROOM, lambda facts: facts.free >= facts.sizes[0]),
    Situation(Reason.NO_VOLUMES, lambda facts: facts.sizes == [], sizes=()),
    Situation(
        Reason.HOME, lambda facts: facts.replica_nodes() == [facts.name] and facts.free < facts.sizes[0],
        volume={}, replica_on="own", disk={"size": "60Gi"},
    ),
    Situation(
        Reason.ATTACHABLE,
        lambda facts: facts.replica_nodes() == [ELSEWHERE] and facts.volume["spec"]["dataLocality"] == "disabled",
        volume={"dataLocality": "disabled"}, replica_on=ELSEWHERE, disk={"size": "60Gi"},
    ),
    Situation(
        Reason.NOT_A_LONGHORN_NODE,
        lambda facts: facts.name not in map(name_of, facts.api.get(LONGHORN_NODES.path(NAMESPACE))["items"]),
        delete_node, create_node,
    ),
    Situation(
        Reason.NODE_NOT_READY, lambda facts: ready_condition(facts)[0] == "False",
        node_conditions(Ready=("False", "ManagerPodDown"), Schedulable=("True", "")), node_conditions(**_READY),
    ),
    Situation(
        Reason.NODE_NOT_READY_YET, lambda facts: ready_condition(facts) == ("", ""),
        node_conditions(), node_conditions(**_READY),
    ),
    Situation(
        Reason.NODE_CORDONED,
        lambda facts: facts.condition(facts.node["status"]["conditions"], "Schedulable") == ("False", "KubernetesNodeCordoned"),
        node_conditions(Ready=("True", ""), Schedulable=("False", "KubernetesNodeCordoned")), node_conditions(**_READY),
    ),
    Situation(
        Reason.ENGINE_NOT_READY,
        lambda facts: {raw["status"]["currentState"] for raw in managers_of(facts)} == {"error"},
        set_manager_state("error"), set_manager_state("running"),
    ),
    Situation(
        Reason.NODE_SCHEDULING_DISABLED, lambda facts: facts.node["spec"]["allowScheduling"] is False,
        node_spec(allowScheduling=False), node_spec(allowScheduling=True),
    ),
    Situation(
        Reason.NODE_EVICTING, lambda facts: facts.node["spec"]["evictionRequested"] is True,
        node_spec(allowScheduling=False, evictionRequested=True), node_spec(allowScheduling=True, evictionRequested=False),
    ),
    Situation(
        Reason.NODE_TAGS, lambda facts: facts.name not in facts.tagged(facts.name),
        lambda facts: facts.patch(LONGHORN_NODES, {"spec": {"tags": [facts.name]}}, ELSEWHERE),
        lambda facts: facts.patch(LONGHORN_NODES, {"spec": {"tags": [facts.name]}}), parameters=_TAG,
    ),
    Situation(
        Reason.DISK_TAGS, lambda facts: not facts.node["spec"]["disks"][DISK].get("tags"),
        mend=disk_spec(tags=["fast"]), parameters={"diskSelector": "fast"},
    ),
    Situation(
        Reason.NO_DISK, lambda facts: facts.node["spec"]["disks"][DISK]["allowScheduling"] is False,
        disk_spec(allowScheduling=False), disk_spec(allowScheduling=True),
    ),
    Situation(
        Reason.DISK_PRESSURE,
        lambda facts: facts.condition(facts.disk["conditions"], "Schedulable") == ("False", "DiskPressure"),
        disk_status(conditions=conditions({"Ready": ("True", ""), "Schedulable": ("False", "DiskPressure")})),
        disk_status(conditions=conditions(_READY)),
    ),
    Situation(
        Reason.DISK_TYPE, lambda facts: facts.node["spec"]["disks"][DISK]["diskType"] == "block",
        disk_spec(diskType="block"), disk_spec(diskType="filesystem"),
    ),
    Situation(
        Reason.VOLUME_TOO_LARGE,
        lambda facts: facts.disk["filesystemType"] == "ext4" and facts.sizes[0] > 16 * 1024 * GI,
        disk_status(filesystemType="ext4"), disk_status(filesystemType="xfs"), sizes=("17Ti",), disk={"size": "40Ti"},
    ),
    Situation(
        Reason.LOW_AVAILABLE,
        lambda facts: int(facts.disk["storageAvailable"]) < int(facts.disk["storageMaximum"]) * 25 // 100 and facts.free >= facts.sizes[0],
        disk_status(storageAvailable=10 * GI), disk_status(storageAvailable=290 * GI),
    ),
    Situation(
        Reason.INSUFFICIENT_STORAGE, lambda facts: facts.free < facts.sizes[0],
        mend=disk_status(storageMaximum=300 * GI, storageAvailable=300 * GI), disk={"size": "60Gi"},
    ),
    Situation(
        Reason.NOT_TOGETHER, lambda facts: max(facts.sizes) <= facts.free < sum(facts.sizes),
        mend=disk_status(storageMaximum=400 * GI, storageAvailable=400 * GI),
        sizes=("100Gi", "100Gi"), disk={"size": "150Gi"},
    ),
    Situation(
        Reason.SPOKEN_FOR, lambda facts: facts.free - promised(facts) < facts.sizes[0] <= facts.free,
        create_earlier_pod, delete_earlier_pod, disk={"size": "150Gi"},
    ),
    Situation(
        Reason.NO_ROOM_IN_CLUSTER, lambda facts: facts.tagged(facts.name) == [facts.name] and facts.free < facts.sizes[0],
        lambda facts: facts.patch(LONGHORN_NODES, {"spec": {"tags": [facts.name]}}),
        disk_status(storageMaximum=900 * GI, storageAvailable=900 * GI),
        sizes=("500Gi",), parameters={"dataLocality": "disabled", **_TAG},
    ),
    Situation(
        Reason.NOT_TOGETHER_IN_CLUSTER,
        lambda facts: facts.tagged(facts.name) == [facts.name] and max(facts.sizes) <= facts.free < sum(facts.sizes),
        lambda facts: facts.patch(LONGHORN_NODES, {"spec": {"tags": [facts.name]}}),
        disk_status(storageMaximum=900 * GI, storageAvailable=900 * GI),
        sizes=("200Gi", "200Gi"), parameters={"dataLocality": "disabled", **_TAG},
    ),
    *(
        Situation(
            Reason.TOO_FEW_NODES, lambda facts: len(facts.tagged(facts.name)) == 1,
            lambda facts: facts.patch(LONGHORN_NODES, {"spec": {"tags": [facts.name]}}),
            parameters={"numberOfReplicas": "2", **_TAG}, remedy=remedy,
        )
        for remedy in ("allow-degraded", "soften-anti-affinity")
    ),
    Situation(
        Reason.NO_BACKING_IMAGE, lambda facts: not has_backing_image(facts),
        mend=create_backing_image, parameters={"backingImage": "{name}"},
    ),
    Situation(
        Reason.CLAIM_IN_USE,
        lambda facts: facts.get(PODS, f"{facts.name}-user", "default")["spec"]["nodeName"] == ELSEWHERE,
        create_user, delete_user, volume={}, replica_on="own",
    ),
    Situation(
        Reason.STRICT_LOCAL_ELSEWHERE, lambda facts: facts.replica_nodes() == [ELSEWHERE],
        mend=move_replica, volume={"dataLocality": "strict-local"}, replica_on=ELSEWHERE,
    ),
    Situation(
        Reason.HOME_ELSEWHERE, lambda facts: facts.replica_nodes() == [f"{facts.name}-2"],
        volume={}, replica_on="home-elsewhere-2", twin=True,
    ),
    Situation(
        Reason.TOPOLOGY,
        lambda facts: facts.node["status"]["zone"] not in {term["zone"] for term in facts.volume["spec"]["topologyRequirement"]},
        mend=volume_spec(topologyRequirement=None), volume={"topologyRequirement": [{"zone": "far", "region": ""}]},
    ),
    Situation(
        Reason.VOLUME_DELETING, lambda facts: "deletionTimestamp" in facts.volume["metadata"],
        delete_volume, create_volume_again, volume={}, replica_on="own",
    ),
    Situation(
        Reason.VOLUME_FAULTED,
        lambda facts: facts.volume["status"]["robustness"] == "faulted" and facts.replica_nodes() == [],
        volume_status(state="detached", robustness="faulted"), volume_status(state="detached", robustness="unknown"), volume={},
    ),
    Situation(
        Reason.VOLUME_STANDBY, lambda facts: facts.volume["status"]["isStandby"] is True,
        volume_status(isStandby=True, restoreRequired=True), volume_status(isStandby=False, restoreRequired=False),
        volume={}, replica_on="own",
    ),
    Situation(
        Reason.VOLUME_RESTORING, lambda facts: facts.volume["status"]["restoreRequired"] is True,
        volume_status(restoreRequired=True), volume_status(restoreRequired=False), volume={}, replica_on="own",
    ),
    Situation(
        Reason.VOLUME_CLONING, lambda facts: facts.volume["status"]["cloneStatus"]["state"] == "initiated",
        volume_status(cloneStatus={"state": "initiated"}), volume_status(cloneStatus={"state": "completed"}),
        volume={"dataSource": "vol://home"}, replica_on="own",
    ),
    Situation(
        Reason.BAD_VOLUME, lambda facts: not facts.volume["status"]["lastDegradedAt"].startswith("20"),
        volume_status(robustness="degraded", lastDegradedAt="yesterday"), volume_status(lastDegradedAt=LONG_AGO), volume={},
    ),
)  # fmt: skip
# It is about every node, so that it is made when all others have been mended.
BAD_SETTING = Situation(
    Reason.BAD_SETTING,
    lambda facts: not facts.get(LONGHORN_SETTINGS, "storage-over-provisioning-percentage")["value"].isdigit(),
    set_over_provisioning("much"),
    set_over_provisioning("100"),
)
