"""A change that makes a pod fit: what it costs, and what Longhorn's controllers and kube-controller-manager show after it."""

from enum import IntEnum, StrEnum

from scheduler_core.longhorn.node_controller import ROUNDING
from scheduler_core.model import generic, kube, longhorn, quantity
from scheduler_core.model.longhorn import CORDONED, FILESYSTEM
from scheduler_core.predict.predicted_cluster import (
    ChangesByObject,
    PredictedCluster,
    with_disk,
    with_schedulable_condition,
)
from scheduler_core.predict.predicted_replicas import ReplicaMove
from scheduler_core.structs import Struct, replace

_UNSCHEDULABLE_TAINT = "node.kubernetes.io/unschedulable"
_SCHEDULABLE = "Schedulable"


class RemedyKind(StrEnum):
    """What a remedy changes; of equal cost the first kind is preferred."""

    UNCORDON = "uncordon"
    ALLOW_DEGRADED = "allow-degraded"
    SOFTEN_ANTI_AFFINITY = "soften-anti-affinity"
    ALLOW_NODE = "allow-node"
    ALLOW_DISK = "allow-disk"
    TAG_NODE = "tag-node"
    TAG_DISK = "tag-disk"
    LOWER_RESERVE = "lower-reserve"
    FREE_SCHEDULED = "free-scheduled"
    FREE_AVAILABLE = "free-available"
    GROW_DISK = "grow-disk"
    MOVE_REPLICA = "move-replica"

    @property
    def rank(self) -> int:
        return _KINDS.index(self)


class Intervention(IntEnum):
    """How much a step interferes with the cluster, least first."""

    SETTING = 0
    SPACE = 1
    MOVE = 2


_SPACE_KINDS = (
    RemedyKind.LOWER_RESERVE, RemedyKind.FREE_SCHEDULED, RemedyKind.FREE_AVAILABLE, RemedyKind.GROW_DISK
)  # fmt: skip
_INTERVENTIONS = {**dict.fromkeys(_SPACE_KINDS, Intervention.SPACE), RemedyKind.MOVE_REPLICA: Intervention.MOVE}
_KINDS = tuple(RemedyKind)


class Cost(Struct, frozen=True, order=True):
    """The cost of a remedy. Remedies are compared field by field, in this order."""

    intervention: Intervention
    size: int  # bytes that are freed, added or copied
    tags: int  # how many tags are added


class Step(Struct, frozen=True):
    """One change of the cluster; a remedy is one after which a pod fits."""

    kind: RemedyKind
    node: str
    disk: str = ""  # its name, "" for a change of the node
    size: int = 0  # bytes to free, to add or to copy
    tags: tuple[str, ...] = ()  # the tags that are added
    text: str = ""  # the change as a part of a sentence
    move: ReplicaMove | None = None  # of the kind `MOVE_REPLICA`; `node` and `disk` are what the replica leaves
    setting: str = ""  # Longhorn's setting that becomes true; `node` is "" then

    @property
    def cost(self) -> Cost:
        """What the change costs, least interference with the cluster first."""
        return Cost(_INTERVENTIONS.get(self.kind, Intervention.SETTING), self.size, len(self.tags))

    @property
    def order(self) -> tuple[object, ...]:
        """Sorts remedies: by cost, then by kinds, nodes and disks."""
        return self.cost, self.kind.rank, self.node, self.disk, self.tags


def exact_bytes(size: int) -> str:
    """Returns a size for people. It is in bytes where a unit would round it.

    >>> exact_bytes(2 * 1024**3), exact_bytes(2 * 1024**3 + 1)
    ('2Gi', '2147483649 bytes (2Gi + 1)')
    """
    text = quantity.format_bytes(size)
    return text if "+" not in text and quantity.parse_bytes(text) == size else f"{size} bytes ({text})"


def move_step(move: ReplicaMove) -> Step:
    origin = "/".join(move.origin)
    text = f"move replica {move.replica} off disk {origin} ({exact_bytes(move.copied_bytes)} are copied)"
    return Step(RemedyKind.MOVE_REPLICA, *move.origin, move.copied_bytes, text=text, move=move)


def step_changes(cluster: PredictedCluster, step: Step) -> tuple[ChangesByObject, generic.Node | None]:
    """Returns the objects that a step changes, and a Kubernetes node among them as kube-scheduler's filters read it."""
    if step.setting:
        return {("settings", step.setting): "true"}, None
    name = step.node
    objects: ChangesByObject = {}
    uncordoned: generic.Node | None = None
    node = cluster.snapshot.longhorn_nodes.get(name)
    if step.kind is RemedyKind.UNCORDON:
        kube_node = cluster.snapshot.nodes.get(name)
        if kube_node is not None:
            objects["nodes", name] = replace(kube_node, unschedulable=False)
        if name in cluster.scheduling.nodes:
            stored = cluster.scheduling.nodes[name].node
            # The node lifecycle controller adds the taint to cordoned nodes.
            taints = tuple(taint for taint in stored.taints if taint.key != _UNSCHEDULABLE_TAINT)
            uncordoned = replace(stored, unschedulable=False, taints=taints)
    if node is not None:
        objects["longhorn_nodes", name] = _change_node(cluster, node, step)
    return objects, uncordoned


def _change_node(cluster: PredictedCluster, node: longhorn.Node, step: Step) -> longhorn.Node:
    if step.kind is RemedyKind.UNCORDON:
        if kube.condition(node.conditions, _SCHEDULABLE).reason != CORDONED:
            return node
        others = tuple(entry for entry in node.conditions if entry.type != _SCHEDULABLE)
        return replace(node, conditions=(*others, kube.Condition(_SCHEDULABLE, "True")))
    if step.kind is RemedyKind.ALLOW_NODE:
        return replace(node, allow_scheduling=True, eviction_requested=False)
    if step.kind is RemedyKind.TAG_NODE:
        return replace(node, tags=(*node.tags, *step.tags))
    disk = next(disk for disk in node.disks if disk.name == step.disk)
    if step.kind is RemedyKind.ALLOW_DISK:
        return with_disk(node, replace(disk, allow_scheduling=True, eviction_requested=False))
    if step.kind is RemedyKind.TAG_DISK:
        return with_disk(node, replace(disk, tags=(*disk.tags, *step.tags)))
    return with_disk(node, with_schedulable_condition(cluster, with_more_space(disk, step.kind, step.size)))


def with_more_space(disk: longhorn.Disk, kind: RemedyKind, size: int) -> longhorn.Disk:
    """Returns the disk after `size` bytes are freed or added, with its condition as it was."""
    if kind is RemedyKind.LOWER_RESERVE:
        return replace(disk, storage_reserved=disk.storage_reserved - size)
    if kind is RemedyKind.FREE_SCHEDULED:
        return replace(disk, storage_scheduled=disk.storage_scheduled - size)
    available = disk.storage_available + size
    if disk.spec_type == FILESYSTEM:
        # As Longhorn's disk monitor rounds it, which a status that was written by hand may not be.
        available = max(disk.storage_available, available - available % ROUNDING)
    if kind is RemedyKind.FREE_AVAILABLE:
        return replace(disk, storage_available=available)
    return replace(disk, storage_maximum=disk.storage_maximum + size, storage_available=available)
