"""Situations about each of which the extender says one reason, for `test_statements.py`.

Each has a node of its own, and a pod that may run nowhere else. `is_true` compares raw objects in a few plain lines, without the program's
rules. `mend` changes the one fact.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from app.kube.resources import (
    CLAIMS,
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
from scheduler_core.model.verdict import Reason
from tests.builders import GI, storage_class
from tests.e2e.objects import HOSTNAME, Object, asking_pod, claim_of, longhorn_volume, name_of, retained_volume
from tests.e2e.statements import (
    DISK,
    ELSEWHERE,
    LONG_AGO,
    Facts,
    conditions,
    create_backing_image,
    create_earlier_pod,
    create_node,
    create_user,
    create_volume_again,
    delete_earlier_pod,
    delete_node,
    delete_user,
    delete_volume,
    disk_spec,
    disk_status,
    has_backing_image,
    managers_of,
    move_replica,
    node_conditions,
    node_spec,
    promised,
    ready_condition,
    replica,
    set_manager_state,
    set_over_provisioning,
    volume_spec,
    volume_status,
)


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


_TAG: Final = {"nodeSelector": "{name}"}
_READY: Final = {"Ready": ("True", ""), "Schedulable": ("True", "")}
SITUATIONS: Final = (
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
BAD_SETTING: Final = Situation(
    Reason.BAD_SETTING,
    lambda facts: not facts.get(LONGHORN_SETTINGS, "storage-over-provisioning-percentage")["value"].isdigit(),
    set_over_provisioning("much"),
    set_over_provisioning("100"),
)
