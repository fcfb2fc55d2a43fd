"""The next view from the last one and what changed; costs what changed, not what there is.

Data flow: changes by (field of Snapshot, key) → those that make no difference are dropped → each kind's effect on the indexes →
disks whose replicas or status changed are looked at again → a new View, and the Longhorn nodes about which something a
profile depends on may have changed (`touched`; None: all of them). `View.of` on the same objects gives an equal view.

A change of Longhorn's settings or of a backing image concerns every disk, and is rare: then everything is built anew.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from datetime import datetime
from operator import attrgetter
from typing import Any, Final, TypeAlias, TypeVar

from rpds import HashTrieMap

from scheduler_core.cluster.view import Indexes, View, claims_of, default_class, late_replicas, rooms_of
from scheduler_core.convert.snapshot_kinds import Key
from scheduler_core.longhorn.settings import Settings
from scheduler_core.model import kube, longhorn
from scheduler_core.model.disk_schedule import DiskSchedule
from scheduler_core.model.snapshot import Snapshot

Changes = Mapping[tuple[str, Key], object | None]
_EVERYWHERE: Final = frozenset({"settings", "backing_images"})
_Named = TypeVar("_Named")


@dataclass(frozen=True, slots=True)
class Advanced:
    """A view and what distinguishes it from the one before.

    Attributes:
        touched: names of the nodes whose profiles may be different; None for all
    """

    view: View
    touched: frozenset[str] | None


def empty_snapshot() -> Snapshot:
    """A snapshot without objects that `advance` can grow; every kind counts as listed."""
    return Snapshot(**{entry.name: HashTrieMap() for entry in fields(Snapshot)})


def advance(view: View, changes: Changes, now: datetime) -> Advanced:
    """The view at `now`, after the changes; a value of None means that the object is gone."""
    draft = _Draft(view)
    rebuild = False
    for (field, key), value in changes.items():
        old = draft.put(field, key, value)
        if old == value:
            continue
        if field in _EVERYWHERE:
            rebuild = True
        effect = _EFFECTS.get(field)
        if effect is not None:
            effect(draft, old, value)
    if rebuild:
        return Advanced(rebuilt(draft.snapshot, now, view.version + 1), None)
    return draft.finish(now)


def rebuilt(snapshot: Snapshot, now: datetime, version: int) -> View:
    """A view built from scratch that `advance` can go on from; settings that do not parse are faults, as in Longhorn."""
    view = View.of(snapshot, now, version, Settings.read(snapshot.settings))
    cluster = view.cluster
    return replace(
        view,
        cluster=replace(
            cluster,
            nodes=_InOrder(tuple(cluster.nodes), snapshot.longhorn_nodes),
            replicas_by_volume=HashTrieMap(cluster.replicas_by_volume),
            instance_managers=HashTrieMap(cluster.instance_managers or {}),
            engine_images=HashTrieMap(cluster.engine_images or {}),
        ),
    )


class _InOrder(Mapping[str, longhorn.Node]):
    """Longhorn's nodes in the order of their names: a node that changes costs nothing, one that comes or goes a sort."""

    __slots__ = ("_names", "_nodes")

    def __init__(self, names: tuple[str, ...], nodes: Mapping[str, longhorn.Node]) -> None:
        self._names = names
        self._nodes = nodes

    def __getitem__(self, name: str) -> longhorn.Node:
        return self._nodes[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def __contains__(self, name: object) -> bool:
        return name in self._nodes

    def after(self, nodes: Mapping[str, longhorn.Node], changed: Mapping[str, longhorn.Node | None]) -> _InOrder:
        """The same with other nodes, of which only the changed ones may have come or gone."""
        same = all((name in self._nodes) == (node is not None) for name, node in changed.items())
        return _InOrder(self._names if same else tuple(sorted(nodes)), nodes)


class _Draft:
    """The next view while it is being made."""

    def __init__(self, view: View) -> None:
        self._view = view
        self._maps: dict[str, HashTrieMap[Any, Any]] = {}
        self.indexes: dict[str, HashTrieMap[Any, Any]] = {
            entry.name: getattr(view.indexes, entry.name) for entry in fields(Indexes)
        }
        self.groups: dict[str, HashTrieMap[Any, Any]] = {
            name: getattr(view.cluster, name) for name in ("replicas_by_volume", "instance_managers", "engine_images")
        }
        self.nodes: dict[str, longhorn.Node | None] = {}
        self.disks: set[str] = set()
        self.touched: set[str] = set()
        self.changed = False

    @property
    def snapshot(self) -> Snapshot:
        """The objects after the changes."""
        changed: dict[str, Any] = dict(self._maps)
        return replace(self._view.snapshot, **changed) if self._maps else self._view.snapshot

    def put(self, field: str, key: Key, value: object | None) -> object | None:
        """Writes one object; returns what was there."""
        held = self._maps[field] if field in self._maps else getattr(self._view.snapshot, field)
        old: object | None = held.get(key)
        if old == value:
            return old
        self.changed = True
        self._maps[field] = held.remove(key) if value is None else held.insert(key, value)
        return old

    def finish(self, now: datetime) -> Advanced:
        """Looks again at the disks concerned, and puts the view together."""
        nodes = self._nodes()
        for uuid in self.disks:
            name = self.indexes["node_of_disk"].get(uuid)
            if name is not None:
                self.touched.add(name)
            else:
                _discard(self.indexes, "uncounted", uuid)
        settings, schedules = self._view.settings, self.snapshot.disk_schedules
        for name in self.touched:
            node = nodes.get(name)
            if node is None:
                _discard(self.indexes, "rooms", name)
                continue
            for disk in node.disks:
                late = late_replicas(disk, self.indexes["replicas_by_disk"].get(disk.uuid) or ())
                _set(self.indexes, "uncounted", disk.uuid, late or None)
            _set(self.indexes, "rooms", name, rooms_of(node, settings, self.indexes["uncounted"], schedules))
        return Advanced(self._put_together(nodes, now), frozenset(self.touched))

    def _nodes(self) -> Mapping[str, longhorn.Node]:
        known = self._view.cluster.nodes
        if not self.nodes:
            return known
        if not isinstance(known, _InOrder):
            raise TypeError("only a view that was made by rebuilt() can be advanced")
        return known.after(self.snapshot.longhorn_nodes, self.nodes)

    def _put_together(self, nodes: Mapping[str, longhorn.Node], now: datetime) -> View:
        view, snapshot = self._view, self.snapshot
        groups: dict[str, Any] = dict(self.groups)
        indexes: dict[str, Any] = dict(self.indexes)
        cluster = replace(view.cluster, snapshot=snapshot, now=now, nodes=nodes, kube_nodes=snapshot.nodes, **groups)
        return replace(
            view,
            version=view.version + self.changed,
            snapshot=snapshot,
            cluster=cluster,
            default_storage_class=default_class(snapshot)
            if "storage_classes" in self._maps
            else view.default_storage_class,
            indexes=Indexes(**indexes),
        )


def _kube_node(draft: _Draft, old: kube.Node | None, new: kube.Node | None) -> None:
    draft.touched.update(node.name for node in (old, new) if node is not None)


def _pod(draft: _Draft, old: kube.Pod | None, new: kube.Pod | None) -> None:
    for claim in claims_of(old) if old else ():
        _leave(draft.indexes, "pods_by_claim", claim, old)
    for claim in claims_of(new) if new else ():
        _join(draft.indexes, "pods_by_claim", claim, new, attrgetter("name", "uid"))


def _persistent_volume(draft: _Draft, old: kube.PersistentVolume | None, new: kube.PersistentVolume | None) -> None:
    if old and old.claim:
        _leave(draft.indexes, "reserved", old.claim, old.name)
    if new and new.claim:
        _join(draft.indexes, "reserved", new.claim, new.name, str)


def _replica(draft: _Draft, old: longhorn.Replica | None, new: longhorn.Replica | None) -> None:
    if old:
        _leave(draft.groups, "replicas_by_volume", old.volume, old)
        _leave(draft.indexes, "replicas_by_disk", old.disk_id, old)
        draft.disks.add(old.disk_id)
    if new:
        _join(draft.groups, "replicas_by_volume", new.volume, new, attrgetter("name"))
        _join(draft.indexes, "replicas_by_disk", new.disk_id, new, attrgetter("name"))
        draft.disks.add(new.disk_id)


def _longhorn_node(draft: _Draft, old: longhorn.Node | None, new: longhorn.Node | None) -> None:
    node = new or old
    if node is None:
        return
    draft.nodes[node.name] = new
    draft.touched.add(node.name)
    for disk in old.disks if old else ():
        if disk.uuid and draft.indexes["node_of_disk"].get(disk.uuid) == node.name:
            _discard(draft.indexes, "node_of_disk", disk.uuid)
            draft.disks.add(disk.uuid)
    for disk in new.disks if new else ():
        if disk.uuid:
            _set(draft.indexes, "node_of_disk", disk.uuid, node.name)


def _instance_manager(
    draft: _Draft, old: longhorn.InstanceManager | None, new: longhorn.InstanceManager | None
) -> None:
    if old:
        _leave(draft.groups, "instance_managers", (old.node, old.data_engine), old)
        draft.touched.add(old.node)
    if new:
        _join(draft.groups, "instance_managers", (new.node, new.data_engine), new, attrgetter("name"))
        draft.touched.add(new.node)


def _engine_image(draft: _Draft, old: longhorn.EngineImage | None, new: longhorn.EngineImage | None) -> None:
    if old:
        _leave(draft.groups, "engine_images", old.image, old)
        draft.touched |= old.nodes
    if new:
        _join(draft.groups, "engine_images", new.image, new, attrgetter("name"))
        draft.touched |= new.nodes


def _disk_schedule(draft: _Draft, old: DiskSchedule | None, new: DiskSchedule | None) -> None:
    draft.disks.update(entry.name for entry in (old, new) if entry is not None)


_EFFECTS: Final[Mapping[str, Callable[[_Draft, Any, Any], None]]] = {
    "nodes": _kube_node,
    "pods": _pod,
    "persistent_volumes": _persistent_volume,
    "replicas": _replica,
    "longhorn_nodes": _longhorn_node,
    "instance_managers": _instance_manager,
    "engine_images": _engine_image,
    "disk_schedules": _disk_schedule,
}
_Maps: TypeAlias = "dict[str, HashTrieMap[Any, Any]]"


def _set(maps: _Maps, name: str, key: object, value: object | None) -> None:
    if value is None:
        _discard(maps, name, key)
    else:
        maps[name] = maps[name].insert(key, value)


def _discard(maps: _Maps, name: str, key: object) -> None:
    if key in maps[name]:
        maps[name] = maps[name].remove(key)


def _leave(maps: _Maps, name: str, key: object, member: object) -> None:
    """Takes a member out of its group; an empty group is none."""
    _set(maps, name, key, tuple(entry for entry in maps[name].get(key) or () if entry != member) or None)


def _join(maps: _Maps, name: str, key: object, member: _Named, order: Callable[[_Named], Any]) -> None:
    """Puts a member into its group, in order."""
    _set(maps, name, key, tuple(sorted((*(maps[name].get(key) or ()), member), key=order)))
