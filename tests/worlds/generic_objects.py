"""Nodes, pods and services with what the rules of a policy file read."""

from typing import Any

from tests.builders import Object, pod


def ready_node(name: str, cpu: str = "4", **labels: str) -> Object:
    """A ready node of 4 CPU."""
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": labels},
        "status": {
            "capacity": {"cpu": cpu, "memory": "8Gi", "pods": "10"},
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    }


def requesting_pod(*claims: str, cpu: str = "1", labels: dict[str, str] | None = None, **fields: Any) -> Object:
    """A pod that requests CPU; further fields as for `tests.builders.pod`."""
    raw = pod(*claims, **fields)
    raw["metadata"]["labels"] = labels or {}
    raw["spec"]["containers"] = [{"name": "c", "resources": {"requests": {"cpu": cpu}}}]
    return raw


def service(name: str, **selector: str) -> Object:
    """A service in the default namespace."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"selector": selector},
    }
