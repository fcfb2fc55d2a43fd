"""Rules about attaching, eviction and settings that look at a node before any of its disks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from scheduler_core.cluster.view import View
from scheduler_core.evaluation.reasons import Refused, reason_of
from scheduler_core.longhorn.disk_stage import space_setting_refusal
from scheduler_core.longhorn.eviction import takes_new_replicas
from scheduler_core.longhorn.node_stage import engine_refusal, not_ready_refusal
from scheduler_core.longhorn.placement import cluster_refusal
from scheduler_core.longhorn.replica_request import ReplicaRequest
from scheduler_core.longhorn.volume_readiness import readiness_refusal
from scheduler_core.model.verdict import Reason
from scheduler_core.volumes.requirements import VolumeClasses, requirements
from scheduler_core.volumes.resolve import PodVolume, Resolution


def unready_volume(view: View, resolution: Resolution) -> Refused | None:
    """Returns why Longhorn attaches one of the existing volumes on no node now."""
    for volume in _ordered(volume for volume in resolution.volumes if volume.bound):
        refusal = readiness_refusal(volume.volume, volume.replicas, view.cluster)
        if refusal is not None:
            return reason_of(refusal)
    return None


def refusal_on_every_node(view: View, resolution: Resolution) -> Refused | None:
    """Returns why Longhorn refuses a local volume on every node, before it looks at any node.

    Any setting that cannot be read is such a reason: its default may be far from what was meant.
    """
    for name in sorted(view.settings.faults):
        return Refused(Reason.BAD_SETTING, str(view.settings.faults[name]))
    for volume in _ordered(resolution.local):
        refusal = cluster_refusal(view.cluster, ReplicaRequest.for_volume(volume.volume))
        if refusal is not None:
            return reason_of(refusal)
    return None


def _ordered(volumes: Iterable[PodVolume]) -> Sequence[PodVolume]:
    # Which of several reasons is returned must not depend on the claims' names.
    return requirements(volumes, ()).volumes


def attach_refusal(view: View, classes: VolumeClasses, name: str) -> Refused | None:
    """Returns why a node cannot attach the volumes: it needs a ready Longhorn node with their engines, but no disk."""
    node = view.snapshot.longhorn_nodes.get(name)
    if node is None:
        return Refused(Reason.NOT_A_LONGHORN_NODE, f"there is no nodes.longhorn.io {name}")
    if node.deleting:
        return Refused(Reason.NODE_NOT_READY, f"Longhorn node {name} is being deleted")
    if not node.ready:
        return reason_of(not_ready_refusal(node))
    for engine in classes.engines:
        refusal = engine_refusal(view.cluster, engine, node)
        if refusal is not None:
            return reason_of(refusal)
    return None


def new_replica_refusal(view: View, name: str) -> Refused | None:
    """Returns why a Longhorn node takes no new replica, whatever its size and class. A node whose eviction is requested
    is refused.
    """
    setting = space_setting_refusal(view.cluster)
    if setting is not None:
        return reason_of(setting)
    if not takes_new_replicas(view.snapshot.longhorn_nodes[name]):
        return Refused(Reason.NODE_EVICTING, f"eviction of Longhorn node {name} is requested")
    return None
