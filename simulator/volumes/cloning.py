"""Copies the data of clones: Longhorn's VolumeCloneController attaches a new clone, before any workload, for as long as that takes."""

from __future__ import annotations

from app.kube.resources import LONGHORN_VOLUMES
from scheduler_core.longhorn.volume_validation import awaits_copy
from simulator.actions import Action, PatchObject
from simulator.volumes.observation import ATTACHED, DETACHED, VolumeObservation, is_working, patch_volume_status


def copy_clone(observation: VolumeObservation) -> list[Action]:
    """Attaches a new clone, and detaches it once it has its data. Any ready node may be the one: Longhorn takes the owner of the
    volume (GetReadyNodeForVolumeAttach), whichever node the pod is on. A node that a replica is bound to stays the one.
    """
    model = observation.model
    if not awaits_copy(model):
        return []
    if model.state == ATTACHED and any(is_working(replica) for replica in observation.live_replicas):
        status = {"cloneStatus": {"state": "copy-completed-awaiting-healthy", "sourceVolume": model.data_source}}
        # The state is written last: a volume with it is not detached here again.
        return [
            PatchObject(LONGHORN_VOLUMES, observation.volume, {"spec": {"nodeID": ""}}, "clone copied, to be detached"),
            patch_volume_status(observation, status, "clone copied", "cloned"),
        ]
    if model.node_id or model.state != DETACHED:
        return []
    bound = {replica.model.hard_node_affinity for replica in observation.live_replicas} - {""}
    up = sorted(bound) or sorted(name for name in observation.cluster.nodes if observation.can_run(name))
    if not up:
        return []
    body = {"spec": {"nodeID": observation.rng.choice(up)}}
    return [PatchObject(LONGHORN_VOLUMES, observation.volume, body, "clone to be attached")]
