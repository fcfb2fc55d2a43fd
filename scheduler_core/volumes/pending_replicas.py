"""Replicas that Longhorn's status does not list yet on the node of a placed pod.

Longhorn's scheduler-extender proposal keeps a node reserved until they are listed. Data flow: a pod and its node, over a view → the
pod's local volumes → those without a replica in `DiskStatus.scheduledReplica` on that node. A volume that needs no local space does
not count, because its replicas may be on any node. An unbound claim has no replica.
"""

from __future__ import annotations

from scheduler_core.cluster.view import View
from scheduler_core.errors import ResolutionError
from scheduler_core.model.kube import Pod
from scheduler_core.model.longhorn import Node
from scheduler_core.volumes.resolve import PodVolume, resolve

PENDING = "Pending"


def unlisted_volumes(pod: Pod, node: str, view: View, *, require_best_effort: bool = True) -> tuple[str, ...]:
    """Names of the pod's local volumes not listed on the node. With `require_best_effort` False a best-effort volume
    does not need local space and is left out.

    Raises:
        ResolutionError: an object the pod names does not exist or contradicts it
    """
    longhorn_node = view.snapshot.longhorn_nodes.get(node)
    local = resolve(pod, view, require_best_effort=require_best_effort).local
    return tuple(volume.name for volume in local if longhorn_node is None or not _in_status(volume, longhorn_node))


def decided_pods(view: View) -> tuple[tuple[Pod, str], ...]:
    """Returns the pods that are not bound yet, but have a decided node."""
    pods = []
    for pod in view.snapshot.pods.values():
        if pod.live and not pod.node_name and pod.phase == PENDING and pod.volumes:
            node = decided_node(pod, view)
            if node:
                pods.append((pod, node))
    return tuple(pods)


def decided_node(pod: Pod, view: View) -> str:
    """Returns the node that the pod is or will be bound to, "" for none."""
    # A nomination together with PodScheduled=False comes from preemption and is no decision.
    return pod.node_name or view.selected_node(pod) or ("" if pod.unschedulable else pod.nominated_node)


def pods_awaiting_replicas(view: View, *, require_best_effort: bool = True) -> tuple[tuple[Pod, str], ...]:
    """Returns pending bound pods that await replicas, with their nodes."""
    pods = []
    for pod in view.snapshot.pods.values():
        if not (pod.live and pod.node_name and pod.phase == PENDING):
            continue
        try:
            unlisted = unlisted_volumes(pod, pod.node_name, view, require_best_effort=require_best_effort)
        except ResolutionError:
            # The replicas of a pod that cannot be resolved are unknown; Longhorn's own numbers then decide about its node.
            continue
        if unlisted:
            pods.append((pod, pod.node_name))
    return tuple(pods)


def _in_status(volume: PodVolume, node: Node) -> bool:
    listed = {name for disk in node.disks for name in disk.scheduled_replicas}
    return any(replica.node_id == node.name and replica.name in listed for replica in volume.replicas)
