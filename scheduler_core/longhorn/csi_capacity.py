"""What Longhorn's CSI driver answers to GetCapacity (csi/controller_server.go). This is the coarser view that
kube-scheduler itself has of free space.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from scheduler_core.errors import CoreError
from scheduler_core.longhorn.cluster import Cluster
from scheduler_core.longhorn.refusal_rules import selectors_match
from scheduler_core.longhorn.settings import Settings
from scheduler_core.longhorn.space import quotient, wrap_int64
from scheduler_core.model.longhorn import BLOCK, FILESYSTEM, V1, V2, Disk, Node

HOSTNAME: Final = "kubernetes.io/hostname"
ZONE: Final = "topology.kubernetes.io/zone"
MODE: Final = "storageCapacityMode"
_DISK_TYPE_BY_ENGINE: Final = {V1: FILESYSTEM, V2: BLOCK}


class CapacityError(CoreError):
    """A gRPC error; its text is ``Code: message``."""


@dataclass(frozen=True, slots=True)
class Capacity:
    """Free bytes: the sum of all disks, the largest disk."""

    available: int = 0
    maximum_volume_size: int = 0


def get_capacity(cluster: Cluster, topology: Mapping[str, str], parameters: Mapping[str, str]) -> Capacity:
    """The answer for a topology segment and a StorageClass's parameters.

    Raises:
        CapacityError: a topology segment is missing or unknown, or the mode is neither node nor zone
    """
    nodes = _nodes_of_segment(cluster, topology, parameters)
    free = [size for node in nodes for size in _free_sizes(cluster.settings, node, parameters)]
    return Capacity(sum(free), max(free, default=0))


def _nodes_of_segment(cluster: Cluster, topology: Mapping[str, str], parameters: Mapping[str, str]) -> list[Node]:
    mode = parameters.get(MODE, "node")
    if mode == "node":
        name = _segment(topology, HOSTNAME)
        if name not in cluster.nodes:
            raise CapacityError(f"NotFound: node {name} not found")
        return [cluster.nodes[name]]
    if mode == "zone":
        zone = _segment(topology, ZONE)
        return [node for node in cluster.nodes.values() if node.zone == zone]
    raise CapacityError(f"InvalidArgument: unexpected value \"{mode}\" for storage class parameter '{MODE}'")


def _segment(topology: Mapping[str, str], key: str) -> str:
    if key not in topology:
        raise CapacityError(f'InvalidArgument: missing "{key}" topology segment')
    return topology[key]


def _free_sizes(settings: Settings, node: Node, parameters: Mapping[str, str]) -> Iterable[int]:
    selector = _selector(parameters.get("nodeSelector", ""))
    usable = node.ready and node.schedulable and node.allow_scheduling and not node.eviction_requested
    if not usable or not selectors_match(node.tags, selector, settings.allow_empty_node_selector_volume):
        return []
    return [free_size(disk, settings) for disk in node.disks if _is_usable(disk, settings, parameters)]


def _is_usable(disk: Disk, settings: Settings, parameters: Mapping[str, str]) -> bool:
    """Whether a disk counts; a full disk counts too. The type is the reported one here, not the spec's."""
    required_type = _DISK_TYPE_BY_ENGINE.get(parameters.get("dataEngine", V1))
    selector = _selector(parameters.get("diskSelector", ""))
    return (
        disk.in_spec
        and disk.in_status
        and disk.allow_scheduling
        and not disk.eviction_requested
        and disk.schedulable
        and disk.status_type == required_type
        and selectors_match(disk.tags, selector, settings.allow_empty_disk_selector_volume)
    )


def _selector(text: str) -> tuple[str, ...]:
    return tuple(text.split(",")) if text else ()


def free_size(disk: Disk, settings: Settings) -> int:
    """Free bytes below the over-provisioning limit. Computed in integers, and not in float64 as in the scheduler."""
    provisionable = (disk.storage_maximum - disk.storage_reserved) * settings.storage_over_provisioning_percentage
    return max(0, quotient(wrap_int64(provisionable), 100) - disk.storage_scheduled)
