"""Resolves a pod's Longhorn volumes: pod → PersistentVolumeClaim → PersistentVolume → Longhorn volume.

Source: Longhorn's scheduler-extender proposal, Filter step 1. Data flow: `resolve(pod, view)` reads one immutable view and
returns a `Resolution`: the volumes in claim order, each with its replicas and the nodes where its claim is in use. Volumes of
other drivers are left out. An object that is named but does not exist is a `MissingObjectError`, never an empty list.

kube-scheduler does not look for Longhorn's CSI driver on a node (NodeVolumeLimits, unless the CSIDriver sets
preventPodSchedulingIfMissing and the alpha feature VolumeLimitScaling is on), and so /filter does not either. A pod that is bound to a node
without the driver waits there for its volumes.
"""

from collections import Counter
from collections.abc import Mapping
from types import MappingProxyType

from scheduler_core import errors
from scheduler_core.cluster.view import View
from scheduler_core.longhorn import csi_driver
from scheduler_core.model import kube, longhorn
from scheduler_core.model.longhorn import TopologyTerm
from scheduler_core.model.snapshot import Snapshot
from scheduler_core.structs import Struct, replace
from scheduler_core.volumes.data_source import bound_volume, check_source, volume_parameters

_NO_MATCHES: Mapping[str, str] = MappingProxyType({})

# Kubernetes reads a limit per node from CSINode, and Longhorn sets none (NodeGetInfo: MaxVolumesPerNode 0). But a v1 volume is attached
# as an iSCSI target, and Longhorn numbers those of a node from 1 to 4,094 (go-iscsi-helper: FindNextAvailableTargetID). For v2 volumes
# no limit is documented; the same one keeps the work for one pod bounded.
MAX_VOLUMES_PER_NODE = 4_094


class PodVolume(Struct, frozen=True):
    """One Longhorn volume of a pod."""

    name: str  # its name in plans: the Longhorn volume, or the claim while it is unbound
    claim: str  # the claim as ``namespace/name``
    volume: longhorn.Volume  # the Longhorn volume; for an unbound claim the volume that Longhorn would create
    bound: bool  # whether the Longhorn volume exists
    local: bool  # whether it needs space on the node that the pod runs on
    replicas: tuple[longhorn.Replica, ...] = ()  # its replicas, sorted by name
    in_use_on: frozenset[str] = frozenset()  # nodes where other live pods hold its exclusive claim; mostly empty
    # The free PersistentVolume that kube-scheduler will bind its unbound claim to, "" for none.
    persistent_volume: str = ""
    nodes: frozenset[str] | None = None  # where the claim is this volume; None for every node


class Resolution(Struct, frozen=True):
    """The Longhorn volumes of a pod, sorted by claim. A claim or volume that the pod mounts twice is listed once."""

    volumes: tuple[PodVolume, ...] = ()

    @property
    def local(self) -> tuple[PodVolume, ...]:
        return tuple(volume for volume in self.volumes if volume.local)

    @property
    def remote(self) -> tuple[PodVolume, ...]:
        return tuple(volume for volume in self.volumes if not volume.local)

    @property
    def unplaced(self) -> tuple[PodVolume, ...]:
        """The remote volumes without a placed replica."""
        return tuple(
            entry
            for entry in self.remote
            if not entry.volume.has_shards and not any(replica.node_id for replica in entry.replicas)
        )


def resolve(
    pod: kube.Pod,
    view: View,
    matches: Mapping[str, str] = _NO_MATCHES,
    domain: TopologyTerm = csi_driver.ANYWHERE,
    *,
    require_best_effort: bool = True,
) -> Resolution:
    """Returns the pod's Longhorn volumes.

    With `require_best_effort` False a best-effort volume does not need local space. `matches` are the PersistentVolumes that unbound claims
    will be bound to, by the claim's name; without one Longhorn creates a volume (see `free_volume_matching.py`). `domain` is that of the pod's node, to
    which such a volume may be tied.

    Raises:
        MissingObjectError: a claim, PersistentVolume or Longhorn volume that is named does not exist
        ResolutionError: an ephemeral claim belongs to another pod or has an impossible size, or an unbound claim cannot become a volume
    """
    volumes: dict[str, PodVolume] = {}
    for mount in sorted(pod.volumes, key=lambda mount: (mount.claim, mount.name)):
        claim = _claim(pod, mount, view.snapshot)
        matched = matches.get(mount.claim, "")
        volume = volume_of_claim(claim, view, matched, domain, require_best_effort=require_best_effort)
        if volume is not None:
            key = volume.volume.name if volume.bound else volume.claim
            earlier = volumes.get(key)
            in_use_on = _in_use_on(pod, claim, view) | (earlier.in_use_on if earlier is not None else frozenset())
            entry = earlier or volume
            # Copies are most of the work for a pod with thousands of volumes.
            volumes[key] = entry if in_use_on == entry.in_use_on else replace(entry, in_use_on=in_use_on)
    # An unbound claim is named in full if its name is ambiguous.
    uses = Counter(volume.name for volume in volumes.values())
    return Resolution(
        tuple(
            replace(volume, name=volume.claim) if uses[volume.name] > 1 and not volume.bound else volume
            for volume in volumes.values()
        )
    )


def exceeds_attach_limit(pod: kube.Pod) -> bool:
    """Whether a pod has more volumes than a node can attach, which bounds the work for any pod."""
    volumes = pod.volumes
    # Volumes of other drivers count too, because the driver shows only when a volume is resolved.
    return len(volumes) > MAX_VOLUMES_PER_NODE and len({mount.claim for mount in volumes}) > MAX_VOLUMES_PER_NODE


def volume_of_claim(
    claim: kube.Claim,
    view: View,
    matched: str = "",
    domain: TopologyTerm = csi_driver.ANYWHERE,
    *,
    require_best_effort: bool = True,
) -> PodVolume | None:
    """Returns the Longhorn volume of a claim. The volume exists or will be created, on a node of `domain`. None if the
    claim belongs to another driver. `matched` is the free PersistentVolume that an unbound claim will be bound to.

    Raises:
        MissingObjectError: the PersistentVolume or Longhorn volume it is bound to does not exist
        ResolutionError: it cannot become a volume
    """
    persistent_volume = claim.spec.volume_name or view.pre_bound_volume(claim) or matched
    if not persistent_volume:
        return future_volume(claim, view, domain, require_best_effort=require_best_effort)
    full = f"{claim.namespace}/{claim.name}"
    volume = bound_volume(persistent_volume, f"PersistentVolumeClaim {full}", view.snapshot)
    if volume is None:
        return None
    volume = view.indexes.growing_volumes.get(volume.name) or volume
    local = is_local(volume, require_best_effort=require_best_effort)
    replicas = view.replicas_of(volume.name)
    return PodVolume(volume.name, full, volume, bound=True, local=local, replicas=replicas, persistent_volume=matched)


def future_volume(
    claim: kube.Claim, view: View, domain: TopologyTerm = csi_driver.ANYWHERE, *, require_best_effort: bool = True
) -> PodVolume | None:
    """Returns the volume that Longhorn would create, for a pod on a node of `domain`. What the claim is bound to does
    not matter. None if the claim belongs to another driver.
    """
    storage_class = storage_class_of(claim.spec, view)
    if storage_class is None or storage_class.provisioner != csi_driver.DRIVER:
        return None
    full = f"{claim.namespace}/{claim.name}"
    subject = f"PersistentVolumeClaim {full}"
    snapshot = view.snapshot
    parameters = volume_parameters(claim, storage_class.parameters, subject, snapshot)
    known = csi_driver.Provisioning(view.settings, snapshot.backing_images, snapshot.backups, domain)
    created = csi_driver.volume_for_claim(claim.name, claim.spec, parameters, known, subject=subject)
    check_source(created, subject, snapshot)
    volume = csi_driver.shards_as_replicas(created)
    local = is_local(volume, require_best_effort=require_best_effort)
    return PodVolume(name=claim.name, claim=full, volume=volume, bound=False, local=local)


def future_volume_name(claim: kube.Claim) -> str:
    """Returns the name that a claim's Longhorn volume will have; "" without a UID."""
    # Kubernetes' provisioner names it after the claim's UID.
    return f"pvc-{claim.uid}" if claim.uid else ""


def current_volume(volume: PodVolume, view: View) -> PodVolume:
    """Returns a resolved volume as this view has it. It may be bound by now, or have other replicas."""
    handle = ""
    if not volume.bound or volume.persistent_volume:
        namespace, _, name = volume.claim.partition("/")
        claim = view.snapshot.claims.get((namespace, name))
        bound_to = view.snapshot.persistent_volumes.get(claim.spec.volume_name) if claim is not None else None
        handle = bound_to.handle if bound_to is not None and bound_to.driver == csi_driver.DRIVER else ""
    # A claim that was matched may have been bound to another volume.
    name = handle or (volume.volume.name if volume.bound else "")
    current = view.volume(name) if name else None
    if current is None:
        return volume
    replicas = view.replicas_of(current.name)
    if current is volume.volume and replicas is volume.replicas:
        return volume
    return replace(volume, name=current.name, volume=current, bound=True, replicas=replicas)


def _claim(pod: kube.Pod, mount: kube.ClaimVolume, snapshot: Snapshot) -> kube.Claim:
    claim = snapshot.claims.get((pod.namespace, mount.claim))
    if claim is None:
        if mount.template is None:
            raise errors.MissingObjectError("PersistentVolumeClaim", f"{pod.namespace}/{mount.claim}", f"pod {pod.key}")
        if mount.problem:
            raise errors.ResolutionError(mount.problem)
        return kube.Claim(pod.namespace, mount.claim, mount.template)
    if mount.ephemeral and not any(
        kind == "Pod" and name == pod.name and pod.uid in ("", uid) for kind, name, uid in claim.owners
    ):
        raise errors.ResolutionError(
            f"PersistentVolumeClaim {claim.namespace}/{claim.name} exists but does not belong to pod {pod.key}, "
            f"whose ephemeral volume {mount.name} needs that name: delete the claim or rename the volume"
        )
    return claim


def missing_storage_classes(pod: kube.Pod, view: View) -> tuple[str, ...]:
    names = {spec.storage_class for spec in _unbound_specs(pod, view) if spec.storage_class}
    return tuple(sorted(name for name in names if name not in view.snapshot.storage_classes))


def has_tied_volume(pod: kube.Pod, view: View) -> bool:
    """Whether Longhorn ties a volume of the pod to the zone or region of its node."""
    classes = (storage_class_of(spec, view) for spec in _unbound_specs(pod, view))
    return any(
        entry is not None and entry.provisioner == csi_driver.DRIVER and csi_driver.is_tied(entry.parameters)
        for entry in classes
    )


def _unbound_specs(pod: kube.Pod, view: View) -> list[kube.ClaimSpec]:
    specs: list[kube.ClaimSpec] = []
    for mount in pod.volumes:
        claim = view.snapshot.claims.get((pod.namespace, mount.claim))
        spec = claim.spec if claim else mount.template
        if spec and not spec.volume_name:
            specs.append(spec)
    return specs


def domain_of_node(name: str, view: View) -> TopologyTerm:
    node = view.cluster.nodes.get(name)
    return csi_driver.ANYWHERE if node is None else TopologyTerm(node.zone, node.region)


def storage_class_of(spec: kube.ClaimSpec, view: View) -> kube.StorageClass | None:
    """Returns the StorageClass of a claim; without a name the default class (Kubernetes' GetDefaultClass)."""
    if spec.storage_class is not None:
        return view.snapshot.storage_classes.get(spec.storage_class)
    return view.default_storage_class


def is_local(volume: longhorn.Volume, *, require_best_effort: bool = True) -> bool:
    """Whether a volume needs space on its pod's node. A volume shared through a share-manager is served over the
    network. A migratable volume is attached like any other. No node has all of a sharded volume.
    """
    if volume.data_layout is not None or (volume.access_mode == "rwx" and not volume.migratable):
        return False
    if volume.data_locality == longhorn.BEST_EFFORT:
        return require_best_effort
    return volume.data_locality == longhorn.STRICT_LOCAL


def _in_use_on(pod: kube.Pod, claim: kube.Claim, view: View) -> frozenset[str]:
    """Names of nodes where other live pods use an exclusive claim."""
    if csi_driver.SHARED_ACCESS_MODES.intersection(claim.spec.access_modes):
        return frozenset()
    return frozenset(
        other.node_name
        for other in view.pods_of(claim.namespace, claim.name)
        if other.live
        and other.node_name
        and (pod.namespace, pod.name, pod.uid or other.uid) != (other.namespace, other.name, other.uid)
    )


NO_DRIVER = "Longhorn's CSI driver is not registered on the node"
NO_DRIVER_DETAIL = (
    f"kube-scheduler may choose the node, and the pod then waits for its volumes until the node's CSINode names {csi_driver.DRIVER}; what helps: "
    "a running longhorn-csi-plugin pod there"
)


def lacks_driver(snapshot: Snapshot, node: str) -> bool:
    """Whether Longhorn's CSI driver is not registered on a node; a snapshot without CSINodes says nothing."""
    return snapshot.csi_nodes is not None and csi_driver.DRIVER not in snapshot.csi_nodes.get(node, ())
