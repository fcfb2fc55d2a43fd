"""Patches of a pod: the annotation that nudges it, and the condition PodScheduled. The annotation makes kube-scheduler
retry the pod. The condition is written by `longhorn-extender schedule` as kube-scheduler writes it (schedule_one.go:
updatePod, podutil.UpdatePodCondition).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Final

from scheduler_core.convert.fields import Fields
from scheduler_core.model.kube import Condition, condition

# The extender writes nothing else to a pod; manifests/access/admissionpolicy.yaml allows no other change.
NUDGE_ANNOTATION: Final = "longhorn.io/scheduler-extender-nudged"
POD_REASON_UNSCHEDULABLE: Final = "Unschedulable"
POD_REASON_SCHEDULER_ERROR: Final = "SchedulerError"
_POD_SCHEDULED: Final = "PodScheduled"
_FALSE: Final = "False"


@dataclass(frozen=True, slots=True)
class _Pod:
    uid: Annotated[str, "metadata.uid"] = ""
    version: Annotated[str | None, "metadata.resourceVersion"] = None
    generation: Annotated[int, "metadata.generation"] = 0
    node: Annotated[str, "spec.nodeName"] = ""
    conditions: Annotated[tuple[Condition, ...], "status.conditions"] = ()


_POD: Final = Fields("Pod", _Pod)


def nudge_patch(uid: str, at: str) -> dict[str, Any]:
    """The merge patch that notes when a pod was nudged, with the pod's UID, so that it is refused for a different pod
    of the same name.
    """
    return {"metadata": {"uid": uid, "annotations": {NUDGE_ANNOTATION: at}}}


def not_scheduled_patch(raw: bytes, uid: str, reason: str, message: str, now: str) -> dict[str, Any] | None:
    """The strategic merge patch that sets PodScheduled to False, None if the pod has this very condition already, has a
    node, or is a different pod of the same name. `now` becomes the last transition, unless the condition was False
    already.

    Raises:
        ObjectError: it is no pod
    """
    pod = _POD.decode(raw)
    if pod.uid != uid or pod.node:
        return None
    current = condition(pod.conditions, _POD_SCHEDULED)
    if (current.status, current.reason, current.message) == (_FALSE, reason, message):
        return None
    since = current.last_transition_time if current.status == _FALSE else ""
    desired: dict[str, Any] = {
        "type": _POD_SCHEDULED,
        "status": _FALSE,
        "reason": reason,
        "message": message,
        "lastTransitionTime": since or now,
    }
    if pod.generation:  # from Kubernetes 1.33 on
        desired["observedGeneration"] = pod.generation
    # With the version that was read, the patch is refused with a conflict if the pod is bound in the meantime.
    return {"metadata": {"resourceVersion": pod.version}, "status": {"conditions": [desired]}}
