"""Nodes whose kubelet is kwok: their manifest, and whether they are ready."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

_NOT_READY: Final = "node.kubernetes.io/not-ready"
_CAPACITY: Final = {"cpu": "32", "memory": "256Gi", "pods": "200"}
_ANNOTATIONS: Final = {
    "kwok.x-k8s.io/node": "fake",
    # As a kubelet sets it: without it the attach/detach controller creates no VolumeAttachments for the node.
    "volumes.kubernetes.io/controller-managed-attach-detach": "true",
}


def manifest(
    name: str,
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
    taints: Sequence[Mapping[str, str]] = (),
    allocatable: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """The manifest of a node (see DevCluster.create_node)."""
    resources = dict(allocatable or _CAPACITY)
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "labels": {"kubernetes.io/hostname": name, "kubernetes.io/os": "linux", **(labels or {})},
            "annotations": {**_ANNOTATIONS, **(annotations or {})},
        },
        "spec": {"taints": [dict(taint) for taint in taints]},
        "status": {"allocatable": resources, "capacity": resources},
    }


def is_ready(node: Mapping[str, Any]) -> bool:
    """Whether a node is Ready and without its not-ready taint."""
    conditions = node["status"].get("conditions") or ()
    tainted = any(taint["key"] == _NOT_READY for taint in node["spec"].get("taints") or ())
    return not tainted and any(it["type"] == "Ready" and it["status"] == "True" for it in conditions)
