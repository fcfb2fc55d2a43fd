"""The node of a pod that is decided, bound or not, and pods whose local volumes Longhorn's status does not list there yet.

Longhorn's scheduler-extender proposal keeps a node reserved until Longhorn's status lists the replicas of the pod's local volumes there
(`unlisted_volumes`). A volume that needs no local space does not count, because its replicas may be on any node. An unbound claim has
no replica.
"""

from contextlib import suppress

from scheduler_core.cluster.view import View
from scheduler_core.errors import ResolutionError
from scheduler_core.model.kube import Pod
from scheduler_core.volumes.resolve import resolve

PENDING = "Pending"


def unlisted_volumes(pod: Pod, node: str, view: View, *, require_best_effort: bool = True) -> tuple[str, ...]:
    """Names of the pod's local volumes not listed on the node. With `require_best_effort` False a best-effort volume
    does not need local space and is left out.
    """
    longhorn_node = view.snapshot.longhorn_nodes.get(node)
    listed = {name for disk in (longhorn_node.disks if longhorn_node else ()) for name in disk.scheduled_replicas}
    local = resolve(pod, view, require_best_effort=require_best_effort).local
    return tuple(
        volume.name
        for volume in local
        if not any(replica.node_id == node and replica.name in listed for replica in volume.replicas)
    )


def decided_pods(view: View) -> tuple[tuple[Pod, str], ...]:
    """Returns the pods that are not bound yet, but have a decided node."""
    waiting = (pod for pod in view.snapshot.pods.values() if pod.live and not pod.node_name and pod.phase == PENDING)
    return tuple((pod, node) for pod in waiting if pod.volumes and (node := decided_node(pod, view)))


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
        # The replicas of a pod that cannot be resolved are unknown; Longhorn's own numbers then decide about its node.
        with suppress(ResolutionError):
            if unlisted_volumes(pod, pod.node_name, view, require_best_effort=require_best_effort):
                pods.append((pod, pod.node_name))
    return tuple(pods)
