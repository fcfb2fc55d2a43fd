"""The two stages of Longhorn's decision about a replica: which nodes may take it, whatever their disks, and which disks of a
node may (scheduler/replica_scheduler.go).

A node can run replicas if its instance managers, engine images and the v2 switch say so (datastore/longhorn.go). A disk whose eviction
is requested takes no replica by Longhorn's own rules (`disk_refusal`). Longhorn's scheduler does not read the node's request, which its
webhook accepts only for nodes without scheduling; it counts because Longhorn's scheduler-extender proposal says so (Filter, step 4).
"""

from collections.abc import Callable
from itertools import product

from scheduler_core.longhorn.cluster import Cluster
from scheduler_core.longhorn.refusal_rules import (
    Refusal,
    Rule,
    missing_backing_image,
    selector_refusal,
    setting_refusal,
)
from scheduler_core.longhorn.replica_request import ReplicaRequest, is_v2, source_missing, sources
from scheduler_core.longhorn.settings import MANAGERS_FOLLOW_NODE_SELECTOR, TERMINATING_V2_MANAGER_NOT_READY
from scheduler_core.longhorn.space import disk_space, pressure_detail, space_detail, space_refusal
from scheduler_core.model import kube, longhorn, quantity
from scheduler_core.structs import replace

RUNNING = "running"
DISABLE_V2_LABEL = "node.longhorn.io/disable-v2-data-engine"


def excludes_instance_manager(cluster: Cluster, node: str) -> bool:
    """Whether Longhorn makes no instance manager on a node, because the setting's labels do not match.
    node_controller.go: syncInstanceManagers, by `system-managed-components-node-selector`. Longhorn's scheduler reads
    instance managers only, so one that runs there nevertheless counts.
    """
    selector = cluster.settings.system_managed_components_node_selector
    if not selector or not cluster.settings.has_rule_since(MANAGERS_FOLLOW_NODE_SELECTOR):
        return False
    kube_node = cluster.kube_nodes.get(node)
    return kube_node is None or not selector.items() <= kube_node.labels.items()


def instance_manager_ready(cluster: Cluster, data_engine: str, node: str) -> bool:
    """Whether an instance manager can take a replica (CheckInstanceManagersReadiness). v2: any running manager; from
    v1.13.0 on, one that is not terminating. v1: the manager with the default image, running or terminating, because a
    successor follows; not where none will. Longhorn looks at a random one of several (`one_manager_per_node` lists the
    possibilities); here all must be ready.
    """
    excluded = excludes_instance_manager(cluster, node)
    if cluster.instance_managers is None:
        return not excluded
    managers = cluster.instance_managers.get((node, data_engine), ())
    if is_v2(data_engine):
        strict = cluster.settings.has_rule_since(TERMINATING_V2_MANAGER_NOT_READY)
        return any(manager.state == RUNNING and not (strict and manager.deleting) for manager in managers)
    if excluded:
        return instance_manager_running(cluster, data_engine, node)
    default = _with_default_image(cluster, managers)
    return bool(default) and all(manager.state == RUNNING or manager.deleting for manager in default)


def one_manager_per_node(cluster: Cluster) -> list[Cluster]:
    """The clusters Longhorn may see: of several v1 instance managers with the default image it picks one at random."""
    managers = cluster.instance_managers
    if managers is None:
        return [cluster]
    v1 = {key: _with_default_image(cluster, group) for key, group in sorted(managers.items()) if not is_v2(key[1])}
    choices = {key: [(manager,) for manager in group] for key, group in v1.items() if len(group) > 1}
    picks = (dict(zip(choices, pick, strict=True)) for pick in product(*choices.values()))
    return [replace(cluster, instance_managers={**managers, **pick}) for pick in picks]


def _with_default_image(
    cluster: Cluster, managers: tuple[longhorn.InstanceManager, ...]
) -> tuple[longhorn.InstanceManager, ...]:
    image = cluster.settings.default_instance_manager_image
    return tuple(manager for manager in managers if image is None or manager.image in ("", image))


def engine_image_ready(cluster: Cluster, data_engine: str, image: str, node: str) -> bool:
    """Whether an engine image is usable on a node (CheckDataEngineImageReadiness). v2 needs none. An image that is
    being deployed counts on the nodes that are in its map already. "" is the default image, any image if the default is
    unknown.
    """
    if is_v2(data_engine) or cluster.engine_images is None:
        return True
    effective_image = image or cluster.settings.default_engine_image
    images = cluster.engine_images
    groups = images.values() if effective_image is None else (images.get(effective_image, ()),)
    entries = (entry for group in groups for entry in group)
    return any(entry.state in ("deployed", "deploying") and node in entry.nodes for entry in entries)


def instance_manager_running(cluster: Cluster, data_engine: str, node: str) -> bool:
    """Whether a failed replica's instance manager is running (GetInstanceManagerByInstanceRO). One that is being
    deleted does not count. Longhorn checks it for a replica that may be reused.
    """
    if cluster.instance_managers is None:
        return True
    managers = cluster.instance_managers.get((node, data_engine), ())
    default = managers if is_v2(data_engine) else _with_default_image(cluster, managers)
    return bool(default) and all(manager.state == RUNNING and not manager.deleting for manager in default)


def stays(replica: longhorn.Replica) -> bool:
    """Whether a placed replica stays on its disk: active, neither evicted nor deleted."""
    placed = replica.node_id != "" and replica.disk_id != ""
    return placed and replica.active and not replica.eviction_requested and not replica.deleting


NodeRule = Callable[[Cluster, ReplicaRequest, longhorn.Node], Refusal | None]


def node_refusal(cluster: Cluster, request: ReplicaRequest, node: longhorn.Node) -> Refusal | None:
    """The first rule that refuses a node, or None. The order is ListSchedulableNodes, linked clone, getNodeCandidates,
    tags. Anti-affinity is not checked here: it needs all nodes (`placement`).
    """
    return (
        schedulable_refusal(cluster, request, node)
        or linked_clone_refusal(cluster, request, node)
        or candidate_refusal(cluster, request, node)
        or node_tag_refusal(cluster, request, node)
    )


def schedulable_refusal(cluster: Cluster, request: ReplicaRequest, node: longhorn.Node) -> Refusal | None:
    """Why ListSchedulableNodes leaves a node out. Longhorn does not read node.spec.evictionRequested here."""
    if node.deleting:
        return Refusal(Rule.NODE_DELETING, f"node {node.name} is being deleted")
    if not node.ready:
        return condition_refusal(node, "Ready")
    if not node.schedulable:
        return condition_refusal(node, "Schedulable")
    if not node.allow_scheduling:
        return Refusal(Rule.NODE_SCHEDULING_DISABLED, f"node {node.name} has allowScheduling false")
    return _v2_refusal(cluster, request.volume.data_engine, node)


def condition_refusal(node: longhorn.Node, kind: str) -> Refusal:
    """Why a condition of a node that is not True refuses the node."""
    entry = kube.condition(node.conditions, kind)
    if entry.reason == longhorn.CORDONED:
        detail = f"node {node.name} is cordoned, and disable-scheduling-on-cordoned-node is true"
        return Refusal(Rule.NODE_NOT_SCHEDULABLE, detail)
    because = entry.reason or entry.message
    # The node controller writes False for a reason; a node that it has not seen yet has Unknown or no condition.
    rule = Rule.NODE_NOT_READY_YET if entry.status == "Unknown" else Rule.NODE_NOT_READY
    return Refusal(rule, f"node {node.name} has condition {kind}={entry.status}" + (because and f" ({because})"))


def _v2_refusal(cluster: Cluster, data_engine: str, node: longhorn.Node) -> Refusal | None:
    """Why v2 volumes cannot use a node (IsV2DataEngineDisabledForNode)."""
    kube_node = cluster.kube_nodes.get(node.name)
    if is_v2(data_engine) and (kube_node is None or kube_node.labels.get(DISABLE_V2_LABEL) == "true"):
        return Refusal(Rule.V2_DISABLED, f"node {node.name} has the v2 data engine disabled, or no Kubernetes node")
    return None


def linked_clone_refusal(cluster: Cluster, request: ReplicaRequest, node: longhorn.Node) -> Refusal | None:
    """Why FindDiskCandidates leaves a node out: linked clone."""
    if not request.linked_clone:
        return None
    if source_missing(cluster, request):
        return Refusal(Rule.LINKED_CLONE_SOURCE_MISSING, f"source replica {request.linked_clone_source} does not exist")
    if node.name not in sources(cluster, request).nodes:
        return Refusal(Rule.LINKED_CLONE, f"node {node.name} has no healthy replica of the cloned volume")
    return None


def hard_affinity_refusal(_cluster: Cluster, request: ReplicaRequest, node: longhorn.Node) -> Refusal | None:
    """Why getNodeCandidates leaves a node out: hard node affinity."""
    if request.hard_node_affinity in ("", node.name):
        return None
    return Refusal(Rule.HARD_NODE_AFFINITY, f"the replica must be on node {request.hard_node_affinity}")


def topology_refusal(_cluster: Cluster, request: ReplicaRequest, node: longhorn.Node) -> Refusal | None:
    """Why getNodeCandidates leaves a node out: volume.spec.topologyRequirement."""
    terms = request.volume.topology_requirement
    if not terms or any(each.zone in ("", node.zone) and each.region in ("", node.region) for each in terms):
        return None
    return Refusal(
        Rule.TOPOLOGY, f"node {node.name} (zone {node.zone!r}, region {node.region!r}) matches no topology term"
    )


def engine_refusal(cluster: Cluster, request: ReplicaRequest, node: longhorn.Node) -> Refusal | None:
    """Why getNodeCandidates leaves a node out: engine readiness. The replica's data engine decides, not the volume's."""
    refusal = _v2_refusal(cluster, request.data_engine, node)
    if refusal is not None:
        return refusal
    if not instance_manager_ready(cluster, request.data_engine, node.name):
        because = ""
        if excludes_instance_manager(cluster, node.name):
            because = ": the setting system-managed-components-node-selector excludes the node"
        detail = f"node {node.name} has no ready {request.data_engine} instance manager{because}"
        return Refusal(Rule.INSTANCE_MANAGER, detail)
    if not engine_image_ready(cluster, request.data_engine, request.image, node.name):
        image = request.image or "the default engine image"
        return Refusal(Rule.ENGINE_IMAGE, f"node {node.name} does not have {image} deployed")
    return None


def candidate_refusal(cluster: Cluster, request: ReplicaRequest, node: longhorn.Node) -> Refusal | None:
    """The first refusal by getNodeCandidates, in Longhorn's order, or None."""
    return (
        hard_affinity_refusal(cluster, request, node)
        or topology_refusal(cluster, request, node)
        or engine_refusal(cluster, request, node)
    )


def node_tag_refusal(cluster: Cluster, request: ReplicaRequest, node: longhorn.Node) -> Refusal | None:
    """Why the tags keep a node out of the tiers (getDiskCandidates). The volume's node selector decides first, then the
    backing image's. Longhorn reports nothing about either. Shards go to nodes with any tags (ScheduleShard).
    """
    if request.volume.data_layout is not None:
        return None
    rules = (Rule.NODE_TAGS, Rule.BACKING_IMAGE_NODE_TAGS)
    return _tag_refusal(cluster, request, node, rules, cluster.settings.allow_empty_node_selector_volume)


def _tag_refusal(
    cluster: Cluster,
    request: ReplicaRequest,
    tagged: longhorn.Node | longhorn.Disk,
    rules: tuple[Rule, Rule],
    allow_empty: bool,  # noqa: FBT001 # as in Longhorn
) -> Refusal | None:
    def selector(owner: longhorn.Volume | longhorn.BackingImage) -> tuple[str, ...]:
        return owner.node_selector if isinstance(tagged, longhorn.Node) else owner.disk_selector

    name = request.volume.backing_image
    refusal = selector_refusal(tagged, selector(request.volume), "the volume", rules[0], allow_empty=allow_empty)
    if refusal is not None or not name:
        return refusal
    image = cluster.backing_image(name)
    if image is None:
        return missing_backing_image(name)
    return selector_refusal(tagged, selector(image), f"backing image {name}", rules[1], allow_empty=allow_empty)


DISK_PRESSURE = "DiskPressure"
EXT_LIMIT = 16 * 1024**4
XFS_LIMIT = 2**63 - 1


def disk_refusal(cluster: Cluster, request: ReplicaRequest, disk: longhorn.Disk) -> Refusal | None:
    """The first rule that refuses a disk, or None. Space and anti-affinity are not checked."""
    return prefilter_refusal(cluster, request, disk) or eligibility_refusal(cluster, request, disk)


def disk_and_space_refusal(
    cluster: Cluster, request: ReplicaRequest, disk: longhorn.Disk, uncounted: int = 0
) -> Refusal | None:
    """The first rule that refuses a disk, space included, or None; anti-affinity is not checked."""
    # `uncounted` bytes are promised on the disk but not in its storageScheduled yet.
    return disk_refusal(cluster, request, disk) or space_stage_refusal(cluster, request, disk, uncounted)


def space_setting_refusal(cluster: Cluster) -> Refusal | None:
    names = ("storage-over-provisioning-percentage", "storage-minimal-available-percentage")
    return setting_refusal(cluster.settings, names)


def prefilter_refusal(cluster: Cluster, request: ReplicaRequest, disk: longhorn.Disk) -> Refusal | None:
    """Why FindDiskCandidates silently skips a disk, or None. Longhorn never reads the disk's Ready condition here."""
    if not disk.in_status:
        return Refusal(Rule.DISK_NOT_IN_STATUS, f"disk {disk.name} has no status yet")
    # A replica on it would have spec.diskID "", which is a replica without a place.
    if not disk.uuid:
        return Refusal(Rule.DISK_NOT_IN_STATUS, f"disk {disk.name} has no UUID yet")
    if not disk.in_spec:
        return Refusal(Rule.DISK_NOT_IN_SPEC, f"disk {disk.name} was removed from the node's spec")
    # Longhorn checks the two in one condition, and accepts a requested eviction only together with allowScheduling false.
    if disk.eviction_requested:
        return Refusal(Rule.DISK_EVICTION_REQUESTED, f"disk {disk.name} is being evicted (evictionRequested true)")
    if not disk.allow_scheduling:
        return Refusal(Rule.DISK_SCHEDULING_DISABLED, f"disk {disk.name} has allowScheduling false")
    if not disk.schedulable:
        entry = kube.condition(disk.conditions, "Schedulable")
        text = f"disk {disk.name} has condition Schedulable={entry.status}" + (entry.reason and f" ({entry.reason})")
        if entry.reason == DISK_PRESSURE:
            return Refusal(Rule.DISK_PRESSURE, f"{text}: {pressure_detail(disk, cluster.settings)}")
        return Refusal(Rule.DISK_NOT_SCHEDULABLE, text)
    if request.linked_clone and disk.uuid not in sources(cluster, request).disks:
        return Refusal(Rule.LINKED_CLONE_DISK, f"disk {disk.name} has no healthy replica of the cloned volume")
    return None


def eligibility_refusal(cluster: Cluster, request: ReplicaRequest, disk: longhorn.Disk) -> Refusal | None:
    """Why IsDiskEligibleForVolume refuses a disk; `space_stage_refusal` checks its space later."""
    # The volume's disk selector decides first, then the backing image's.
    rules = (Rule.DISK_TAGS, Rule.BACKING_IMAGE_DISK_TAGS)
    refusal = setting_refusal(cluster.settings, ("allow-empty-disk-selector-volume",))
    # v2 volumes need block disks, all others file systems, as the disk's spec says.
    kind = longhorn.BLOCK if is_v2(request.volume.data_engine) else longhorn.FILESYSTEM
    if refusal is None and disk.spec_type != kind:
        return Refusal(Rule.DISK_TYPE, f"disk {disk.name} is of type {disk.spec_type!r}, the volume needs {kind}")
    return (
        refusal
        or _size_refusal(request, disk)
        or _tag_refusal(cluster, request, disk, rules, cluster.settings.allow_empty_disk_selector_volume)
    )


def _size_refusal(request: ReplicaRequest, disk: longhorn.Disk) -> Refusal | None:
    """Why the volume is too large for a file system (datastore: IsSupportedVolumeSize). v2 has no limit."""
    limit = file_size_limit(disk.filesystem_type)
    if is_v2(request.volume.data_engine) or limit is None or request.volume.size < limit:
        return None
    size = quantity.format_bytes(request.volume.size)
    text = f"{disk.filesystem_type} cannot hold a file of {size}, only of less than {quantity.format_bytes(limit)}"
    return Refusal(Rule.FILESYSTEM_LIMIT, f"disk {disk.name}: {text}")


def file_size_limit(filesystem: str) -> int | None:
    """The size in bytes that no file reaches, None if it is unknown (datastore: IsSupportedVolumeSize)."""
    if filesystem.startswith("ext"):
        return EXT_LIMIT
    return XFS_LIMIT if filesystem == "xfs" else None


def space_stage_refusal(
    cluster: Cluster, request: ReplicaRequest, disk: longhorn.Disk, uncounted: int = 0
) -> Refusal | None:
    """Why IsSchedulableToDisk refuses a disk. A percentage that does not parse refuses it, too."""
    rule = space_stage_rule(cluster, request, disk, uncounted)
    if rule is None or rule is Rule.SETTING_FAULT:
        return space_setting_refusal(cluster)
    space = disk_space(disk, cluster.settings, uncounted)
    return Refusal(rule, space_detail(rule, disk, cluster.settings, space, request.volume))


def space_stage_rule(cluster: Cluster, request: ReplicaRequest, disk: longhorn.Disk, uncounted: int = 0) -> Rule | None:
    """The rule by which `space_stage_refusal` refuses a disk, without the numbers. A placement looks at every disk, and
    computing the numbers takes longer.
    """
    refusal = space_setting_refusal(cluster)
    if refusal is not None:
        return refusal.rule
    space = disk_space(disk, cluster.settings, uncounted)
    return space_refusal(request.volume.size, request.volume.actual_size, space)
