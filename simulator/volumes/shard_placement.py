"""Places the shards of sharded volumes (controller/shard_group_controller.go around scheduler/shard_scheduler.go). A shard has an
object of its own. Longhorn places shards as soon as the volume exists, one after the other, on the first disk that it comes upon,
and attaches the volume once all of them run. Failed and evicted shards are not played.
"""

from app.kube.resources import LONGHORN_NAMESPACE, LONGHORN_SHARDS, LONGHORN_VOLUMES
from scheduler_core.longhorn.csi_driver import shards_as_replicas
from scheduler_core.longhorn.placement import DiskCandidate, schedule_replica
from scheduler_core.model import longhorn
from scheduler_core.model.longhorn import VOLUME_LABEL
from simulator.actions import Action, CreateObject, RequeueAfter
from simulator.objects import Json
from simulator.volumes.observation import VolumeObservation


def place_shards(observation: VolumeObservation) -> list[Action]:
    """Creates a sharded volume's missing shards on distinct nodes; tries again later if one finds no disk."""
    if not observation.model.has_shards:
        return []
    volume = shards_as_replicas(observation.model)
    placed = [
        longhorn.Replica(shard.name, volume.name, int(shard.spec["size"]), shard.spec["nodeID"], shard.spec["diskUUID"])
        for shard in observation.shards
    ]
    used_slots = {shard.spec["slotIndex"] for shard in observation.shards}
    actions: list[Action] = []
    for slot in sorted(set(range(volume.number_of_replicas)) - used_slots):
        pending = longhorn.Replica(f"{volume.name}-{slot}", volume.name, volume.size, data_engine=volume.data_engine)
        result = schedule_replica(observation.cluster, volume, pending, placed)
        if not result.choices:
            return [*actions, RequeueAfter(observation.config.schedule_retry)]
        candidate = observation.rng.choice(result.choices).candidate
        placed.append(
            longhorn.Replica(pending.name, volume.name, volume.size, candidate.node.name, candidate.disk.uuid)
        )
        body = _new_shard(observation, slot, volume.size, candidate)
        actions.append(CreateObject(LONGHORN_SHARDS, body, "shard placed", counter="shards_placed"))
    return actions


def _new_shard(observation: VolumeObservation, slot: int, size: int, candidate: DiskCandidate) -> Json:
    volume = observation.volume
    owner = {"apiVersion": LONGHORN_VOLUMES.api_version, "kind": "Volume", "name": volume.name, "uid": volume.uid}
    metadata: Json = {
        "name": f"{volume.name}-{slot}",
        "namespace": LONGHORN_NAMESPACE,
        "labels": {VOLUME_LABEL: volume.name},
        "ownerReferences": [owner],
    }
    spec: Json = {
        "shardGroupName": volume.name,
        "slotIndex": slot,
        "size": str(size),
        "nodeID": candidate.node.name,
        "diskPath": candidate.disk.path,
        "diskUUID": candidate.disk.uuid,
        "evictionRequested": False,
    }
    return {"metadata": metadata, "spec": spec}


def has_every_shard(observation: VolumeObservation) -> bool:
    """Whether all shards of a sharded volume can run, which its first attachment waits for."""
    layout = observation.model.data_layout
    return (
        layout is not None
        and len(observation.shards) == layout.data_chunks + layout.parity_chunks
        and all(observation.can_run(shard.spec["nodeID"]) for shard in observation.shards)
    )
