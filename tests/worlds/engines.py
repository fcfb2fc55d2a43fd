"""Longhorn's instance managers and engine images, without which no node can attach a volume."""

from collections.abc import Iterable

from tests.builders import LONGHORN, Object


def instance_manager(node: str) -> Object:
    """A running instance manager."""
    return {
        "apiVersion": LONGHORN,
        "kind": "InstanceManager",
        "metadata": {"name": f"im-{node}", "namespace": "longhorn-system"},
        "spec": {"nodeID": node, "dataEngine": "v1", "image": ""},
        "status": {"currentState": "running"},
    }


def engine_image(nodes: Iterable[str]) -> Object:
    """The engine image of volumes that name none, deployed on some nodes."""
    return {
        "apiVersion": LONGHORN,
        "kind": "EngineImage",
        "metadata": {"name": "ei", "namespace": "longhorn-system"},
        "spec": {"image": ""},
        "status": {"state": "deployed", "nodeDeploymentMap": dict.fromkeys(nodes, True)},
    }


def engines(nodes: Iterable[str]) -> list[Object]:
    names = list(nodes)
    return [engine_image(names), *map(instance_manager, names)]
