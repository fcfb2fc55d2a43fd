"""All demands of a view, by volume and by node, kept current change by change.

Data flow: changes → the volumes and claims whose demand may be another (`_affected`) → each is derived anew (`demand.py`) → the next
index, which shares everything else with the last one. `Demands.of` on the same view gives an equal index. Its cost is
that of what changed; only a change of Longhorn's settings, a StorageClass or an engine image derives everything anew.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import Any, Final

from rpds import HashTrieMap

from scheduler_core.cluster.changelog import Trail
from scheduler_core.cluster.update import Changes
from scheduler_core.cluster.view import View, grouped
from scheduler_core.convert.snapshot_kinds import Key
from scheduler_core.demand.derive import Demand, claim_demand, volume_demand
from scheduler_core.demand.unplaced import Roamers, Subject
from scheduler_core.model import kube, longhorn
from scheduler_core.volumes.resolve import PodVolume

_EVERYTHING: Final = frozenset({"settings", "storage_classes", "engine_images"})
_NOTHING_ROAMS: Final = Roamers()
_NODES: Final = frozenset({"nodes", "longhorn_nodes", "instance_managers"})


@dataclass(frozen=True, slots=True)
class Demands:
    """The demands of one view.

    Attributes:
        by_node: the demands on each node, oldest first
        trail: which nodes' demands have changed
        roaming: volumes that demand no node, but may take room on any
    """

    by_node: HashTrieMap[str, tuple[Demand, ...]]
    _by_subject: HashTrieMap[Subject, Demand]
    _volumes: HashTrieMap[str, tuple[kube.PersistentVolume, ...]]
    _attachments: HashTrieMap[str, tuple[kube.VolumeAttachment, ...]]
    roaming: Roamers = _NOTHING_ROAMS
    trail: Trail = field(default_factory=Trail, compare=False)

    @classmethod
    def of(cls, view: View, known: Roamers = _NOTHING_ROAMS) -> Demands:
        """Derives every demand; `known` is what was seen to roam before."""
        snapshot, name = view.snapshot, attrgetter("name")
        empty = cls(
            HashTrieMap(),
            HashTrieMap(),
            HashTrieMap(
                grouped(((entry.handle, entry) for entry in snapshot.persistent_volumes.values() if entry.handle), name)
            ),
            HashTrieMap(
                grouped(((entry.persistent_volume, entry) for entry in snapshot.volume_attachments.values()), name)
            ),
        )
        found: dict[Subject, Demand] = {}
        subjects: list[Subject] = [*snapshot.volumes, *snapshot.claims]
        for subject in subjects:
            demand = _derive(subject, view, empty)
            if demand is not None:
                found[subject] = demand
        by_node = grouped(((demand.node, demand) for demand in found.values()), attrgetter("order"))
        roaming = known.after({*subjects, *known.unplaced}, view)
        return replace(empty, by_node=HashTrieMap(by_node), _by_subject=HashTrieMap(found), roaming=roaming)

    @property
    def all(self) -> tuple[Demand, ...]:
        """Every demand, ordered by node and age."""
        return tuple(demand for node in sorted(self.by_node) for demand in self.by_node[node])

    def node_of(self, volume: PodVolume) -> str:
        """The node that a volume demands, "" for none."""
        namespace, _, name = volume.claim.partition("/")
        demand = self._by_subject.get(volume.volume.name if volume.bound else (namespace, name))
        return demand.node if demand is not None else ""

    def volumes_of(self, handle: str) -> tuple[kube.PersistentVolume, ...]:
        """The PersistentVolumes of a Longhorn volume, ordered by name."""
        return self._volumes.get(handle) or ()

    def attachments_of(self, persistent_volume: str) -> tuple[kube.VolumeAttachment, ...]:
        """The VolumeAttachments of a PersistentVolume, ordered by name."""
        return self._attachments.get(persistent_volume) or ()

    def after(self, before: View, changes: Changes, view: View) -> Demands:
        """The demands of `view`, which `changes` made of the view `before` that these are of."""
        if any(kind in _EVERYTHING for kind, _ in changes):
            return Demands.of(view, self.roaming)
        linked = self._linked(before, changes)
        later, by_node = self._by_subject, self.by_node
        affected = {*_affected(changes, before, self), *_affected(changes, view, linked)}
        nodes: set[str] = set()
        for subject in affected:
            old, new = later.get(subject), _derive(subject, view, linked)
            if old == new:
                continue
            later = later.remove(subject) if new is None else later.insert(subject, new)
            if old is not None:
                by_node = _group(by_node, old.node, without=old)
                nodes.add(old.node)
            if new is not None:
                by_node = _group(by_node, new.node, plus=new)
                nodes.add(new.node)
        roaming, trail = self.roaming.after(affected, view), self.trail.after(frozenset(nodes))
        return replace(linked, by_node=by_node, _by_subject=later, roaming=roaming, trail=trail)

    def _linked(self, before: View, changes: Changes) -> Demands:
        """The same demands with the look-ups to PersistentVolumes and VolumeAttachments of after the changes."""
        volumes, attachments = self._volumes, self._attachments
        for (kind, key), value in changes.items():
            if kind == "persistent_volumes":
                old = before.snapshot.persistent_volumes.get(str(key))
                volumes = _exchange(volumes, old, value, "handle")
            elif kind == "volume_attachments":
                tie = before.snapshot.volume_attachments.get(str(key))
                attachments = _exchange(attachments, tie, value, "persistent_volume")
        return replace(self, _volumes=volumes, _attachments=attachments)


def _derive(subject: Subject, view: View, demands: Demands) -> Demand | None:
    if isinstance(subject, str):
        volume = view.snapshot.volumes.get(subject)
        return None if volume is None else volume_demand(volume, view, demands)
    claim = view.snapshot.claims.get(subject)
    return None if claim is None else claim_demand(claim, view)


def _exchange(maps: HashTrieMap[str, Any], old: Any, new: Any, key: str) -> HashTrieMap[str, Any]:
    for entry, stays in ((old, False), (new, True)):
        group = getattr(entry, key) if entry is not None else ""
        if group:
            members = [known for known in maps.get(group) or () if known.name != entry.name]
            members += [entry] if stays else []
            maps = (
                maps.insert(group, tuple(sorted(members, key=attrgetter("name")))) if members else maps.discard(group)
            )
    return maps


def _group(
    by_node: HashTrieMap[str, tuple[Demand, ...]],
    node: str,
    *,
    without: Demand | None = None,
    plus: Demand | None = None,
) -> HashTrieMap[str, tuple[Demand, ...]]:
    members = [demand for demand in by_node.get(node) or () if demand != without]
    members += [plus] if plus is not None else []
    ordered = tuple(sorted(members, key=attrgetter("order")))
    return by_node.insert(node, ordered) if ordered else by_node.discard(node)


def _affected(changes: Changes, view: View, demands: Demands) -> Iterator[Subject]:
    """Whose demand may be another; asked of the view before and of the one after, since ties may have gone or come."""
    snapshot = view.snapshot
    for kind, key in changes:
        if kind == "pods":
            pod = snapshot.pods.get(_pair(key))
            yield from _claims_of(pod, view) if pod else ()
        elif kind == "claims":
            yield from _claim(_pair(key), view)
            for pod in view.pods_of(*_pair(key)):
                yield from _claims_of(pod, view)
        elif kind == "volumes":
            yield str(key)
            yield from (entry.claim[:2] for entry in demands.volumes_of(str(key)) if entry.claim)
        elif kind == "replicas":
            replica = snapshot.replicas.get(str(key))
            yield from (replica.volume,) if replica else ()
        elif kind == "disk_schedules":
            yield from (replica.volume for replica in view.indexes.replicas_by_disk.get(str(key)) or ())
        elif kind == "persistent_volumes":
            yield from _persistent(str(key), view)
            # It may have been provisioned for a pod that has other volumes, too.
            persistent = snapshot.persistent_volumes.get(str(key))
            for pod in view.pods_of(*persistent.claim[:2]) if persistent and persistent.claim else ():
                yield from _claims_of(pod, view)
        elif kind == "volume_attachments":
            attachment = snapshot.volume_attachments.get(str(key))
            yield from _persistent(attachment.persistent_volume, view) if attachment else ()
        elif kind in _NODES:
            yield from _on_node(kind, str(key), view)


def _claims_of(pod: kube.Pod, view: View) -> Iterator[Subject]:
    for mount in pod.volumes:
        yield from _claim((pod.namespace, mount.claim), view)


def _claim(key: tuple[str, str], view: View) -> Iterator[Subject]:
    yield key
    claim = view.snapshot.claims.get(key)
    if claim is not None:
        name = claim.spec.volume_name or view.reserved_for(claim)
        yield from _persistent(name, view) if name else ()


def _persistent(name: str, view: View) -> Iterator[Subject]:
    volume = view.snapshot.persistent_volumes.get(name)
    if volume is not None:
        yield from (volume.handle,) if volume.handle else ()
        yield from (volume.claim[:2],) if volume.claim else ()


def _on_node(field: str, key: str, view: View) -> Iterable[Subject]:
    """The volumes with a replica on a node: whether it is kept depends on the node and its disks."""
    name = key
    if field == "instance_managers":
        manager = (view.snapshot.instance_managers or {}).get(key)
        name = manager.node if manager else ""
    node: longhorn.Node | None = view.cluster.nodes.get(name)
    for disk in node.disks if node else ():
        for replica in view.indexes.replicas_by_disk.get(disk.uuid) or ():
            yield replica.volume


def _pair(key: Key) -> tuple[str, str]:
    if isinstance(key, str):
        raise TypeError(f"{key!r} names no namespaced object")
    return key
