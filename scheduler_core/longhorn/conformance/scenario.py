"""Reads a recorded scenario as a `Cluster`. A scenario holds objects in Kubernetes' own form, and the recorder's short
forms of engine images and instance managers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Final

from scheduler_core.convert.snapshot_kinds import KINDS, LONGHORN_GROUP, build_snapshot
from scheduler_core.longhorn.cluster import Cluster
from scheduler_core.longhorn.node_status import schedulable_condition
from scheduler_core.longhorn.replenish_wait import parse_time
from scheduler_core.longhorn.settings import Settings
from scheduler_core.model import kube, longhorn
from scheduler_core.model.snapshot import Snapshot

Json = Mapping[str, Any]

NOW: Final = datetime(2026, 1, 1, tzinfo=UTC)
ENGINE_IMAGE: Final = "oracle/engine:1"
INSTANCE_MANAGER_IMAGE: Final = "oracle/instance-manager:1"
_LONGHORN_LISTS: Final = {"nodes": "Node", "volumes": "Volume", "replicas": "Replica", "backingImages": "BackingImage"}
_IMAGES: Final = {"default-engine-image": ENGINE_IMAGE, "default-instance-manager-image": INSTANCE_MANAGER_IMAGE}


def read_cluster(scenario: Json) -> Cluster:
    """The cluster of a scenario. Settings that do not parse are kept as faults.

    Raises:
        ObjectError: an object cannot be read
    """
    values = {**_IMAGES, **scenario.get("settings", {})}
    snapshot = replace(
        _snapshot(scenario),
        settings=values,
        engine_images=_engine_images(scenario.get("engineImages")),
        instance_managers=_instance_managers(scenario.get("instanceManagers")),
    )
    now = parse_time(scenario.get("now", "")) or NOW
    cluster = Cluster.of(snapshot, now, Settings.read(values))
    if not scenario.get("deriveSchedulable"):
        return cluster
    return cluster.with_nodes(_derive_schedulable(cluster, node) for node in cluster.nodes.values())


def _snapshot(scenario: Json) -> Snapshot:
    objects = [
        (KINDS[LONGHORN_GROUP, kind], entry)
        for field, kind in _LONGHORN_LISTS.items()
        for entry in scenario.get(field, ())
    ]
    kube_nodes = scenario.get("kubeNodes")
    if kube_nodes is None:
        kube_nodes = [{"metadata": {"name": entry["metadata"]["name"]}} for entry in scenario["nodes"]]
    snapshot = build_snapshot([*objects, *((KINDS["", "Node"], entry) for entry in kube_nodes)])
    return replace(snapshot, replicas=_with_zero_values(snapshot.replicas, scenario.get("replicas", ())))


def _with_zero_values(replicas: Mapping[str, longhorn.Replica], raw: Iterable[Json]) -> dict[str, longhorn.Replica]:
    """Replicas as recorded: an absent spec.active is false."""
    active = {entry["metadata"]["name"]: bool(entry.get("spec", {}).get("active")) for entry in raw}
    return {name: replace(replica, active=active[name]) for name, replica in replicas.items()}


def _engine_images(entries: Iterable[Json] | None) -> dict[str, longhorn.EngineImage] | None:
    if entries is None:
        return None
    images = [
        longhorn.EngineImage(f"ei-{index}", entry["image"], entry["state"], frozenset(entry.get("nodes") or ()))
        for index, entry in enumerate(entries)
    ]
    return {image.name: image for image in images}


def _instance_managers(entries: Iterable[Json] | None) -> dict[str, longhorn.InstanceManager] | None:
    if entries is None:
        return None
    managers = [
        longhorn.InstanceManager(
            name=f"im-{index}",
            node=entry["node"],
            data_engine=entry["dataEngine"],
            image=entry.get("image") or INSTANCE_MANAGER_IMAGE,
            state=entry["state"],
            deleting=bool(entry.get("deleting")),
        )
        for index, entry in enumerate(entries)
    ]
    return {manager.name: manager for manager in managers}


def _derive_schedulable(cluster: Cluster, node: longhorn.Node) -> longhorn.Node:
    other_conditions = tuple(entry for entry in node.conditions if entry.type != "Schedulable")
    return replace(node, conditions=(schedulable_condition(cluster, node), *other_conditions))


def node_schedulable(node: longhorn.Node) -> str:
    return kube.condition(node.conditions, "Schedulable").status
