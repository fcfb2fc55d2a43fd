"""The cluster that a prediction changes: the state of decisions, and what kube-scheduler's own filters read.

Longhorn's status shows a placement later than it happens. A `Replica` object has its node and disk at once; `storageScheduled` and
`scheduledReplica` of the node's status follow when its longhorn-manager syncs the node (`node_controller.go`). Until then Longhorn
counts only the replicas of the same volume in addition, so that several volumes may be placed on the same free bytes.
"""

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any

from msgspec import structs
from rpds import HashTrieMap

from scheduler_core.cluster.update import Changes, build_view
from scheduler_core.decide.kube_scheduler_filters import PodClaims, VolumeAffinity, pod_claims
from scheduler_core.errors import CoreError
from scheduler_core.evaluation.cluster_state import ClusterState, ProfileCache
from scheduler_core.generic.cluster_state import GenericClusterState
from scheduler_core.longhorn import node_controller, replenish
from scheduler_core.model import generic, kube, longhorn
from scheduler_core.model.constraints import NodeSelectorTerm, Operator, Requirement
from scheduler_core.model.snapshot import Snapshot
from scheduler_core.structs import Struct, replace
from scheduler_core.volumes.resolve import NO_DRIVER, lacks_driver

ChangesByObject = dict[tuple[str, str | tuple[str, str]], object | None]
"""The changes of one step, as `ClusterState.update` takes them."""

DAEMON_SET = "DaemonSet"
STATEFUL_SET = "StatefulSet"
# Their pods belong to one node: they end with it, and run nowhere else.
NODE_BOUND_OWNERS = frozenset({DAEMON_SET, "Node", "InstanceManager", "BackingImageManager"})
SHARE_MANAGER = "ShareManager"
_DISK_SCHEDULES = "what-if cannot predict a cluster whose disks are allocated through DiskSchedules"


class WhatIfError(CoreError):
    """A change that names a missing object, or cannot be predicted."""


class _LatestState:
    """A state, made when it is read: changes that follow one another are then made together."""

    __slots__ = ("changes", "incomplete", "state")

    def __init__(self, state: ClusterState, changes: Changes | None = None) -> None:
        self.state = state  # before the changes
        self.changes = changes
        self.incomplete: frozenset[str] | None = None

    def read(self) -> ClusterState:
        if self.changes:
            self.state = self.state.update(self.changes, self.state.view.cluster.now)
            self.changes = None
        return self.state


class PredictedCluster:
    """One version of the predicted cluster. Every change makes the next version by the update that production uses."""

    __slots__ = ("_latest", "affinities", "scheduling")

    def __init__(
        self,
        state: ClusterState | _LatestState,
        scheduling: GenericClusterState,
        affinities: Mapping[str, VolumeAffinity],
    ) -> None:
        self._latest = state if isinstance(state, _LatestState) else _LatestState(state)
        self.scheduling = scheduling  # what kube-scheduler's filters read
        self.affinities = affinities  # the required node affinity of PersistentVolumes, by name

    @property
    def state(self) -> ClusterState:
        return self._latest.read()

    @property
    def snapshot(self) -> Snapshot:
        return self.state.view.snapshot

    @property
    def node_names(self) -> tuple[str, ...]:
        """The nodes that pods may run on, in order; without Kubernetes nodes, Longhorn's that are neither cordoned nor
        gone.
        """
        if self.scheduling.node_names:
            return self.scheduling.node_names
        snapshot = self.snapshot
        cordoned = {name for name, node in snapshot.nodes.items() if node.unschedulable}
        return tuple(
            name
            for name, node in self.state.view.cluster.nodes.items()
            if name not in cordoned
            and not any(condition.reason == node_controller.NODE_GONE for condition in node.conditions)
        )

    @property
    def incomplete_volumes(self) -> frozenset[str]:
        """Names of attached volumes that have fewer placed replicas than they should, counted once for all orders."""
        if self._latest.incomplete is None:
            replicas = self.state.view.cluster.replicas_by_volume
            incomplete: list[str] = []
            for volume in self.snapshot.volumes.values():
                if volume.node_id:
                    own = replicas.get(volume.name) or ()
                    placed = [each for each in own if each.node_id and replenish.is_usable(volume, each)]
                    incomplete += [volume.name] if len(placed) < volume.number_of_replicas else []
            self._latest.incomplete = frozenset(incomplete)
        return self._latest.incomplete

    def update(self, changes: Changes) -> "PredictedCluster":
        if not changes:
            return self
        latest = _LatestState(self._latest.state, {**(self._latest.changes or {}), **changes})
        return PredictedCluster(latest, self.scheduling, self.affinities)

    def later(self, after: timedelta) -> "PredictedCluster":
        state = self.state.update({}, self.state.view.cluster.now + after)
        return PredictedCluster(state, self.scheduling, self.affinities)

    def with_scheduling(self, scheduling: GenericClusterState) -> "PredictedCluster":
        return PredictedCluster(self._latest, scheduling, self.affinities)

    def changes_since(self, before: "PredictedCluster") -> Changes | None:
        """Returns the changes since an earlier version whose state was read, None if another state was read meanwhile."""
        return (self._latest.changes or {}) if self._latest.state is before.state else None

    def with_pod(self, pod: kube.Pod) -> "PredictedCluster":
        """Adds or replaces a pod, on its node or waiting."""
        key = pod.namespaced_name
        return self.update({("pods", key): pod}).with_scheduling(self.scheduling.without_pod(key).with_pod(pod))

    def without_pod(self, key: generic.PodKey) -> "PredictedCluster":
        return self.update({("pods", key): None}).with_scheduling(self.scheduling.without_pod(key))

    def volumes_of(self, pod: kube.Pod) -> list[longhorn.Volume]:
        """Returns the existing Longhorn volumes of a pod, in the order of its claims; a share-manager has the volume
        that it shares.
        """
        shared = self.shared_volume(pod)
        volumes = [shared] if shared is not None else []
        for mount in pod.volumes:
            claim = self.snapshot.claims.get((pod.namespace, mount.claim))
            volume = self.volume_of_claim(claim) if claim is not None else None
            if volume is not None and volume not in volumes:
                volumes.append(volume)
        return volumes

    def pods_by_volume(self) -> dict[str, tuple[str, ...]]:
        """Returns the names of the live pods that use each volume."""
        users: dict[str, tuple[str, ...]] = {}
        for key, pod in sorted(self.snapshot.pods.items()):
            for volume in self.volumes_of(pod) if pod.live else ():
                users[volume.name] = (*users.get(volume.name, ()), "/".join(key))
        return users

    def shared_volume(self, pod: kube.Pod) -> longhorn.Volume | None:
        """Returns the volume that a pod shares as its share-manager, None for other pods."""
        if pod.owner != SHARE_MANAGER:
            return None
        return self.snapshot.volumes.get(pod.name.removeprefix("share-manager-"))

    def volume_of_claim(self, claim: kube.Claim) -> longhorn.Volume | None:
        persistent_volume = self.snapshot.persistent_volumes.get(claim.spec.volume_name)
        return None if persistent_volume is None else self.snapshot.volumes.get(persistent_volume.handle)

    def missing_driver(self, key: generic.PodKey) -> str:
        """Returns why a bound pod's volumes are not attached on its node, "" if they are."""
        pod = self.snapshot.pods[key]
        lacks = lacks_driver(self.snapshot, pod.node_name) and self.volumes_of(pod)
        return f"{NO_DRIVER} ({pod.node_name})" if lacks else ""

    def pod_claims(self, pod: kube.Pod) -> PodClaims:
        """Returns what kube-scheduler's filters read of a pod's claims; those that do not wait for a pod are
        provisioned.
        """
        claims = pod_claims(pod, self.snapshot, self.affinities, provisioned=True)
        # The node affinity of a volume that is tied to a zone or region follows from the volume, which may be newer
        # than the cluster's objects.
        tied = (volume.topology_requirement for volume in self.volumes_of(pod) if volume.topology_requirement)
        terms = (tuple(map(_node_selector_term, requirement)) for requirement in tied)
        return replace(claims, affinities=(*claims.affinities, *terms))

    def disk_of(self, replica: longhorn.Replica) -> tuple[longhorn.Node, longhorn.Disk] | None:
        """Returns the node and disk of a placed replica, None if either is gone."""
        node = self.state.view.cluster.nodes.get(replica.node_id)
        disks = node.disks if node is not None else ()
        disk = next((disk for disk in disks if disk.uuid == replica.disk_id), None)
        return None if node is None or disk is None else (node, disk)


def _node_selector_term(term: longhorn.TopologyTerm) -> NodeSelectorTerm:
    labels = ((node_controller.ZONE_LABEL, term.zone), (node_controller.REGION_LABEL, term.region))
    return NodeSelectorTerm(tuple(Requirement(key, Operator.IN, frozenset({value})) for key, value in labels if value))


def predicted_state(snapshot: Snapshot, now: datetime) -> ClusterState:
    """Returns the state of a snapshot that changes can be applied to. Raises a WhatIfError if the snapshot's disks are
    allocated through DiskSchedules, which are not predicted.
    """
    if snapshot.disk_schedules:
        raise WhatIfError(_DISK_SCHEDULES)
    state = persistent_state(snapshot, now)
    # Derived once, so that every order's updates take it over.
    _ = state.demand
    return state


def persistent_state(snapshot: Snapshot, now: datetime) -> ClusterState:
    """Returns the state of a snapshot, whose updates share unchanged values."""
    objects = structs.asdict(snapshot)
    persistent: dict[str, Any] = {
        name: None if value is None else HashTrieMap(value) for name, value in objects.items()
    }
    return ClusterState.of(build_view(Snapshot(**persistent), now, 0))


def cluster_without_scheduling(state: ClusterState) -> PredictedCluster:
    """Returns a cluster with no more than decisions read, in which kube-scheduler's own filters refuse nothing but
    cordoned nodes. Raises a WhatIfError if the cluster's disks are allocated through DiskSchedules, which are not
    predicted.
    """
    snapshot = state.view.snapshot
    if snapshot.disk_schedules:
        raise WhatIfError(_DISK_SCHEDULES)
    # The caches of a running program are for one course of versions only, so the cluster has its own.
    own_state = ClusterState(state.view, ProfileCache(state.view), state.demand)
    # The pods were read without the labels by which PodDisruptionBudgets select them.
    budgets: ChangesByObject = {("disruption_budgets", key): None for key in snapshot.disruption_budgets}
    return PredictedCluster(own_state, GenericClusterState(), {}).update(budgets)


def with_disk(node: longhorn.Node, disk: longhorn.Disk) -> longhorn.Node:
    disks = {entry.name: entry for entry in node.disks} | {disk.name: disk}
    return replace(node, disks=tuple(disks[name] for name in sorted(disks)))


def list_replica(
    cluster: PredictedCluster, node: longhorn.Node, disk: longhorn.Disk, name: str, size: int
) -> longhorn.Node:
    """Returns the node with a replica of `size` bytes listed on the disk."""
    before = disk.scheduled_replicas.get(name, 0)
    listed = {key: entry for key, entry in disk.scheduled_replicas.items() if key != name}
    if size:
        listed[name] = size
    # None of the disk's other entries change, so a status that the snapshot does not explain stays.
    changed = replace(disk, scheduled_replicas=listed, storage_scheduled=max(0, disk.storage_scheduled + size - before))
    return with_disk(node, with_schedulable_condition(cluster, changed))


def with_schedulable_condition(cluster: PredictedCluster, disk: longhorn.Disk) -> longhorn.Disk:
    if not disk.ready:
        return disk
    condition = node_controller.disk_schedulable_condition(cluster.state.view.cluster, disk)
    return with_conditions(disk, (condition,))


def with_conditions(disk: longhorn.Disk, conditions: Iterable[kube.Condition]) -> longhorn.Disk:
    by_type = {entry.type: entry for entry in (*disk.conditions, *conditions)}
    return replace(disk, conditions=tuple(by_type.values()))


class StatusChange(Struct, frozen=True):
    """What a node's status does not show yet: the difference of two versions of the status."""

    before: longhorn.Node
    after: longhorn.Node


def hide_changes(
    before: PredictedCluster, after: PredictedCluster
) -> tuple[PredictedCluster, tuple[StatusChange, ...]]:
    """Returns the later cluster with every Longhorn node's earlier status, and what that leaves out."""
    earlier = before.snapshot.longhorn_nodes
    changes = after.changes_since(before)
    later: Iterable[object] = (
        after.snapshot.longhorn_nodes.values()
        if changes is None
        else (value for (kind, _), value in changes.items() if kind == "longhorn_nodes")
    )
    hidden = tuple(
        StatusChange(earlier[node.name], node)
        for node in later
        if isinstance(node, longhorn.Node) and node.name in earlier and earlier[node.name] is not node
    )
    statuses: ChangesByObject = {("longhorn_nodes", change.before.name): change.before for change in hidden}
    if changes is None:
        return after.update(statuses), hidden
    shown = {key: value for key, value in changes.items() if key not in statuses}
    return before.update(shown).with_scheduling(after.scheduling), hidden


def show_change(cluster: PredictedCluster, change: StatusChange) -> PredictedCluster:
    """Returns the cluster whose status shows the change, too; what the status shows already stays."""
    node = cluster.snapshot.longhorn_nodes.get(change.before.name)
    if node is None:
        return cluster
    earlier = {disk.name: disk for disk in change.before.disks}
    later = {disk.name: disk for disk in change.after.disks}
    for disk in node.disks:
        before, after = earlier.get(disk.name), later.get(disk.name)
        if before is not None and after is not None and before != after:
            node = with_disk(node, with_schedulable_condition(cluster, _add_difference(disk, before, after)))
    return cluster.update({("longhorn_nodes", node.name): node})


def _add_difference(disk: longhorn.Disk, before: longhorn.Disk, after: longhorn.Disk) -> longhorn.Disk:
    kept = {
        name: size
        for name, size in disk.scheduled_replicas.items()
        if name in after.scheduled_replicas or name not in before.scheduled_replicas
    }
    added = {
        name: size for name, size in after.scheduled_replicas.items() if before.scheduled_replicas.get(name) != size
    }
    scheduled = disk.storage_scheduled + after.storage_scheduled - before.storage_scheduled
    available = disk.storage_available + after.storage_available - before.storage_available
    return replace(
        disk,
        scheduled_replicas=kept | added,
        storage_scheduled=max(0, scheduled),
        storage_available=min(disk.storage_maximum, max(0, available)),
    )
