"""All demand of a view, by volume and by node, kept current change by change.

Data flow: changes → the volumes and claims whose demand may have changed (`_subjects_of`) → each is derived again (`outstanding_demand.py`) → the next
index, which shares everything else with the previous one. `DemandIndex.of` on the same view returns an equal index. The cost
follows the changes; only a change of Longhorn's settings, a StorageClass or an engine image derives everything again.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from operator import attrgetter

from rpds import HashTrieMap

from scheduler_core.caches import ChangeLog
from scheduler_core.cluster.update import Changes
from scheduler_core.cluster.view import View, add_member, discard_member, group_by_key
from scheduler_core.convert.snapshot_kinds import Key
from scheduler_core.longhorn.stages import DISK_PRESSURE
from scheduler_core.model import kube, longhorn
from scheduler_core.model.kube import condition
from scheduler_core.structs import replace
from scheduler_core.volumes.outstanding_demand import Demand, Subject, UnplacedVolumes, derive
from scheduler_core.volumes.resolve import PodVolume

_REBUILDING_KINDS = frozenset({"settings", "storage_classes", "engine_images"})
_NO_UNPLACED = UnplacedVolumes()
_BY_AGE = attrgetter("order")


@dataclass(frozen=True, slots=True)
class DemandIndex:
    """The demand of one view."""

    by_node: "HashTrieMap[str, tuple[Demand, ...]]"  # the demands on each node, oldest first
    _by_subject: "HashTrieMap[Subject, Demand]"
    unplaced: UnplacedVolumes = _NO_UNPLACED  # volumes that demand no node, but may take space on any
    changelog: ChangeLog = field(default_factory=ChangeLog, compare=False)  # which nodes' demand changed

    @classmethod
    def of(cls, view: View, unplaced: UnplacedVolumes = _NO_UNPLACED) -> "DemandIndex":
        """Derives all demand of a view. `unplaced` are the unplaced volumes of an earlier view."""
        snapshot = view.snapshot
        subjects: set[Subject] = {*snapshot.volumes, *snapshot.claims, *unplaced.all}
        derived = {subject: derive(subject, view) for subject in subjects}
        by_subject = {subject: demand for subject, demand in derived.items() if isinstance(demand, Demand)}
        by_node = group_by_key(((demand.node, demand) for demand in by_subject.values()), _BY_AGE)
        return cls(
            by_node=HashTrieMap(by_node),
            _by_subject=HashTrieMap(by_subject),
            unplaced=unplaced.update(_unplaced_of(derived), view),
        )

    @property
    def all(self) -> tuple[Demand, ...]:
        return tuple(demand for node in sorted(self.by_node) for demand in self.by_node[node])

    def node_of(self, volume: PodVolume) -> str:
        """Returns the node that a volume demands, or "". A volume that was matched with an unbound claim may still be
        demanded as that claim.
        """
        namespace, _, name = volume.claim.partition("/")
        demand = self._by_subject.get(volume.volume.name if volume.bound else (namespace, name))
        if demand is None and volume.persistent_volume:
            demand = self._by_subject.get((namespace, name))
        return demand.node if demand is not None else ""

    def update(self, before: View, changes: Changes, view: View) -> "DemandIndex":
        """Returns the demand of `view`. `self` is the demand of the view `before`, and `changes` are the difference
        between the two views.
        """
        if any(kind in _REBUILDING_KINDS for kind, _ in changes):
            return DemandIndex.of(view, self.unplaced)
        changes = {key: value for key, value in changes.items() if not _changes_only_space(key, value, before)}
        by_subject = self._by_subject
        by_node = self.by_node
        # Both views are asked, because a change may end a tie to a volume or begin one.
        affected = {
            subject for at in (before, view) for kind, key in changes for subject in _subjects_of(kind, key, at)
        }
        old_growth = before.indexes.growing_volumes
        growth = view.indexes.growing_volumes
        if old_growth is not growth:
            # Other objects than the volumes' may be the cause, such as the disk of a replica.
            affected |= {name for name in {*old_growth, *growth} if old_growth.get(name) != growth.get(name)}
        derived = {subject: derive(subject, view) for subject in affected}
        changed_nodes: set[str] = set()
        for subject, demand in derived.items():
            old = by_subject.get(subject)
            new = demand if isinstance(demand, Demand) else None
            if old == new:
                continue
            by_subject = by_subject.remove(subject) if new is None else by_subject.insert(subject, new)
            if old is not None:
                by_node = discard_member(by_node, old.node, old)
                changed_nodes.add(old.node)
            if new is not None:
                by_node = add_member(by_node, new.node, new, _BY_AGE)
                changed_nodes.add(new.node)
        return DemandIndex(
            by_node=by_node,
            _by_subject=by_subject,
            unplaced=self.unplaced.update(_unplaced_of(derived), view),
            changelog=self.changelog.append(frozenset(changed_nodes)),
        )


def _unplaced_of(derived: Mapping[Subject, Demand | PodVolume | None]) -> dict[Subject, PodVolume | None]:
    return {subject: volume if isinstance(volume, PodVolume) else None for subject, volume in derived.items()}


def _changes_only_space(key: tuple[str, Key], value: object, before: View) -> bool:
    """Whether a node's status changes as it does with every write and every replica, which decides about no demand."""
    kind, name = key
    old = before.snapshot.longhorn_nodes.get(str(name)) if kind == "longhorn_nodes" else None
    if old is None or not isinstance(value, longhorn.Node):
        return False
    # A failed replica is used again on a disk under pressure while bytes are available there.
    pressed = any(condition(disk.conditions, "Schedulable").reason == DISK_PRESSURE for disk in value.disks)
    return not pressed and _without_space(old) == _without_space(value)


def _without_space(node: longhorn.Node) -> longhorn.Node:
    disks = (replace(disk, storage_available=0, storage_scheduled=0, scheduled_replicas={}) for disk in node.disks)
    return replace(node, disks=tuple(disks))


def _subjects_of(kind: str, key: Key, view: View) -> Iterable[Subject]:
    """The volumes and claims whose demand an object of some kind may change."""
    snapshot = view.snapshot
    if not isinstance(key, str):
        if kind == "claims":
            return [*_claim(key, view), *_claims_of(view.pods_of(*key), view)]
        pod = snapshot.pods.get(key) if kind == "pods" else None
        return _claims_of([pod], view) if pod else ()
    match kind:
        case "volumes":
            return [key, *(entry.claim[:2] for entry in view.persistent_volumes_of(key) if entry.claim)]
        case "replicas":
            replica = snapshot.replicas.get(key)
            return (replica.volume,) if replica else ()
        case "disk_schedules":
            return _on_disk(key, view)
        case "persistent_volumes":
            persistent_volume = snapshot.persistent_volumes.get(key)
            claim = persistent_volume.claim if persistent_volume is not None else None
            # It may have been provisioned for a pod, whose other claims then have a selected node too.
            pods = view.pods_of(*claim[:2]) if claim else ()
            return [*_persistent_volume(key, view), *_claims_of(pods, view)]
        case "volume_attachments":
            attachment = snapshot.volume_attachments.get(key)
            return _persistent_volume(attachment.persistent_volume, view) if attachment else ()
        case "nodes" | "longhorn_nodes":
            node = view.cluster.nodes.get(key)
            return [subject for disk in (node.disks if node else ()) for subject in _on_disk(disk.uuid, view)]
        case "instance_managers":
            manager = (snapshot.instance_managers or {}).get(key)
            return _subjects_of("nodes", manager.node, view) if manager else ()
    return ()


def _on_disk(uuid: str, view: View) -> Iterable[str]:
    return (replica.volume for replica in view.indexes.replicas_by_disk.get(uuid) or ())


def _claims_of(pods: Iterable[kube.Pod], view: View) -> list[Subject]:
    return [subject for pod in pods for mount in pod.volumes for subject in _claim((pod.namespace, mount.claim), view)]


def _claim(key: tuple[str, str], view: View) -> list[Subject]:
    claim = view.snapshot.claims.get(key)
    name = "" if claim is None else claim.spec.volume_name or view.pre_bound_volume(claim)
    return [key, *_persistent_volume(name, view)] if name else [key]


def _persistent_volume(name: str, view: View) -> list[Subject]:
    volume = view.snapshot.persistent_volumes.get(name)
    if volume is None:
        return []
    subjects: list[Subject] = [volume.handle] if volume.handle else []
    return [*subjects, volume.claim[:2]] if volume.claim else subjects
