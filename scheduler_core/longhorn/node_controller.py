"""What the node controller writes into a Longhorn node's status (controller/node_controller.go).

The scheduler sees a cluster only through this status, so its delays and its arithmetic decide as much as the rules do.
Sizes are bytes. Nothing here depends on allowScheduling or evictionRequested.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import timedelta
from types import MappingProxyType

from scheduler_core.longhorn.cluster import Cluster, parse_time
from scheduler_core.longhorn.space import disk_space, space_detail, space_refusal
from scheduler_core.model import longhorn
from scheduler_core.model.kube import Condition, condition
from scheduler_core.model.longhorn import CORDONED, FILESYSTEM, Disk, Node
from scheduler_core.structs import Struct, replace

NODE_GONE = "KubernetesNodeGone"
_KUBE_NOT_READY = "KubernetesNodeNotReady"
ZONE_LABEL = "topology.kubernetes.io/zone"
REGION_LABEL = "topology.kubernetes.io/region"
ROUNDING = 100 * 1024**2
_NOT_READY_GRACE = timedelta(seconds=15)
_PRESSURES = ("DiskPressure", "PIDPressure", "MemoryPressure", "NetworkUnavailable")
_NODE_NOT_READY = "NodeNotReady"
_NO_SHARDS: Mapping[str, int] = MappingProxyType({})


class ManagerPod(Struct, frozen=True):
    """The longhorn-manager pod of a node."""

    ready: bool = True
    phase: str = "Running"


class CollectedDisk(Struct, frozen=True):
    """What the disk monitor measured on one disk. An `error_reason` voids the numbers."""

    uuid: str
    storage_maximum: int = 0
    storage_available: int = 0
    filesystem_type: str = ""
    fsid: str = ""
    error_reason: str = ""


def sync_node(
    cluster: Cluster,
    node: Node,
    pods: Iterable[ManagerPod],
    collected: Mapping[str, CollectedDisk] | None = None,
    shards: Mapping[str, int] = _NO_SHARDS,
) -> Node:
    """The node with the status that its own manager would write."""
    # `collected` is by disk name, None if the monitor has not run yet. `shards` are the bytes of sharded volumes by
    # disk UUID.
    synced = sync_node_remotely(cluster, node, pods)
    disks: Iterable[Disk] = synced.disks
    if collected is not None:
        fsids = Counter(entry.fsid for entry in collected.values() if entry.fsid)
        disks = (_collect_disk(disk, collected.get(disk.name), fsids) for disk in synced.disks)
    return replace(synced, disks=tuple(sync_disk(cluster, disk, shards.get(disk.uuid, 0)) for disk in disks))


def sync_node_remotely(cluster: Cluster, node: Node, pods: Iterable[ManagerPod]) -> Node:
    """The node with the status that another node's manager would write. Only a node's own manager writes
    `storageScheduled` and `scheduledReplica`. While that is gone, both stay as they were.
    """
    kube_node = cluster.kube_nodes.get(node.name)
    labels = kube_node.labels if kube_node else {}
    ready = ready_condition(cluster, node, tuple(pods))
    disks = node.disks if ready.status == "True" else tuple(_mark_node_not_ready(disk) for disk in node.disks)
    return replace(
        node,
        zone=labels.get(ZONE_LABEL, ""),
        region=labels.get(REGION_LABEL, ""),
        conditions=(ready, schedulable_condition(cluster, node)),
        disks=disks,
    )


def ready_condition(cluster: Cluster, node: Node, pods: tuple[ManagerPod, ...]) -> Condition:
    """The node's Ready condition. Kubernetes' conditions win over the manager pod's; of several bad ones, the last."""
    problem = _kubernetes_problem(cluster, node)
    if problem is not None:
        return problem
    if not pods:
        return Condition("Ready", "False", "ManagerPodMissing", f"node {node.name} has no manager pod")
    if not any(pod.ready and pod.phase == "Running" for pod in pods):
        return Condition("Ready", "False", "ManagerPodDown", f"the manager pod of node {node.name} is not running")
    return Condition("Ready", "True")


def _kubernetes_problem(cluster: Cluster, node: Node) -> Condition | None:
    kube_node = cluster.kube_nodes.get(node.name)
    if kube_node is None:
        return Condition("Ready", "False", NODE_GONE, f"Kubernetes node {node.name} does not exist")
    ready = None
    for entry in kube_node.conditions:
        if entry.type == "Ready" and _is_not_ready(cluster, entry):
            because = f"Kubernetes node {node.name} is not ready"
            ready = Condition("Ready", "False", _KUBE_NOT_READY, because)
        elif entry.type in _PRESSURES and entry.status == "True":
            because = f"Kubernetes node {node.name} has {entry.type}"
            ready = Condition("Ready", "False", "KubernetesNodePressure", because)
    return ready


def is_down(cluster: Cluster, name: str) -> bool:
    """Whether Longhorn fails the replicas of a node once their volumes are attached (IsNodeDownOrDeleted)."""
    node = cluster.nodes.get(name)
    if node is None or _shows_down(condition(node.conditions, "Ready")):
        return True
    # The node controller writes what Kubernetes knows some time later. A source without Kubernetes nodes says nothing about them.
    return bool(cluster.kube_nodes) and _shows_down(_kubernetes_problem(cluster, node))


def _shows_down(ready: Condition | None) -> bool:
    return ready is not None and ready.status == "False" and ready.reason in (NODE_GONE, _KUBE_NOT_READY)


def _is_not_ready(cluster: Cluster, ready: Condition) -> bool:
    """Whether a Kubernetes node counts as not ready. A False younger than 15 s does not count yet."""
    if ready.status != "False":
        return ready.status != "True"
    since = parse_time(ready.last_transition_time)
    return since is None or cluster.now - since >= _NOT_READY_GRACE


def schedulable_condition(cluster: Cluster, node: Node) -> Condition:
    """The node's Schedulable condition (SetSchedulableCondition). It is False only on a cordoned node, and only if the
    setting `disable-scheduling-on-cordoned-node` is true.
    """
    kube_node = cluster.kube_nodes.get(node.name)
    cordoned = kube_node is not None and kube_node.unschedulable
    if cordoned and cluster.settings.disable_scheduling_on_cordoned_node:
        return Condition("Schedulable", "False", CORDONED, f"node {node.name} is cordoned")
    return Condition("Schedulable", "True")


def awaits_own_manager(disk: Disk) -> bool:
    """Whether the node's own manager has yet to write a disk that was marked as not ready with its node."""
    return condition(disk.conditions, "Ready").reason == _NODE_NOT_READY


def _mark_node_not_ready(disk: Disk) -> Disk:
    """A disk whose node is not ready (MarkAllDisksNotReadyWhenNodeNotReady)."""
    because = f"disk {disk.name}: node is not ready"
    conditions = (Condition(kind, "False", _NODE_NOT_READY, because) for kind in ("Ready", "Schedulable"))
    return _with_conditions(disk, *conditions)


def _with_conditions(disk: Disk, *conditions: Condition) -> Disk:
    unchanged = (entry for entry in disk.conditions if entry.type not in {new.type for new in conditions})
    return replace(disk, conditions=(*conditions, *unchanged))


def _collect_disk(disk: Disk, measured: CollectedDisk | None, fsids: Mapping[str, int]) -> Disk:
    if measured is None or measured.error_reason:
        reason = (measured.error_reason if measured else "") or "NoDiskInfo"
        return _mark_disk_not_ready(disk, reason, "the monitor could not read it")
    if disk.uuid not in ("", measured.uuid):
        return _mark_disk_not_ready(disk, "DiskFilesystemChanged", "the disk's UUID is not the recorded one")
    if fsids.get(measured.fsid, 0) > 1:
        return _mark_disk_not_ready(disk, "DiskFilesystemChanged", "another disk is on the same file system")
    available = measured.storage_available
    if disk.spec_type == FILESYSTEM:
        available -= available % ROUNDING
    return replace(
        _with_conditions(disk, Condition("Ready", "True")),
        uuid=measured.uuid,
        storage_maximum=measured.storage_maximum,
        storage_available=available,
        filesystem_type=measured.filesystem_type,
    )


def _mark_disk_not_ready(disk: Disk, reason: str, because: str) -> Disk:
    condition = Condition("Ready", "False", reason, f"disk {disk.name}: {because}")
    return replace(_with_conditions(disk, condition), storage_maximum=0, storage_available=0)


def sync_disk(cluster: Cluster, disk: Disk, shards: int = 0) -> Disk:
    """The disk with its scheduled bytes and Schedulable condition (syncDiskStatus). The bytes of shards count, but no
    field of the status lists shards.
    """
    if not disk.ready:
        not_ready = Condition("Schedulable", "False", "DiskNotReady", f"disk {disk.name} is not ready")
        return replace(_with_conditions(disk, not_ready), storage_scheduled=0, scheduled_replicas={})
    replicas = scheduled_replicas(cluster, disk)
    images = scheduled_backing_images(cluster, disk)
    synced = replace(
        disk,
        storage_scheduled=sum(replicas.values()) + sum(images.values()) + shards,
        scheduled_replicas=replicas,
        scheduled_backing_images=images,
    )
    return _with_conditions(synced, disk_schedulable_condition(cluster, synced))


def scheduled_replicas(cluster: Cluster, disk: Disk) -> dict[str, int]:
    """Sizes of the disk's replica objects, by name. Failed, deleting, inactive and evicting replicas count, too."""
    sizes = {
        replica.name: replica.size
        for replicas in cluster.replicas_by_volume.values()
        for replica in replicas
        if replica.disk_id == disk.uuid
    }
    return dict(sorted(sizes.items()))


def scheduled_backing_images(cluster: Cluster, disk: Disk) -> dict[str, int]:
    """Real sizes of the disk's backing images, by name."""
    # Images that are to be on the disk count, too. A size is 0 until it is known.
    images = cluster.snapshot.backing_images
    return {name: image.real_size for name, image in sorted(images.items()) if disk.uuid in image.disks}


def disk_schedulable_condition(cluster: Cluster, disk: Disk) -> Condition:
    """Schedulable of a ready disk: whether a replica of no size fits (IsSchedulableToDisk(0, 0))."""
    space = disk_space(disk, cluster.settings)
    rule = space_refusal(0, 0, space)
    if rule is None:
        return Condition("Schedulable", "True")
    detail = space_detail(rule, disk, cluster.settings, space, longhorn.Volume(name=""))
    return Condition("Schedulable", "False", "DiskPressure", detail)
