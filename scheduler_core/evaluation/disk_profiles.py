"""Why nodes and volumes are refused before disks are compared, and the profile of a node that is not: its open disks.

Data flow, for nodes that hold no replica of the pod's volumes (nearly all nodes):

1. `profile_node` asks Longhorn's own rules (`longhorn/`) about the node as a whole, and which of its disks are open to each class of
   volumes; a rule that closes them becomes one of the few reasons that kube-scheduler and its users see;
2. the open disks' free bytes, largest first, become a `Profile` (`cluster_state.py`); equal profiles of one table are one object.
"""

from collections.abc import Iterable, Sequence

from scheduler_core.cluster.view import View
from scheduler_core.evaluation.fit import OpenDisk
from scheduler_core.longhorn import placement, stages, volume_validation
from scheduler_core.longhorn.refusal_rules import Refusal, Rule
from scheduler_core.longhorn.replica_request import ReplicaRequest
from scheduler_core.longhorn.space import space_detail, space_refusal
from scheduler_core.model import longhorn
from scheduler_core.model.verdict import Reason
from scheduler_core.structs import Struct
from scheduler_core.volumes.resolve import PodVolume, Resolution
from scheduler_core.volumes.volume_requirements import VolumeClasses, requirements

_RULES_BY_REASON = {
    Reason.BAD_SETTING: (Rule.SETTING_FAULT,),
    Reason.NO_BACKING_IMAGE: (Rule.BACKING_IMAGE_MISSING,),
    Reason.LINKED_CLONE: (Rule.LINKED_CLONE_SOURCE_MISSING, Rule.LINKED_CLONE, Rule.LINKED_CLONE_DISK),
    Reason.BAD_VOLUME: (Rule.DEGRADED_SINCE_FAULT,),
    Reason.VOLUME_DELETING: (Rule.VOLUME_DELETING,),
    Reason.VOLUME_FAULTED: (Rule.VOLUME_FAULTED,),
    Reason.VOLUME_STANDBY: (Rule.VOLUME_STANDBY,),
    Reason.VOLUME_RESTORING: (Rule.VOLUME_RESTORING,),
    Reason.VOLUME_CLONING: (Rule.VOLUME_CLONING,),
    Reason.NODE_NOT_READY: (Rule.NODE_DELETING, Rule.NODE_NOT_READY),
    Reason.NODE_NOT_READY_YET: (Rule.NODE_NOT_READY_YET,),
    Reason.NODE_CORDONED: (Rule.NODE_NOT_SCHEDULABLE,),
    Reason.NODE_SCHEDULING_DISABLED: (Rule.NODE_SCHEDULING_DISABLED,),
    Reason.ENGINE_NOT_READY: (Rule.V2_DISABLED, Rule.INSTANCE_MANAGER, Rule.ENGINE_IMAGE),
    Reason.STRICT_LOCAL_ELSEWHERE: (Rule.HARD_NODE_AFFINITY,),
    Reason.TOPOLOGY: (Rule.TOPOLOGY,),
    Reason.NODE_TAGS: (Rule.NODE_TAGS, Rule.BACKING_IMAGE_NODE_TAGS),
    Reason.ANTI_AFFINITY: (Rule.NODE_ANTI_AFFINITY, Rule.ZONE_ANTI_AFFINITY, Rule.DISK_ANTI_AFFINITY),
    Reason.NO_DISK: (
        Rule.DISK_NOT_IN_STATUS,
        Rule.DISK_NOT_IN_SPEC,
        Rule.DISK_SCHEDULING_DISABLED,
        Rule.DISK_EVICTION_REQUESTED,
        Rule.DISK_NOT_SCHEDULABLE,
    ),
    Reason.DISK_PRESSURE: (Rule.DISK_PRESSURE,),
    Reason.DISK_TYPE: (Rule.DISK_TYPE,),
    Reason.VOLUME_TOO_LARGE: (Rule.FILESYSTEM_LIMIT,),
    Reason.DISK_TAGS: (Rule.DISK_TAGS, Rule.BACKING_IMAGE_DISK_TAGS),
    Reason.LOW_AVAILABLE: (Rule.STORAGE_MAXIMUM, Rule.STORAGE_AVAILABLE, Rule.ACTUAL_SPACE),
    Reason.INSUFFICIENT_STORAGE: (Rule.SCHEDULING_SPACE,),
}
REASONS = {rule: reason for reason, rules in _RULES_BY_REASON.items() for rule in rules}
# Longhorn checks a disk in the order in which Rule lists its rules, so the disk refused by the last rule came closest.
CLOSENESS = {rule: position for position, rule in enumerate(Rule)}


class Refused(Struct, frozen=True):
    """Why a node does not fit; `detail` is a sentence for people, with names and numbers."""

    reason: Reason
    detail: str


def reason_of(refusal: Refusal) -> Refused:
    return Refused(REASONS[refusal.rule], refusal.detail)


def attach_refusal(view: View, classes: VolumeClasses, name: str) -> Refused | None:
    """Returns why a node cannot attach the volumes: it needs a ready Longhorn node with their engines, but no disk."""
    node = view.snapshot.longhorn_nodes.get(name)
    if node is None:
        return Refused(Reason.NOT_A_LONGHORN_NODE, f"there is no nodes.longhorn.io {name}")
    if node.deleting:
        return Refused(Reason.NODE_NOT_READY, f"Longhorn node {name} is being deleted")
    if not node.ready:
        return reason_of(stages.condition_refusal(node, "Ready"))
    for engine in classes.engines:
        refusal = stages.engine_refusal(view.cluster, engine, node)
        if refusal is not None:
            return reason_of(refusal)
    return None


def new_replica_refusal(view: View, name: str) -> Refused | None:
    """Returns why a Longhorn node takes no new replica, whatever its size and class. A node whose eviction is requested
    is refused.
    """
    setting = stages.space_setting_refusal(view.cluster)
    if setting is not None:
        return reason_of(setting)
    if view.snapshot.longhorn_nodes[name].eviction_requested:
        return Refused(Reason.NODE_EVICTING, f"eviction of Longhorn node {name} is requested")
    return None


def unready_volume(view: View, resolution: Resolution) -> Refused | None:
    """Returns why Longhorn attaches one of the existing volumes on no node now."""
    for volume in _in_order(volume for volume in resolution.volumes if volume.bound):
        refusal = volume_validation.readiness_refusal(volume.volume, volume.replicas, view.cluster)
        if refusal is not None:
            return reason_of(refusal)
    return None


def refusal_on_every_node(view: View, resolution: Resolution) -> Refused | None:
    """Returns why Longhorn refuses a local volume on every node, before it looks at any node. Any setting that cannot
    be read is such a reason: its default may be far from what was meant.
    """
    for name in sorted(view.settings.faults):
        return Refused(Reason.BAD_SETTING, str(view.settings.faults[name]))
    for volume in _in_order(resolution.local):
        refusal = placement.cluster_refusal(view.cluster, ReplicaRequest.for_volume(volume.volume))
        if refusal is not None:
            return reason_of(refusal)
    return None


def _in_order(volumes: Iterable[PodVolume]) -> Sequence[PodVolume]:
    # Which of several reasons is returned must not depend on the claims' names.
    return requirements(volumes, ()).volumes


def profile_node(view: View, classes: VolumeClasses, name: str) -> Refused | tuple[OpenDisk, ...]:
    """Returns a node's disks that are open to the classes, the one with most free bytes first, or the reason if the
    node does not fit whatever the sizes.
    """
    refused = attach_refusal(view, classes, name)
    if refused is not None:
        return refused
    if not classes.requests:
        return ()
    refused = new_replica_refusal(view, name)
    if refused is not None:
        return refused
    node = view.snapshot.longhorn_nodes[name]
    masks = [0] * len(node.disks)
    for bit, request in enumerate(classes.requests):
        indexes = _open_to(view, request, node)
        if isinstance(indexes, Refused):
            return indexes
        for index in indexes:
            masks[index] |= 1 << bit
    for bit, request in enumerate(classes.optional, start=len(classes.requests)):
        indexes = _open_to(view, request, node)
        for index in () if isinstance(indexes, Refused) else indexes:
            masks[index] |= 1 << bit
    return _open_disks(view, classes, node, masks)


def _open_to(view: View, request: ReplicaRequest, node: longhorn.Node) -> Refused | list[int]:
    refusal = stages.node_refusal(view.cluster, request, node)
    if refusal is not None:
        return reason_of(refusal)
    indexes: list[int] = []
    refusals: list[Refusal] = []
    for index, disk in enumerate(node.disks):
        refusal = stages.disk_refusal(view.cluster, request, disk)
        if refusal is None:
            indexes.append(index)
        else:
            refusals.append(refusal)
    if indexes:
        return indexes
    if not refusals:
        return Refused(Reason.NO_DISK, f"Longhorn node {node.name} has no disks")
    # The reason is that of the disk that came closest.
    closest = max(refusals, key=lambda refusal: CLOSENESS[refusal.rule])
    return Refused(REASONS[closest.rule], "; ".join(refusal.detail for refusal in refusals))


def _open_disks(
    view: View, classes: VolumeClasses, node: longhorn.Node, masks: list[int]
) -> Refused | tuple[OpenDisk, ...]:
    disks: list[OpenDisk] = []
    covered = 0
    low_disks = []
    every_request = (1 << len(classes.requests)) - 1
    free_space = view.free_space(node.name)
    names = {request.volume.backing_image for request in classes.requests + classes.optional}
    images = [view.snapshot.backing_images[name] for name in sorted(names - {""})]
    for disk, mask in zip(node.disks, masks, strict=True):
        if not mask & every_request:
            continue
        space = free_space[disk.name]
        rule = space_refusal(0, 0, space)
        if rule is None or rule is Rule.SCHEDULING_SPACE:
            covered |= mask
            headroom = space.headroom if classes.rewrites else 0
            copies = tuple((image.name, image.real_size) for image in images if disk.uuid not in image.disks)
            disks.append(OpenDisk(disk.uuid, space.free, headroom, mask, copies, space.uncounted))
        else:
            low_disks.append(space_detail(rule, disk, view.settings, space, longhorn.Volume(name="")))
    if covered & every_request != every_request:
        return Refused(Reason.LOW_AVAILABLE, "; ".join(low_disks))
    disks.sort(key=lambda disk: (-disk.free, -disk.headroom, disk.classes, disk.copies, disk.uncounted, disk.uuid))
    return tuple(disks)
