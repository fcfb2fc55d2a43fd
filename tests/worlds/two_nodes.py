"""A cluster of two empty Longhorn nodes, and the pods that tests run on it."""

from typing import Any

from tests import builders as make
from tests.builders import Object
from tests.worlds.engines import engines

NODES = ("a", "b")


def two_nodes() -> list[Object]:
    """Two nodes of 100 Gi with engines, and the StorageClass of best-effort volumes."""
    return [
        make.storage_class("longhorn"),
        *map(make.kube_node, NODES),
        *map(make.longhorn_node, NODES),
        *engines(NODES),
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
