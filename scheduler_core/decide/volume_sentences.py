"""Sentences about a pod's volumes, for explanations of many nodes: what they take from the cluster, which is computed once,
and where they fit but Longhorn may miss that; and what the claims are that are no Longhorn volumes.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import cached_property

from scheduler_core.cluster.view import View
from scheduler_core.decide.decision import Packing
from scheduler_core.evaluation.replicas_to_place import replica_needs
from scheduler_core.longhorn.csi_driver import DRIVER
from scheduler_core.model import kube
from scheduler_core.model.quantity import MAX_LISTED, format_bytes, join_first
from scheduler_core.structs import Struct
from scheduler_core.volumes import existing_replicas, resolve


class VolumeSentences(Struct, frozen=True, dict=True):
    """What a view tells about a pod's volumes. A sentence names a few volumes and says how many more there are, because
    a pod may have thousands.
    """

    view: View
    resolution: resolve.Resolution

    @cached_property
    def claims_in_use(self) -> str:
        """Which claims are in use, and where."""
        parts = [
            f"claim {volume.claim} is in use on {join_first(sorted(volume.in_use_on), ', ')}"
            for volume in self.resolution.volumes
            if volume.in_use_on
        ]
        return join_first(parts, "; ")

    @cached_property
    def replicas_elsewhere(self) -> str:
        """Which local volumes have replicas, and where."""
        placed = (
            (volume.name, sorted({replica.node_id for replica in volume.replicas if replica.node_id}))
            for volume in self.resolution.local
        )
        parts = [f"{name} has replicas on {join_first(nodes, ', ')}" for name, nodes in placed if nodes]
        return join_first(parts, "; ")

    def kept_replicas(self, name: str) -> str:
        """Says which volumes keep a replica on a node, and so need no new space there."""
        return join_first(self._kept_replicas.get(name, ()), "; ")

    @cached_property
    def _kept_replicas(self) -> Mapping[str, Sequence[str]]:
        by_node: dict[str, list[str]] = defaultdict(list)
        for volume in self.resolution.local:
            for name, use in existing_replicas.replica_uses(volume, self.view.cluster).items():
                if use is not existing_replicas.ReplicaUse.NONE:
                    by_node[name].append(f"{volume.name} keeps its {use.value} replica")
        return by_node

    @property
    def has_needs(self) -> bool:
        return bool(self._counts)

    def needs(self, name: str) -> str:
        """Says which replicas need places together if the pod runs on a node."""
        # Most nodes have no replica of the pod's volumes, and need the same.
        needs = self._needs_on(name) if name in self._nodes_with_replica else self._needs_without_replica
        parts = [
            f"{volume.name} ({format_bytes(volume.volume.size)}): {_places(on_node, elsewhere, name)}"
            for volume, on_node, elsewhere in needs[:MAX_LISTED]
        ]
        return join_first(parts, "; ", len(needs))

    @cached_property
    def _counts(self) -> Mapping[str, int]:
        return {need.volume.claim: need.count for need in replica_needs(self.resolution, self.view)}

    @cached_property
    def _nodes_by_volume(self) -> Sequence[tuple[resolve.PodVolume, frozenset[str]]]:
        """The nodes where a volume needs no new space."""
        cluster = self.view.cluster
        return [
            (volume, existing_replicas.nodes_with_replica(volume, cluster) if volume.local else frozenset())
            for volume in self.resolution.volumes
        ]

    @cached_property
    def _nodes_with_replica(self) -> frozenset[str]:
        return frozenset().union(*(nodes for _, nodes in self._nodes_by_volume))

    @cached_property
    def _needs_without_replica(self) -> Sequence[tuple[resolve.PodVolume, bool, int]]:
        return self._needs_on("")

    def _needs_on(self, name: str) -> Sequence[tuple[resolve.PodVolume, bool, int]]:
        # Each volume with whether a replica needs the pod's node, and how many may go to any node.
        needs: list[tuple[resolve.PodVolume, bool, int]] = []
        for volume, nodes in self._nodes_by_volume:
            on_node = volume.local and name not in nodes
            elsewhere = self._counts.get(volume.claim, on_node) - on_node
            if on_node or elsewhere > 0:
                needs.append((volume, on_node, elsewhere))
        return needs


def _places(on_node: bool, elsewhere: int, name: str) -> str:  # noqa: FBT001 # as in `_needs_on`
    places = [f"1 on node {name}"] * on_node + [f"{elsewhere} on any node"] * (elsewhere > 0)
    return ", ".join(places)


def never_offered(packing: Packing, missing: Sequence[int], disks: Sequence[str]) -> str:
    """Says that a packing mode never offers a node, and what would end that. `missing`: the least bytes that each disk
    lacks for stale safety, in the order of their names; empty if unknown.
    """
    ends = ["--packing auto, best with the placement guard, which keeps Longhorn to the plan"]
    lacking = [f"{format_bytes(size)} on disk {disk}" for size, disk in zip(missing, disks, strict=False) if size]
    if lacking:
        # A node that is order-safe need not be stale-safe.
        at_most = "at most " if packing is Packing.ORDER_SAFE else ""
        ends.append(f"{at_most}{format_bytes(sum(missing))} more space: {join_first(lacking, ', ')}")
    return f"--packing {packing} never offers the node to these volumes; what would end that: {', or '.join(ends)}"


class SkippedClaim(Struct, frozen=True):
    """A claim that the decision leaves out."""

    claim: str  # the claim as ``namespace/name``
    cause: str  # what it is, as a sentence


def skipped_claims(pod: kube.Pod, view: View, resolution: resolve.Resolution) -> tuple[SkippedClaim, ...]:
    """Returns the pod's claims that the decision leaves out, sorted by name. `resolution` has the pod's Longhorn
    volumes on all nodes.
    """
    skipped: dict[str, SkippedClaim] = {}
    resolved = {volume.claim for volume in resolution.volumes}
    handles = {volume.volume.name for volume in resolution.volumes if volume.bound}
    for mount in sorted(pod.volumes, key=lambda mount: mount.claim):
        claim = view.snapshot.claims.get((pod.namespace, mount.claim))
        spec = claim.spec if claim is not None else mount.template
        key = f"{pod.namespace}/{mount.claim}"
        if spec is None or key in resolved:
            continue
        name = spec.volume_name or (view.pre_bound_volume(claim) if claim is not None else "")
        persistent_volume = view.snapshot.persistent_volumes.get(name)
        # A Longhorn volume with several claims is listed with the first of them.
        if persistent_volume is not None and persistent_volume.handle in handles and persistent_volume.driver == DRIVER:
            continue
        cause = _unbound_cause(spec, view)
        if persistent_volume is not None:
            driver = f"driver {persistent_volume.driver}" if persistent_volume.driver else "no CSI driver"
            cause = f"PersistentVolume {name} is of {driver}"
        skipped[key] = SkippedClaim(key, cause)
    return tuple(skipped.values())


def _unbound_cause(spec: kube.ClaimSpec, view: View) -> str:
    storage_class = resolve.storage_class_of(spec, view)
    if storage_class is None and spec.storage_class:
        return f"StorageClass {spec.storage_class} does not exist"
    if storage_class is None and spec.storage_class is None:
        return "the claim names no StorageClass, and none is the default"
    if storage_class is None:
        return "the claim waits for an existing PersistentVolume without StorageClass"
    if storage_class.provisioner != DRIVER:
        return f"StorageClass {storage_class.name} is of provisioner {storage_class.provisioner}"
    return "the claim will be bound to an existing PersistentVolume of another driver"
