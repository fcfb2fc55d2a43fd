"""The annotation that makes kube-scheduler retry a pod: the only thing the extender ever writes to one."""

from __future__ import annotations

from typing import Any, Final

# manifests/access/admissionpolicy.yaml allows this one, and no other change of a pod.
NUDGED: Final = "longhorn.io/scheduler-extender-nudged"


def nudge_patch(uid: str, at: str) -> dict[str, Any]:
    """A merge patch that says when the pod with this UID was nudged; with the UID, it is refused for another pod of its name."""
    return {"metadata": {"uid": uid, "annotations": {NUDGED: at}}}
