"""Where a new volume's data comes from, as parameters for `longhorn/csi_driver.py`.

Source: external-provisioner (getPVCSource, getSnapshotSource) finds the claim or the VolumeSnapshot that a claim names, and
csi/controller_server.go: CreateVolume adds to the parameters of the claim's StorageClass what it is.
"""

from collections.abc import Mapping

from scheduler_core.errors import MissingObjectError, ResolutionError
from scheduler_core.longhorn import csi_driver, replica_request
from scheduler_core.model import kube, longhorn, quantity
from scheduler_core.model.snapshot import Snapshot

_SNAPSHOT = "snap"
_BACKUPS = ("bak", "bs")
_BACKING_IMAGE = "bi"


def volume_parameters(
    claim: kube.Claim, parameters: Mapping[str, str], subject: str, snapshot: Snapshot
) -> Mapping[str, str]:
    """Returns the parameters of a claim's StorageClass with what the source of its data adds.

    Raises:
        MissingObjectError: the claim or the VolumeSnapshot that is its source does not exist
        ResolutionError: Longhorn makes no volume from that source
    """
    if claim.spec.source_claim:
        volume = _claimed_volume(claim, subject, snapshot)
        return {**parameters, "dataSource": f"vol://{volume.name}"}
    if claim.spec.source_snapshot:
        return {**parameters, **_snapshot_parameters(claim, subject, snapshot)}
    return parameters


def check_source(volume: longhorn.Volume, subject: str, snapshot: Snapshot) -> None:
    """Checks the volume that a new volume is cloned from (validator.go: verifyVolumeDataSource).

    Raises:
        MissingObjectError: it does not exist
        ResolutionError: it is of another data engine
    """
    name = replica_request.source_volume(volume.data_source)
    if not name:
        return
    source = snapshot.volumes.get(name)
    if source is None:
        raise MissingObjectError("Longhorn volume", name, subject)
    if source.data_engine != volume.data_engine:
        raise ResolutionError(
            f"{subject}: it has dataEngine {volume.data_engine}, and its source {name} has {source.data_engine}"
        )


def bound_volume(name: str, subject: str, snapshot: Snapshot) -> longhorn.Volume | None:
    """Returns the Longhorn volume of a PersistentVolume, None for one of another driver.

    Raises:
        MissingObjectError: the PersistentVolume, or its Longhorn volume, does not exist
    """
    persistent_volume = snapshot.persistent_volumes.get(name)
    if persistent_volume is None:
        raise MissingObjectError("PersistentVolume", name, subject)
    if persistent_volume.driver != csi_driver.DRIVER:
        return None
    volume = snapshot.volumes.get(persistent_volume.handle)
    if volume is None:
        handle = persistent_volume.handle or "(no volumeHandle)"
        raise MissingObjectError("Longhorn volume", handle, f"PersistentVolume {name}")
    return volume


def _claimed_volume(claim: kube.Claim, subject: str, snapshot: Snapshot) -> longhorn.Volume:
    full = f"{claim.namespace}/{claim.spec.source_claim}"
    source = snapshot.claims.get((claim.namespace, claim.spec.source_claim))
    if source is None or not source.spec.volume_name or source.deleting:
        raise MissingObjectError("bound PersistentVolumeClaim", full, subject)
    volume = bound_volume(source.spec.volume_name, f"PersistentVolumeClaim {full}", snapshot)
    if volume is None:
        raise ResolutionError(f"{subject}: its source, PersistentVolumeClaim {full}, is no Longhorn volume")
    size = csi_driver.csi_size(claim.spec.request or 0, "")
    if size != volume.size:
        raise ResolutionError(
            f"{subject}: a clone has the size of its source, and it asks for {quantity.format_bytes(size)}, "
            f"while PersistentVolumeClaim {full} has {quantity.format_bytes(volume.size)}"
        )
    return volume


def _snapshot_parameters(claim: kube.Claim, subject: str, snapshot: Snapshot) -> Mapping[str, str]:
    """Returns what the CSI driver makes of a snapshot's handle (decodeSnapshotID)."""
    full = f"{claim.namespace}/{claim.spec.source_snapshot}"
    bound = snapshot.volume_snapshots.get((claim.namespace, claim.spec.source_snapshot), "")
    content = snapshot.volume_snapshot_contents.get(bound)
    if content is None or not content.handle:
        raise MissingObjectError("bound VolumeSnapshot", full, subject)
    kind, _, rest = content.handle.partition("://")
    volume, _, name = rest.partition("/")
    if content.driver == csi_driver.DRIVER and kind == _BACKING_IMAGE:
        return longhorn.query_values(content.handle)
    if content.driver == csi_driver.DRIVER and kind == _SNAPSHOT and name:
        return {"dataSource": content.handle}
    if content.driver == csi_driver.DRIVER and kind in _BACKUPS and name:
        return {"fromBackup": f"?backup={name}&volume={volume}"}
    raise ResolutionError(f"{subject}: its source, VolumeSnapshot {full}, is no snapshot, backup or image of Longhorn")
