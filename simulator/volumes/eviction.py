"""Detached volumes whose replicas have to leave: VolumeEvictionController attaches them for as long as that takes."""

from __future__ import annotations

from app.kube.resources import LONGHORN_VOLUMES
from scheduler_core.longhorn.placement import find_candidates
from scheduler_core.longhorn.replica_request import Ask
from simulator.actions import Action, Patch, Wake
from simulator.objects import EVICTING
from simulator.volumes.observation import DETACHED, Sight


def attach_for_eviction(sight: Sight) -> list[Action]:
    """Attaches a detached volume with replicas to evict, if every one of its replicas has somewhere to go; later detaches it."""
    evicting = [replica for replica in sight.present if replica.model.eviction_requested]
    if sight.attached_for_eviction:
        if evicting or not sight.model.current_node_id:
            return []
        body = {"spec": {"nodeID": ""}, "metadata": {"annotations": {EVICTING: None}}}
        return [Patch(LONGHORN_VOLUMES, sight.volume, body, "volume evicted, to be detached")]
    if not evicting or sight.model.node_id or sight.model.state != DETACHED:
        return []
    if not all(_has_candidate(sight, replica.model.name) for replica in sight.present):
        return [Wake(sight.config.schedule_retry)]
    up = sorted(name for name, node in sight.cluster.nodes.items() if node.ready)
    if not up:
        return []
    body = {"spec": {"nodeID": sight.rng.choice(up)}, "metadata": {"annotations": {EVICTING: "true"}}}
    return [Patch(LONGHORN_VOLUMES, sight.volume, body, "volume to be attached for eviction", counts="evictions")]


def _has_candidate(sight: Sight, name: str) -> bool:
    replica = next(each for each in sight.models if each.name == name)
    return bool(find_candidates(sight.cluster, Ask.of(sight.model, replica), sight.models).disks)
