"""Whether a node can run replicas: instance managers, engine images and the v2 switch (datastore/longhorn.go)."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

from scheduler_core.longhorn.cluster import Cluster
from scheduler_core.longhorn.replica_request import is_v2
from scheduler_core.longhorn.settings import MANAGERS_FOLLOW_NODE_SELECTOR, TERMINATING_V2_MANAGER_NOT_READY
from scheduler_core.model.longhorn import InstanceManager

RUNNING = "running"
DISABLE_V2_LABEL = "node.longhorn.io/disable-v2-data-engine"
_DEPLOYED = ("deployed", "deploying")


def disables_v2(cluster: Cluster, node: str) -> bool:
    """Whether v2 volumes cannot use a node (IsV2DataEngineDisabledForNode)."""
    # There is no such Kubernetes node, or its label disables them.
    kube_node = cluster.kube_nodes.get(node)
    return kube_node is None or kube_node.labels.get(DISABLE_V2_LABEL) == "true"


def excludes_instance_manager(cluster: Cluster, node: str) -> bool:
    """Whether Longhorn makes no instance manager on a node, because the setting's labels do not match.
    node_controller.go: syncInstanceManagers, by `system-managed-components-node-selector`. Longhorn's scheduler reads
    instance managers only, so one that runs there nevertheless counts.
    """
    selector = cluster.settings.system_managed_components_node_selector
    if not selector or not cluster.settings.has_rule_since(MANAGERS_FOLLOW_NODE_SELECTOR):
        return False
    kube_node = cluster.kube_nodes.get(node)
    return kube_node is None or not selector.items() <= kube_node.labels.items()


def instance_manager_ready(cluster: Cluster, data_engine: str, node: str) -> bool:
    """Whether an instance manager can take a replica (CheckInstanceManagersReadiness).

    v2: any running manager; from v1.13.0 on, one that is not terminating. v1: the manager with the default image, running or terminating,
    because a successor follows; not where none will. Longhorn looks at a random one of several (`one_manager_per_node` lists the
    possibilities); here all must be ready.
    """
    excluded = excludes_instance_manager(cluster, node)
    if cluster.instance_managers is None:
        return not excluded
    managers = cluster.instance_managers.get((node, data_engine), ())
    if is_v2(data_engine):
        strict = cluster.settings.has_rule_since(TERMINATING_V2_MANAGER_NOT_READY)
        return any(manager.state == RUNNING and not (strict and manager.deleting) for manager in managers)
    default = _with_default_image(cluster, managers)
    if excluded:
        return bool(default) and all(manager.state == RUNNING and not manager.deleting for manager in default)
    return bool(default) and all(manager.state == RUNNING or manager.deleting for manager in default)


def one_manager_per_node(cluster: Cluster) -> list[Cluster]:
    """The clusters Longhorn may see: where a node has several v1 instance managers with the default image, it picks one
    at random.
    """
    managers = cluster.instance_managers
    if managers is None:
        return [cluster]
    v1 = {key: _with_default_image(cluster, group) for key, group in sorted(managers.items()) if not is_v2(key[1])}
    choices = {key: [(manager,) for manager in group] for key, group in v1.items() if len(group) > 1}
    picks = (dict(zip(choices, pick, strict=True)) for pick in product(*choices.values()))
    return [replace(cluster, instance_managers={**managers, **pick}) for pick in picks]


def _with_default_image(cluster: Cluster, managers: tuple[InstanceManager, ...]) -> tuple[InstanceManager, ...]:
    image = cluster.settings.default_instance_manager_image
    return tuple(manager for manager in managers if image is None or manager.image in ("", image))


def engine_image_ready(cluster: Cluster, data_engine: str, image: str, node: str) -> bool:
    """Whether an engine image is usable on a node (CheckDataEngineImageReadiness). v2 needs none. An image that is
    being deployed counts on the nodes that are in its map already. "" is the default image, any image if the default is
    unknown.
    """
    if is_v2(data_engine) or cluster.engine_images is None:
        return True
    effective_image = image or cluster.settings.default_engine_image
    images = cluster.engine_images
    groups = images.values() if effective_image is None else (images.get(effective_image, ()),)
    return any(entry.state in _DEPLOYED and node in entry.nodes for group in groups for entry in group)


def instance_manager_running(cluster: Cluster, data_engine: str, node: str) -> bool:
    """Whether a failed replica's instance manager is running (GetInstanceManagerByInstanceRO). One that is being
    deleted does not count. Longhorn checks it for a replica that may be reused.
    """
    if cluster.instance_managers is None:
        return True
    managers = cluster.instance_managers.get((node, data_engine), ())
    default = managers if is_v2(data_engine) else _with_default_image(cluster, managers)
    return bool(default) and all(manager.state == RUNNING and not manager.deleting for manager in default)
