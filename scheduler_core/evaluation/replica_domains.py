"""Whether a volume's replicas have enough nodes or zones, however large the disks are. Hard anti-affinity wants another
node or zone for each replica. Without space the volumes of a pod are not in each other's way, so each is counted alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from scheduler_core.evaluation.replica_needs import ReplicaNeed, domain_of, nodes_in_tiers, one_of_each_kind
from scheduler_core.evaluation.state import ClusterState
from scheduler_core.longhorn.replica_request import effective_soft_anti_affinity
from scheduler_core.model.quantity import format_count
from scheduler_core.model.verdict import Reason

# With more space the node would take a replica.
_LACKING_SPACE: Final = frozenset({None, Reason.DISK_PRESSURE, Reason.LOW_AVAILABLE, Reason.INSUFFICIENT_STORAGE})
NODE_SETTING: Final = "replica-soft-anti-affinity"
ZONE_SETTING: Final = "replica-zone-soft-anti-affinity"
DEGRADED_SETTING: Final = "allow-volume-creation-with-degraded-availability"


@dataclass(frozen=True, slots=True)
class DomainShortage:
    """A volume with more replicas to place than there are nodes, or zones, for them."""

    need: ReplicaNeed
    available: int  # how many nodes or zones can take a replica
    setting: str  # Longhorn's setting by which replicas must not share them
    by_volume: bool  # whether the volume's own field says so, over the setting

    @property
    def sentence(self) -> str:
        """The shortage and what ends it."""
        volume = self.need.volume
        layout = volume.volume.data_layout
        if layout is not None:
            return (
                f"{volume.name} needs {format_count(self.need.count, 'node')} with a disk for one of its {layout.data_chunks} data and "
                f"{layout.parity_chunks} parity shards each, {self.available} can take one; "
                "what helps: one more node, or a StorageClass with fewer chunks (dataLayout.dataChunks)"
            )
        kind = "zone" if self.setting == ZONE_SETTING else "node"
        cause = f"the volume's own {kind} anti-affinity is hard" if self.by_volume else f"{self.setting} is false"
        more = f"one more {kind}" + (" (label nodes with topology.kubernetes.io/zone)" if kind == "zone" else "")
        fewer = self.need.volume.volume.number_of_replicas - self.need.count + self.available
        return (
            f"{volume.name} needs {format_count(self.need.count, kind)} for its replicas, {self.available} can take one, and {cause}; "
            f"what helps: numberOfReplicas {fewer}, {more}, soft anti-affinity, or {DEGRADED_SETTING} true"
        )


def domain_shortage(state: ClusterState, needs: Sequence[ReplicaNeed]) -> DomainShortage | None:
    """Returns the first volume with more replicas than nodes or zones, None if there is none."""
    for need in one_of_each_kind(needs):
        if need.soft.zone and need.soft.node:
            continue
        available = _available_domains(state, need)
        if available is not None and available < need.count:
            volume = need.volume.volume
            own = volume.replica_soft_anti_affinity if need.soft.zone else volume.replica_zone_soft_anti_affinity
            by_volume = effective_soft_anti_affinity(own, setting=True) is False
            return DomainShortage(need, available, NODE_SETTING if need.soft.zone else ZONE_SETTING, by_volume)
    return None


def _available_domains(state: ClusterState, need: ReplicaNeed) -> int | None:
    """Returns how many nodes or zones can take one more replica; None if the number does not decide."""
    # It does not if some may take any number, or if no node may take any for a reason of its own.
    cluster = state.view.cluster
    table = state.profiles.table(need.required.classes)
    tiers = nodes_in_tiers(cluster, need)
    domains: set[object] = set()
    open_nodes = 0
    for name, profile in table.profiles.items():
        if profile.reason not in _LACKING_SPACE:
            continue
        open_nodes += 1
        if tiers is None or name in tiers:
            domain = domain_of(cluster, need, cluster.nodes[name], "")
            if not isinstance(domain, tuple) or domain[0] == "disk":
                return None
            domains.add(domain)
    return len(domains) if open_nodes else None
