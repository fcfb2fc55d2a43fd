"""A cluster of two empty Longhorn nodes, and the pods that tests run on it."""

from typing import Any, Final

from tests import builders as make
from tests.builders import Object

NODES: Final = ("a", "b")


def two_nodes() -> list[Object]:
    """Two nodes of 100 Gi with engines, and the StorageClass of best-effort volumes."""
    managers = [
        {
            "apiVersion": make.LONGHORN,
            "kind": "InstanceManager",
            "metadata": {"name": f"im-{node}", "namespace": "longhorn-system"},
            "spec": {"nodeID": node, "dataEngine": "v1", "image": ""},
            "status": {"currentState": "running"},
        }
        for node in NODES
    ]
    engine = {
        "apiVersion": make.LONGHORN,
        "kind": "EngineImage",
        "metadata": {"name": "ei", "namespace": "longhorn-system"},
        "spec": {"image": ""},
        "status": {"state": "deployed", "nodeDeploymentMap": dict.fromkeys(NODES, True)},
    }
    return [
        make.storage_class("longhorn"),
        *(make.kube_node(name) for name in NODES),
        *(make.longhorn_node(name) for name in NODES),
        *managers,
        engine,
    ]


def database_pod(number: int, node: str = "", uid: str = "", **fields: Any) -> Object:
    return make.pod(f"data-{number}", name=f"db-{number}", uid=uid or f"uid-{number}", node=node, **fields)


def claim_with_node(number: int, node: str, size: float = 10) -> Object:
    """The unbound claim data-<number> of `size` Gi, for which kube-scheduler has selected a node."""
    raw = make.claim(f"data-{number}", size)
    raw["metadata"]["annotations"] = {"volume.kubernetes.io/selected-node": node}
    return raw


def nominated_pod(number: int, node: str, **condition: Any) -> Object:
    """The pod db-<number>, whose status nominates a node; `condition` is that of type PodScheduled."""
    raw = database_pod(number)
    raw["status"]["nominatedNodeName"] = node
    raw["status"]["conditions"] = [{"type": "PodScheduled", "status": "False", **condition}] if condition else []
    return raw
