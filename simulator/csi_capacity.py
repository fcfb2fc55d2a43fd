"""CSIStorageCapacity: what Longhorn's GetCapacity says about each node and class, from the nodes' lagging status."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import Final

from app.kube.resources import CAPACITIES, LONGHORN_NAMESPACE
from scheduler_core.longhorn.capacity import HOSTNAME, CapacityError, get_capacity
from scheduler_core.longhorn.cluster import Cluster
from simulator.actions import Action, Create, Delete, Patch
from simulator.objects import DRIVER, Json, Obj
from simulator.provisioner import WAIT_FOR_CONSUMER, StorageClass

OWNED: Final = "simulator/capacity"


def decide_capacities(
    cluster: Cluster, classes: Iterable[StorageClass], existing: Mapping[str, Obj[None]]
) -> list[Action]:
    """Creates, changes and deletes objects so that there is one for every node and class that waits for a consumer."""
    wanted = {
        body["metadata"]["name"]: body
        for storage_class in classes
        if storage_class.model.provisioner == DRIVER and storage_class.raw.get("volumeBindingMode") == WAIT_FOR_CONSUMER
        for node in cluster.nodes
        if (body := _body(cluster, storage_class, node)) is not None
    }
    actions: list[Action] = []
    for name, body in wanted.items():
        known = existing.get(name)
        if known is None:
            actions.append(Create(CAPACITIES, body, "capacity reported"))
        elif any(known.raw.get(key) != body[key] for key in ("capacity", "maximumVolumeSize")):
            change = {key: body[key] for key in ("capacity", "maximumVolumeSize")}
            actions.append(Patch(CAPACITIES, known, change, "capacity reported"))
    stale = [known for name, known in existing.items() if OWNED in known.labels and name not in wanted]
    return [*actions, *(Delete(CAPACITIES, known, "capacity of nothing removed") for known in stale)]


def _body(cluster: Cluster, storage_class: StorageClass, node: str) -> Json | None:
    kube_node = cluster.kube_nodes.get(node)
    if kube_node is None:
        return None
    try:
        found = get_capacity(cluster, {HOSTNAME: node}, storage_class.model.parameters)
    except CapacityError:
        return None
    name = hashlib.sha256(f"{storage_class.name}/{node}".encode()).hexdigest()[:16]
    return {
        "metadata": {"name": f"longhorn-{name}", "namespace": LONGHORN_NAMESPACE, "labels": {OWNED: "true"}},
        "storageClassName": storage_class.name,
        "nodeTopology": {"matchLabels": {HOSTNAME: kube_node.labels.get(HOSTNAME, node)}},
        "capacity": str(found.available),
        "maximumVolumeSize": str(found.maximum_volume_size),
    }
