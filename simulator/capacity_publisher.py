"""CSIStorageCapacity: what Longhorn's GetCapacity returns for each node and StorageClass, from the nodes' lagging status."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import Final

from app.kube.resources import CAPACITIES, LONGHORN_NAMESPACE
from scheduler_core.longhorn.cluster import Cluster
from scheduler_core.longhorn.csi_driver import HOSTNAME, CapacityError, get_capacity
from simulator.actions import Action, CreateObject, DeleteObject, PatchObject
from simulator.objects import DRIVER, Json, KubeObject
from simulator.provisioner import WAIT_FOR_CONSUMER, StorageClass

OWNED_LABEL: Final = "simulator/capacity"


def decide_capacities(
    cluster: Cluster, classes: Iterable[StorageClass], existing: Mapping[str, KubeObject[None]]
) -> list[Action]:
    """Keeps one object per node and StorageClass that waits for a consumer."""
    wanted = {
        body["metadata"]["name"]: body
        for storage_class in classes
        if storage_class.model.provisioner == DRIVER and storage_class.raw.get("volumeBindingMode") == WAIT_FOR_CONSUMER
        for node in cluster.nodes
        if (body := _body(cluster, storage_class, node)) is not None
    }
    actions: list[Action] = []
    for name, body in wanted.items():
        current = existing.get(name)
        if current is None:
            actions.append(CreateObject(CAPACITIES, body, "capacity reported"))
        elif any(current.raw.get(key) != body[key] for key in ("capacity", "maximumVolumeSize")):
            change = {key: body[key] for key in ("capacity", "maximumVolumeSize")}
            actions.append(PatchObject(CAPACITIES, current, change, "capacity reported"))
    stale = [capacity for name, capacity in existing.items() if OWNED_LABEL in capacity.labels and name not in wanted]
    return [*actions, *(DeleteObject(CAPACITIES, capacity, "capacity of nothing removed") for capacity in stale)]


def _body(cluster: Cluster, storage_class: StorageClass, node: str) -> Json | None:
    kube_node = cluster.kube_nodes.get(node)
    if kube_node is None:
        return None
    try:
        capacity = get_capacity(cluster, {HOSTNAME: node}, storage_class.model.parameters)
    except CapacityError:
        return None
    name = hashlib.sha256(f"{storage_class.name}/{node}".encode()).hexdigest()[:16]
    return {
        "metadata": {"name": f"longhorn-{name}", "namespace": LONGHORN_NAMESPACE, "labels": {OWNED_LABEL: "true"}},
        "storageClassName": storage_class.name,
        "nodeTopology": {"matchLabels": {HOSTNAME: kube_node.labels.get(HOSTNAME, node)}},
        "capacity": str(capacity.available),
        "maximumVolumeSize": str(capacity.maximum_volume_size),
    }
