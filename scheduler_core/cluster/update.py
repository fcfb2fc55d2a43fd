"""Makes the next view from the previous one and the changes, at a cost that follows the changes.

Data flow: changes by (field of Snapshot, key) → changes that make no difference are dropped → each kind updates the indexes it
affects → disks whose replicas or status changed are evaluated again → a new View, and the Longhorn nodes whose disk profiles may
have changed. `View.of` on the same objects returns an equal view.

A change of Longhorn's settings or of a backing image concerns every disk. It is rare, so the whole view is then built again.
"""

from collections.abc import Mapping
from copy import copy
from datetime import datetime
from typing import Any, TypeVar

from rpds import HashTrieMap

from scheduler_core.cluster.free_space import FreeSpace, count_growth, free_space_of, requested_size, unlisted_replicas
from scheduler_core.cluster.view import CLUSTER_GROUPINGS, GROUPINGS, View, count_to_schedule, default_class, put
from scheduler_core.convert.snapshot_kinds import Key
from scheduler_core.longhorn.settings import Settings
from scheduler_core.model import kube, longhorn
from scheduler_core.model.disk_schedule import DiskSchedule
from scheduler_core.model.snapshot import NamespacedName, Snapshot
from scheduler_core.packing.budget import give_way
from scheduler_core.structs import Struct, replace

Changes = Mapping[tuple[str, Key], object | None]
_Object = TypeVar("_Object")
_REBUILDING_FIELDS = frozenset({"settings", "backing_images"})


class Update(Struct, frozen=True):
    """A view and its difference to the previous view."""

    view: View
    changed_nodes: frozenset[str] | None  # names of the nodes whose disk profiles may have changed; None for all


def empty_snapshot() -> Snapshot:
    """Returns an empty snapshot, in which every kind counts as listed, so that `update` can add objects."""
    return Snapshot(**dict.fromkeys(Snapshot.__struct_fields__, HashTrieMap()))


def update(view: View, changes: Changes, now: datetime) -> Update:
    """Returns the view at `now` after the changes; None means that the object was deleted."""
    builder = _Builder(view)
    rebuild = False
    for (field, key), value in changes.items():
        # A prediction changes every node at once.
        give_way()
        if builder.put(field, key, value):
            rebuild = rebuild or field in _REBUILDING_FIELDS
    if rebuild:
        return Update(build_view(builder.snapshot, now, view.version + 1), None)
    return builder.finish(now)


def build_view(snapshot: Snapshot, now: datetime, version: int) -> View:
    """Builds a view that `update` can continue from. Settings that do not parse are faults, as in Longhorn."""
    view = View.of(snapshot, now, version, Settings.read(snapshot.settings))
    groups = {name: getattr(view.cluster, name) for name in CLUSTER_GROUPINGS}
    # A kind that was not listed has no groups: every object of it counts as ready.
    persistent: dict[str, Any] = {
        name: None if members is None else HashTrieMap(members) for name, members in groups.items()
    }
    return replace(view, cluster=replace(view.cluster, **persistent))


def _with_changes(objects: Mapping[str, _Object], changed: Mapping[str, _Object | None]) -> Mapping[str, _Object]:
    """Returns the objects after changes; None means that the object was deleted."""
    if not changed:
        return objects
    # A plain copy, because every request reads all nodes, and updates are few.
    later = dict(objects)
    for name, value in changed.items():
        if value is None:
            later.pop(name, None)
        else:
            later[name] = value
    return later


class _Builder:
    def __init__(self, view: View) -> None:
        self._view = view
        self._maps: dict[str, HashTrieMap[Any, Any]] = {}
        self._snapshot: Snapshot | None = view.snapshot
        self._changed = False
        self.indexes = copy(view.indexes)  # changed here until the next view has it
        self.cluster_groups: dict[str, Any] = {name: getattr(view.cluster, name) for name in CLUSTER_GROUPINGS}
        self.longhorn_nodes: dict[str, longhorn.Node | None] = {}
        self.kube_nodes: dict[str, kube.Node | None] = {}
        self.disks: set[str] = set()
        # Longhorn volumes whose requested growth may have changed.
        self.handles: set[str] = set()
        self.changed_nodes: set[str] = set()
        # Pods that may be decided about since.
        self.pods: set[NamespacedName] = set()

    @property
    def snapshot(self) -> Snapshot:
        if self._snapshot is None:
            changes: dict[str, Any] = dict(self._maps)
            self._snapshot = replace(self._view.snapshot, **changes)
        return self._snapshot

    def put(self, field: str, key: Key, value: object | None) -> bool:
        """Writes one object, and what depends on it alone; returns whether it makes a difference."""
        objects = self._maps[field] if field in self._maps else getattr(self._view.snapshot, field)
        if objects is None:
            # What the source does not list counts as there everywhere.
            return False
        old: object | None = objects.get(key)
        if old == value:
            return False
        self._changed = True
        self._snapshot = None
        self._maps[field] = objects.remove(key) if value is None else objects.insert(key, value)
        for name, grouping in GROUPINGS.items():
            if grouping.kind == field:
                setattr(self.indexes, name, grouping.replace(getattr(self.indexes, name), old, value))
        for name, grouping in CLUSTER_GROUPINGS.items():
            if grouping.kind == field:
                self.cluster_groups[name] = grouping.replace(self.cluster_groups[name], old, value)
        for each in filter(None, (old, value)):
            self._note(each, value)
        if field == "longhorn_nodes":
            self._index_disks(old, value)
        return True

    def _note(self, changed: object, new: Any) -> None:
        """Notes what one changed object, as it was or as it is now, makes `finish` compute again."""
        match changed:
            case kube.Node(name=name):
                self.kube_nodes[name] = new
                self.changed_nodes.add(name)
            case longhorn.Node(name=name):
                self.longhorn_nodes[name] = new
                self.changed_nodes.add(name)
            case kube.Pod():
                self.pods.add(changed.namespaced_name)
            case kube.Claim():
                users = self.indexes.pods_by_claim.get((changed.namespace, changed.name)) or ()
                self.pods.update(pod.namespaced_name for pod in users)
                volume = self.snapshot.persistent_volumes.get(changed.spec.volume_name)
                self.handles |= {volume.handle} if volume is not None and volume.handle else set()
            case kube.PersistentVolume(handle=handle):
                self.handles |= {handle} if handle else set()
            case longhorn.Volume(name=name):
                self.handles.add(name)
            case longhorn.Replica(volume=handle, disk_id=uuid):
                self.handles.add(handle)
                self.disks |= {uuid} if uuid else set()
            case longhorn.InstanceManager(node=name):
                self.changed_nodes.add(name)
            case longhorn.EngineImage(nodes=names):
                self.changed_nodes.update(names)
            case DiskSchedule(name=uuid):
                self.disks.add(uuid)
            case _:
                pass

    def _index_disks(self, old: Any, new: Any) -> None:
        # At once: the node's other changes are made with this index.
        for disk in old.disks if old else ():
            if disk.uuid and self.indexes.node_of_disk.get(disk.uuid) == old.name:
                self.indexes.node_of_disk = self.indexes.node_of_disk.discard(disk.uuid)
                self.disks.add(disk.uuid)
        for disk in new.disks if new else ():
            if disk.uuid:
                self.indexes.node_of_disk = self.indexes.node_of_disk.insert(disk.uuid, new.name)

    def finish(self, now: datetime) -> Update:
        view = self._view
        indexes = self.indexes
        nodes = _with_changes(view.cluster.nodes, self.longhorn_nodes)
        if nodes is not view.cluster.nodes and nodes.keys() != view.cluster.nodes.keys():
            nodes = dict(sorted(nodes.items()))
        for uuid in self.disks:
            name = indexes.node_of_disk.get(uuid)
            if name is not None:
                self.changed_nodes.add(name)
            else:
                indexes.unlisted_replicas = indexes.unlisted_replicas.discard(uuid)
        for name in self.changed_nodes:
            for disk in nodes[name].disks if name in nodes else ():
                unlisted = unlisted_replicas(disk, indexes.replicas_by_disk.get(disk.uuid) or ())
                indexes.unlisted_replicas = put(indexes.unlisted_replicas, disk.uuid, unlisted or None)
        # Before the free space: growth changes that of further nodes.
        self._update_growth(nodes)
        snapshot = self.snapshot
        schedules = snapshot.disk_schedules
        free_space: dict[str, FreeSpace | None] = dict.fromkeys(self.changed_nodes)
        for name in self.changed_nodes & nodes.keys():
            give_way()
            free_space[name] = free_space_of(
                nodes[name], view.settings, indexes.unlisted_replicas, schedules, indexes.growth
            )
        indexes.free_space = _with_changes(indexes.free_space, free_space)
        indexes.pods_to_schedule -= count_to_schedule(self.pods, view.snapshot)
        indexes.pods_to_schedule += count_to_schedule(self.pods, snapshot)
        cluster = replace(
            view.cluster,
            snapshot=snapshot,
            now=now,
            nodes=nodes,
            kube_nodes=_with_changes(view.cluster.kube_nodes, self.kube_nodes),
            **self.cluster_groups,
        )
        storage_class = default_class(snapshot) if "storage_classes" in self._maps else view.default_storage_class
        later = View(view.version + self._changed, snapshot, cluster, storage_class, indexes)
        return Update(later, frozenset(self.changed_nodes))

    def _update_growth(self, nodes: Mapping[str, longhorn.Node]) -> None:
        snapshot = self.snapshot
        indexes = self.indexes
        for handle in self.handles:
            names = indexes.volumes_by_handle.get(handle) or ()
            size = requested_size(handle, names, self.cluster_groups["replicas_by_volume"].get(handle) or (), snapshot)
            indexes.requested_sizes = put(indexes.requested_sizes, handle, size or None)
        if not indexes.requested_sizes and not indexes.growing_volumes:
            return
        cluster = replace(self._view.cluster, snapshot=snapshot, nodes=nodes, **self.cluster_groups)
        # Whether one volume can grow depends on several disks, so all growth is counted again: it lasts for seconds, and is rare.
        sizes = indexes.requested_sizes
        volumes, growth = count_growth(sizes, cluster, indexes.unlisted_replicas, indexes.node_of_disk)
        for uuid in {*indexes.growth, *growth}:
            if indexes.growth.get(uuid) != growth.get(uuid):
                indexes.growth = put(indexes.growth, uuid, growth.get(uuid))
                name = indexes.node_of_disk.get(uuid)
                self.changed_nodes |= {name} if name is not None else set()
        for name in {*indexes.growing_volumes, *volumes}:
            if indexes.growing_volumes.get(name) != volumes.get(name):
                indexes.growing_volumes = put(indexes.growing_volumes, name, volumes.get(name))
