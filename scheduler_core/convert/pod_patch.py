"""The condition PodScheduled of a pod that waits, as kube-scheduler writes it (schedule_one.go: updatePod, podutil.UpdatePodCondition)."""

from __future__ import annotations

from typing import Any, Final

from scheduler_core.convert.meta import Metadata, Wire, WireCondition, conditions, shape_json
from scheduler_core.model.kube import condition

POD_REASON_UNSCHEDULABLE: Final = "Unschedulable"
POD_REASON_SCHEDULER_ERROR: Final = "SchedulerError"
_POD_SCHEDULED: Final = "PodScheduled"
_FALSE: Final = "False"


class _Metadata(Metadata):
    generation: int | None = None


class _Spec(Wire):
    node_name: str | None = None


class _Status(Wire):
    conditions: list[WireCondition] | None = None


class _Pod(Wire):
    metadata: _Metadata
    spec: _Spec | None = None
    status: _Status | None = None


def not_scheduled_patch(raw: bytes, uid: str, reason: str, message: str, now: str) -> dict[str, Any] | None:
    """The strategic merge patch of a pod's status by which it is not scheduled; None if there is nothing to write.

    There is nothing if the pod says so already, has a node, or is another one of its name. Bearing the version that was read, the patch is
    refused with a conflict if the pod is bound meanwhile. `now` is when it stopped to be scheduled, should it have been.

    Raises:
        ObjectError: it is no pod
    """
    pod = shape_json("Pod", raw, _Pod)
    if pod.metadata.uid != uid or (pod.spec and pod.spec.node_name):
        return None
    found = condition(conditions(pod.status.conditions if pod.status else None), _POD_SCHEDULED)
    if (found.status, found.reason, found.message) == (_FALSE, reason, message):
        return None
    since = found.last_transition_time if found.status == _FALSE else ""
    wanted: dict[str, Any] = {
        "type": _POD_SCHEDULED,
        "status": _FALSE,
        "reason": reason,
        "message": message,
        "lastTransitionTime": since or now,
    }
    if pod.metadata.generation:  # from Kubernetes 1.33 on
        wanted["observedGeneration"] = pod.metadata.generation
    return {"metadata": {"resourceVersion": pod.metadata.resource_version}, "status": {"conditions": [wanted]}}
