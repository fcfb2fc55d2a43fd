"""What Longhorn's scheduler-extender proposal waits for after a pod was placed: until Longhorn's status lists the replicas of its volumes on the node.

Data flow: a pod and its node, over a view → the pod's local volumes → those whose replica on the node is not yet listed in
`DiskStatus.scheduledReplica` there. A volume that needs no local room is not awaited: its replicas may be anywhere. A claim
that is not bound yet has no replica.
"""

from __future__ import annotations

from scheduler_core.cluster.view import View
from scheduler_core.errors import ResolutionError
from scheduler_core.model.kube import Pod
from scheduler_core.model.longhorn import Node
from scheduler_core.volumes.resolve import PodVolume, resolve

PENDING = "Pending"


def awaited_volumes(pod: Pod, node: str, view: View, *, require_best_effort: bool = True) -> tuple[str, ...]:
    """The names of the pod's local volumes that Longhorn does not list on the node yet.

    With `require_best_effort` False a best-effort volume does not need local room, and so is not awaited.

    Raises:
        ResolutionError: an object the pod names does not exist or contradicts it
    """
    listing = view.snapshot.longhorn_nodes.get(node)
    local = resolve(pod, view, require_best_effort=require_best_effort).local
    return tuple(volume.name for volume in local if listing is None or not _listed(volume, listing))


def chosen_pods(view: View) -> tuple[tuple[Pod, str], ...]:
    """Pods kube-scheduler has chosen a node for but not bound yet, with that node: nominated, or selected for an unbound claim."""
    found = []
    for pod in view.snapshot.pods.values():
        if pod.live and not pod.node_name and pod.phase == PENDING and pod.volumes:
            node = chosen_node(pod, view)
            if node:
                found.append((pod, node))
    return tuple(found)


def chosen_node(pod: Pod, view: View) -> str:
    """The node the pod is bound to, or will be as far as is known; "" for none.

    A nomination beside PodScheduled=False comes from preemption and is no decision.
    """
    return pod.node_name or view.selected_node(pod) or ("" if pod.unschedulable else pod.nominated_node)


def arriving_pods(view: View, *, require_best_effort: bool = True) -> tuple[tuple[Pod, str], ...]:
    """Bound pods that do not run yet and await replicas, with their nodes: what a predecessor had reserved."""
    found = []
    for pod in view.snapshot.pods.values():
        if not (pod.live and pod.node_name and pod.phase == PENDING):
            continue
        try:
            awaited = awaited_volumes(pod, pod.node_name, view, require_best_effort=require_best_effort)
        except ResolutionError:
            continue  # nobody can await what cannot be resolved; its node is judged by Longhorn's own numbers
        if awaited:
            found.append((pod, pod.node_name))
    return tuple(found)


def _listed(volume: PodVolume, node: Node) -> bool:
    listed = {name for disk in node.disks for name in disk.scheduled_replicas}
    return any(replica.node_id == node.name and replica.name in listed for replica in volume.replicas)
