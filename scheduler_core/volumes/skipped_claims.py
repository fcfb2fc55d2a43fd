"""A pod's claims that are no Longhorn volumes, and what they are instead.

Source: Longhorn's scheduler-extender proposal, Filter step 1: volumes of other drivers are skipped.
"""

from __future__ import annotations

from dataclasses import dataclass

from scheduler_core.cluster.view import View
from scheduler_core.longhorn.provisioned_volume import DRIVER
from scheduler_core.model import kube
from scheduler_core.volumes.resolve import Resolution, storage_class_of


@dataclass(frozen=True, slots=True)
class SkippedClaim:
    """A claim that the decision leaves out."""

    claim: str  # the claim as ``namespace/name``
    cause: str  # what it is, as a sentence


def skipped_claims(pod: kube.Pod, view: View, resolution: Resolution) -> tuple[SkippedClaim, ...]:
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
        cause = _bound_cause(persistent_volume) if persistent_volume is not None else _unbound_cause(spec, view)
        skipped[key] = SkippedClaim(key, cause)
    return tuple(skipped.values())


def _bound_cause(volume: kube.PersistentVolume) -> str:
    driver = f"driver {volume.driver}" if volume.driver else "no CSI driver"
    return f"PersistentVolume {volume.name} is of {driver}"


def _unbound_cause(spec: kube.ClaimSpec, view: View) -> str:
    storage_class = storage_class_of(spec, view)
    if storage_class is None and spec.storage_class:
        return f"StorageClass {spec.storage_class} does not exist"
    if storage_class is None and spec.storage_class is None:
        return "the claim names no StorageClass, and none is the default"
    if storage_class is None:
        return "the claim waits for an existing PersistentVolume without StorageClass"
    if storage_class.provisioner != DRIVER:
        return f"StorageClass {storage_class.name} is of provisioner {storage_class.provisioner}"
    return "the claim will be bound to an existing PersistentVolume of another driver"
