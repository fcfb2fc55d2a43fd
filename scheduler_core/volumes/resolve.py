"""From a pod to its Longhorn volumes: pod → PersistentVolumeClaim → PersistentVolume → Longhorn volume.

Longhorn's scheduler-extender proposal, Filter step 1. Data flow: `resolve(pod, view)` reads one immutable view and
returns a `Resolution`, the volumes in claim order, each with its replicas and where its claim is in use. Volumes of
other drivers are left out; an object that is named but missing is a `MissingObjectError`, never an empty list.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

from scheduler_core.cluster.view import View
from scheduler_core.errors import ResolutionError
from scheduler_core.longhorn.provisioning import DRIVER, SHARED_ACCESS_MODES, volume_for_claim
from scheduler_core.longhorn.replica_request import LINKED_CLONE
from scheduler_core.model import kube, longhorn
from scheduler_core.model.snapshot import Snapshot

_LOCALITIES: Final = frozenset({longhorn.BEST_EFFORT, longhorn.STRICT_LOCAL})


class MissingObjectError(ResolutionError):
    """An object that the pod, or something it names, refers to is not there."""

    def __init__(self, kind: str, name: str, named_by: str) -> None:
        super().__init__(f"{kind} {name} does not exist (named by {named_by})")
        self.kind = kind
        self.name = name


@dataclass(frozen=True, slots=True)
class PodVolume:
    """One Longhorn volume of a pod.

    Attributes:
        name: how plans name it: the Longhorn volume, or the claim while it is unbound
        claim: the claim as ``namespace/name``
        volume: the Longhorn volume; for an unbound claim the one Longhorn would create
        bound: whether the Longhorn volume exists
        local: whether it needs room on the node the pod runs on
        replicas: its replicas, ordered by name
        in_use_on: nodes of other live pods that hold its exclusive claim; empty when nobody does
    """

    name: str
    claim: str
    volume: longhorn.Volume
    bound: bool
    local: bool
    replicas: tuple[longhorn.Replica, ...] = ()
    in_use_on: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Resolution:
    """The Longhorn volumes of a pod, ordered by claim; a claim or volume mounted twice is here once."""

    volumes: tuple[PodVolume, ...] = ()

    @property
    def local(self) -> tuple[PodVolume, ...]:
        """The volumes that need room on the pod's node."""
        return tuple(volume for volume in self.volumes if volume.local)

    @property
    def remote(self) -> tuple[PodVolume, ...]:
        """The volumes whose replicas may be anywhere."""
        return tuple(volume for volume in self.volumes if not volume.local)

    @property
    def unplaced(self) -> tuple[PodVolume, ...]:
        """Those of them that are nowhere yet."""
        return tuple(volume for volume in self.remote if not any(replica.node_id for replica in volume.replicas))


def resolve(pod: kube.Pod, view: View, *, require_best_effort: bool = True) -> Resolution:
    """The pod's Longhorn volumes; with `require_best_effort` False a best-effort volume does not need local room.

    Raises:
        MissingObjectError: a claim, PersistentVolume or Longhorn volume that is named does not exist
        ResolutionError: an ephemeral claim belongs to another pod, or an unbound claim cannot become a volume
    """
    found: dict[str, PodVolume] = {}
    for mount in sorted(pod.volumes, key=lambda mount: (mount.claim, mount.name)):
        volume = _volume(pod, mount, view, require_best_effort=require_best_effort)
        if volume is not None:
            key = volume.volume.name if volume.bound else volume.claim
            known = found.get(key, volume)
            found[key] = replace(known, in_use_on=known.in_use_on | volume.in_use_on)
    return Resolution(tuple(_told_apart(volume, found.values()) for volume in found.values()))


def _told_apart(volume: PodVolume, volumes: Iterable[PodVolume]) -> PodVolume:
    """A claim that is named like another of the pod's Longhorn volumes goes by its full name."""
    same = sum(other.name == volume.name for other in volumes) > 1
    return replace(volume, name=volume.claim) if same and not volume.bound else volume


def _volume(pod: kube.Pod, mount: kube.PodVolume, view: View, *, require_best_effort: bool) -> PodVolume | None:
    claim = _claim(pod, mount, view.snapshot)
    volume = volume_of_claim(claim, view, require_best_effort=require_best_effort)
    return volume and replace(volume, in_use_on=_in_use_on(pod, claim, view))


def volume_of_claim(claim: kube.Claim, view: View, *, require_best_effort: bool = True) -> PodVolume | None:
    """The Longhorn volume of a claim, existing or to be created, whoever mounts it; None if it is another driver's.

    Raises:
        MissingObjectError: the PersistentVolume or Longhorn volume it is bound to does not exist
        ResolutionError: it cannot become a volume
    """
    subject = f"PersistentVolumeClaim {claim.namespace}/{claim.name}"
    persistent = claim.spec.volume_name or view.reserved_for(claim)
    if persistent:
        volume, name = _bound_volume(persistent, subject, view.snapshot), ""
    else:
        volume, name = _unbound_volume(claim, subject, view), claim.name
    if volume is None:
        return None
    return PodVolume(
        name=name or volume.name,
        claim=f"{claim.namespace}/{claim.name}",
        volume=volume,
        bound=not name,
        local=is_local(volume, require_best_effort=require_best_effort),
        replicas=() if name else view.replicas_of(volume.name),
    )


def volume_to_come(claim: kube.Claim, view: View) -> PodVolume | None:
    """The volume that the claim asks for, as Longhorn would create it, whatever it is bound to; None if it is another driver's.

    Raises:
        ResolutionError: it cannot become a volume
    """
    volume = _unbound_volume(claim, f"PersistentVolumeClaim {claim.namespace}/{claim.name}", view)
    if volume is None:
        return None
    full = f"{claim.namespace}/{claim.name}"
    return PodVolume(name=claim.name, claim=full, volume=volume, bound=False, local=is_local(volume))


def volume_now(volume: PodVolume, view: View) -> PodVolume:
    """A volume as a view has it, which was resolved earlier: bound since, perhaps, and with other replicas."""
    name = volume.volume.name if volume.bound else _handle_of(volume.claim, view)
    found = view.snapshot.volumes.get(name) if name else None
    if found is None:
        return volume
    replicas = view.replicas_of(found.name)
    if found is volume.volume and replicas is volume.replicas:
        return volume
    return replace(volume, name=found.name, volume=found, bound=True, replicas=replicas)


def _handle_of(full: str, view: View) -> str:
    namespace, _, name = full.partition("/")
    claim = view.snapshot.claims.get((namespace, name))
    persistent = view.snapshot.persistent_volumes.get(claim.spec.volume_name) if claim is not None else None
    return persistent.handle if persistent is not None and persistent.driver == DRIVER else ""


def is_known(persistent: str, view: View) -> bool:
    """Whether the view has a PersistentVolume, and what it stands for in Longhorn; watches of other kinds may be behind."""
    volume = view.snapshot.persistent_volumes.get(persistent)
    return volume is not None and (volume.driver != DRIVER or volume.handle in view.snapshot.volumes)


def _claim(pod: kube.Pod, mount: kube.PodVolume, snapshot: Snapshot) -> kube.Claim:
    claim = snapshot.claims.get((pod.namespace, mount.claim))
    if claim is None:
        if mount.template is None:
            raise MissingObjectError("PersistentVolumeClaim", f"{pod.namespace}/{mount.claim}", f"pod {pod.key}")
        return kube.Claim(pod.namespace, mount.claim, mount.template)
    if mount.ephemeral and not _owned(claim, pod):
        raise ResolutionError(
            f"PersistentVolumeClaim {claim.namespace}/{claim.name} exists but does not belong to pod {pod.key}, "
            f"whose ephemeral volume {mount.name} needs that name: delete the claim or rename the volume"
        )
    return claim


def _owned(claim: kube.Claim, pod: kube.Pod) -> bool:
    """Whether the claim is the pod's own (k8s.io/component-helpers/storage/ephemeral: VolumeIsForPod)."""
    return any(
        kind == "Pod" and name == pod.name and (not pod.uid or uid == pod.uid) for kind, name, uid in claim.owners
    )


def _bound_volume(name: str, subject: str, snapshot: Snapshot) -> longhorn.Volume | None:
    persistent = snapshot.persistent_volumes.get(name)
    if persistent is None:
        raise MissingObjectError("PersistentVolume", name, subject)
    if persistent.driver != DRIVER:
        return None
    volume = snapshot.volumes.get(persistent.handle)
    if volume is None:
        raise MissingObjectError(
            "Longhorn volume", persistent.handle or "(no volumeHandle)", f"PersistentVolume {name}"
        )
    return volume


def _unbound_volume(claim: kube.Claim, subject: str, view: View) -> longhorn.Volume | None:
    storage_class = _storage_class(claim.spec.storage_class, view)
    if storage_class is None or storage_class.provisioner != DRIVER:
        return None
    spec = replace(claim.spec, source_volume=_source_volume(claim, storage_class, subject, view.snapshot))
    return volume_for_claim(claim.name, spec, storage_class.parameters, view.settings, subject=subject)


def _source_volume(claim: kube.Claim, storage_class: kube.StorageClass, subject: str, snapshot: Snapshot) -> str:
    """The Longhorn volume a claim is cloned from; only a linked clone must know, it shares its source's disks."""
    if not claim.spec.source_claim or storage_class.parameters.get("cloneMode") != LINKED_CLONE:
        return ""
    source = snapshot.claims.get((claim.namespace, claim.spec.source_claim))
    if source is None or not source.spec.volume_name:
        raise MissingObjectError("bound PersistentVolumeClaim", f"{claim.namespace}/{claim.spec.source_claim}", subject)
    volume = _bound_volume(source.spec.volume_name, subject, snapshot)
    return volume.name if volume is not None else ""


def unseen_classes(pod: kube.Pod, view: View) -> tuple[str, ...]:
    """The StorageClasses the pod's unbound claims name that are not in the view: not there, or not seen yet."""
    specs = []
    for mount in pod.volumes:
        claim = view.snapshot.claims.get((pod.namespace, mount.claim))
        specs.append(claim.spec if claim else mount.template)
    names = {spec.storage_class for spec in specs if spec and spec.storage_class and not spec.volume_name}
    return tuple(sorted(name for name in names if name not in view.snapshot.storage_classes))


def _storage_class(name: str | None, view: View) -> kube.StorageClass | None:
    """The class of a claim; without a name the default one, the newest of several (Kubernetes' GetDefaultClass)."""
    if name is not None:
        return view.snapshot.storage_classes.get(name)
    return view.default_storage_class


def is_local(volume: longhorn.Volume, *, require_best_effort: bool = True) -> bool:
    """Whether a volume needs room on the node its pod runs on.

    A volume shared through a share-manager is served over the network; a migratable one is attached like any other.
    """
    if volume.access_mode == "rwx" and not volume.migratable:
        return False
    if volume.data_locality == longhorn.BEST_EFFORT:
        return require_best_effort
    return volume.data_locality in _LOCALITIES


def _in_use_on(pod: kube.Pod, claim: kube.Claim, view: View) -> frozenset[str]:
    if SHARED_ACCESS_MODES.intersection(claim.spec.access_modes):
        return frozenset()
    return frozenset(
        other.node_name
        for other in view.pods_of(claim.namespace, claim.name)
        if other.live and other.node_name and (other.namespace, other.name, other.uid) != _identity(pod, other)
    )


def _identity(pod: kube.Pod, other: kube.Pod) -> tuple[str, str, str]:
    """Who `pod` is, compared with `other`: a pod given by file has no uid, then the name decides."""
    return pod.namespace, pod.name, pod.uid or other.uid
