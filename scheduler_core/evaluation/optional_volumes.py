"""A pod's own volumes without data locality, as they may be in the way of its local ones.

Longhorn may place their replicas on the pod's node or elsewhere, and usually does so first: a volume without data locality is placed when it
is created, a local one only once it is attached (volume_controller.go: reconcileVolumeCondition). So they block, and are never blocked.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from scheduler_core.cluster.view import View
from scheduler_core.demand.unplaced import replica_count
from scheduler_core.evaluation.competitors import volumes_key
from scheduler_core.evaluation.replica_needs import ReplicaNeed, domain_of, nodes_in_tiers, used_disks
from scheduler_core.longhorn.anti_affinity import SoftAntiAffinity
from scheduler_core.longhorn.cluster import Cluster
from scheduler_core.longhorn.eviction import stays
from scheduler_core.longhorn.replica_request import balances_best_effort
from scheduler_core.model import longhorn
from scheduler_core.packing.spread import SHARED
from scheduler_core.volumes.requirements import OptionalVolume
from scheduler_core.volumes.resolve import PodVolume, Resolution

Optional = tuple[OptionalVolume, ...]


@dataclass(frozen=True, slots=True)
class OptionalVolumes:
    """A pod's volumes without data locality that have unplaced replicas."""

    default: Optional = ()  # what a node can get of them
    # The same for nodes that differ, because of placed replicas or disks under pressure.
    by_node: Mapping[str, Optional] = field(default_factory=dict[str, Optional])

    def on(self, name: str) -> Optional:
        return self.by_node.get(name, self.default)

    def split(self, names: Sequence[str]) -> list[tuple[Optional, Sequence[str]]]:
        """Returns the nodes by what they can get, in order."""
        if not self.by_node:
            return [(self.default, names)]
        # By identity: nodes share the tuples.
        parts: dict[int, tuple[Optional, list[str]]] = {}
        for name in names:
            on_node = self.on(name)
            parts.setdefault(id(on_node), (on_node, []))[1].append(name)
        return list(parts.values())

    @property
    def key(self) -> object:
        """Equal for volumes that every node treats alike."""
        return _key(self.default), tuple(sorted((name, _key(on_node)) for name, on_node in self.by_node.items()))

    @property
    def nodes_with_replica(self) -> frozenset[str]:
        volumes = {id(entry.volume): entry.volume for entry in self.default}
        return frozenset(replica.node_id for volume in volumes.values() for replica in volume.replicas)


NO_OPTIONAL_VOLUMES: Final = OptionalVolumes()
# Without disks, so none is under pressure.
_ANY_NODE: Final = longhorn.Node(name="")


def _key(on_node: Optional) -> tuple[object, ...]:
    return tuple((volumes_key((entry.volume,)), entry.count, entry.one_per_disk) for entry in on_node)


def optional_volumes(view: View, resolution: Resolution) -> OptionalVolumes:
    """Returns the pod's volumes without data locality that may be in the way of its local ones."""
    if not resolution.local:
        return NO_OPTIONAL_VOLUMES
    needs = [
        ReplicaNeed(volume, count, SoftAntiAffinity.of(volume.volume, view.settings))
        for volume in resolution.remote
        if (count := _unplaced_replicas(volume))
    ]
    if not needs:
        return NO_OPTIONAL_VOLUMES
    cluster = view.cluster
    default = tuple(_on_node(cluster, need, _ANY_NODE) for need in needs)
    pressure = cluster.settings.replica_auto_balance_disk_pressure_percentage > 0
    if not any(
        need.placed or (pressure and balances_best_effort(need.volume.volume, cluster.settings)) for need in needs
    ):
        return OptionalVolumes(default)
    return OptionalVolumes(default, dict(_differing_nodes(cluster, needs, default)))


def _unplaced_replicas(volume: PodVolume) -> int:
    """Returns how many replicas Longhorn may still place; one that leaves its node is replaced."""
    placed = sum(replica.node_id != "" and stays(replica) for replica in volume.replicas)
    return max(replica_count(volume) - placed, sum(not replica.node_id for replica in volume.replicas))


def _on_node(cluster: Cluster, need: ReplicaNeed, node: longhorn.Node) -> OptionalVolume:
    kind = domain_of(cluster, need, node, "")
    of_disk = kind == ("disk", "")
    count = need.count if kind == SHARED or of_disk else 1
    return OptionalVolume(need.volume, count, one_per_disk=of_disk, used_disks=used_disks(need))


def _differing_nodes(
    cluster: Cluster, needs: Sequence[ReplicaNeed], default: Optional
) -> Iterator[tuple[str, Optional]]:
    tiers = [nodes_in_tiers(cluster, need) for need in needs]
    usual = tuple(entry.count for entry in default)
    shared: dict[tuple[int, ...], Optional] = {}
    for name, node in cluster.nodes.items():
        on_node = [
            _on_node(cluster, need, node) if names is None or name in names else None
            for need, names in zip(needs, tiers, strict=True)
        ]
        counts = tuple(0 if entry is None else entry.count for entry in on_node)
        if counts != usual:
            yield name, shared.setdefault(counts, tuple(entry for entry in on_node if entry is not None))
