"""Which replicas need a place before a pod can start, which disks one more replica may use, whether counting excludes a placement, and
which of the pod's replicas may be in the way of its local volumes.

Longhorn attaches a volume once one replica has a place, or only once all have one, if `allow-volume-creation-with-degraded-availability` is
false (volume_controller.go: reconcileVolumeCondition). Replicas that are added to an attached volume later do not count.

Hard anti-affinity wants another node or zone for each replica. Without space the volumes of a pod are not in each other's way, so each is
counted alone, however large the disks are. For pods and clusters that are too large for a search (`placement_across_nodes.py`), the space of all disks is
counted, too. Both refuse only what has no placement, whichever node the pod runs on.

The pod's own volumes without data locality may be in the way of its local ones. Longhorn may place their replicas on the pod's node or
elsewhere, and usually does so first: a volume without data locality is placed when it is created, a local one only once it is attached
(volume_controller.go: reconcileVolumeCondition). So they block, and are never blocked.
"""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import accumulate, chain

from scheduler_core.cluster.view import View
from scheduler_core.evaluation import cluster_state, competing_volumes, disk_profiles, fit
from scheduler_core.longhorn import placement, stages
from scheduler_core.longhorn.anti_affinity import SoftAntiAffinity, has_disk_pressure
from scheduler_core.longhorn.cluster import Cluster
from scheduler_core.longhorn.replica_request import ReplicaRequest, balances_best_effort, effective_soft_anti_affinity
from scheduler_core.model import longhorn, quantity
from scheduler_core.model.verdict import Reason
from scheduler_core.packing.spread import SHARED
from scheduler_core.structs import Struct
from scheduler_core.volumes import outstanding_demand, resolve
from scheduler_core.volumes.volume_requirements import (
    OptionalVolume,
    Requirements,
    VolumeClasses,
    requirements,
    volume_class,
)


class ReplicaNeed(Struct, frozen=True, dict=True):
    """The replicas of one volume that need a place."""

    volume: resolve.PodVolume
    count: int  # how many, one on the pod's node included if the volume needs space there
    soft: SoftAntiAffinity  # whether they may share nodes, zones and disks

    @cached_property
    def required(self) -> Requirements:
        return requirements([self.volume], ())

    @property
    def placed(self) -> bool:
        return any(replica.node_id for replica in self.volume.replicas)

    @property
    def elsewhere(self) -> int:
        return self.count if self.placed or not self.volume.local else max(0, self.count - 1)

    @property
    def key(self) -> object:
        """Equal for needs that every cluster answers alike."""
        volume = self.volume.volume
        replicas = self.volume.replicas
        bytes_and_class = (volume.size, volume.actual_size, volume_class(volume))
        spread = (self.count, self.volume.local, self.soft, volume.replica_auto_balance)
        # Where replicas exist, they may be anywhere and in any state.
        return bytes_and_class, spread, replicas, volume.robustness if replicas else ""


def replica_needs(resolution: resolve.Resolution, view: View) -> tuple[ReplicaNeed, ...]:
    """Returns the needs of the volumes with replicas that need a place, the largest first. Empty if all these replicas
    have theirs on the pod's node.
    """
    settings = view.settings
    degraded = settings.allow_volume_creation_with_degraded_availability
    if degraded and not resolution.unplaced:
        return ()
    needs = [
        ReplicaNeed(volume, _replicas_to_place(volume, degraded=degraded), SoftAntiAffinity.of(volume.volume, settings))
        for volume in resolution.volumes
    ]
    if not any(need.elsewhere for need in needs):
        return ()
    needs = [need for need in needs if need.count]
    return tuple(sorted(needs, key=lambda need: (-need.volume.volume.size, -need.count, need.volume.claim)))


def _replicas_to_place(volume: resolve.PodVolume, *, degraded: bool) -> int:
    if volume.volume.has_shards:
        return 0
    pending = sum(not replica.node_id for replica in volume.replicas)
    if pending < len(volume.replicas):
        # Longhorn waits for the others only while it does not run the volume.
        return 0 if degraded or volume.volume.node_id else pending
    if degraded and volume.volume.data_layout is None:
        return 1
    # A sharded volume is attached once all its shards run (shard_group_controller.go: syncProcess).
    return max(1, pending, volume.volume.number_of_replicas)


def one_of_each_kind(needs: Iterable[ReplicaNeed]) -> tuple[ReplicaNeed, ...]:
    by_key: dict[object, ReplicaNeed] = {}
    for need in needs:
        by_key.setdefault(need.key, need)
    return tuple(by_key.values())


def has_disk_for(profile: fit.Profile, size: int, written: int) -> bool:
    """Whether a node has a disk for a replica of a size. Some bytes of the replica are written already."""
    if profile.reason is not None or profile.free[0] < size:
        return False
    pairs = zip(profile.free, profile.headroom, strict=True)
    return not written or any(free >= size and written < headroom for free, headroom in pairs)


def open_disks(view: View, need: ReplicaNeed, name: str) -> list[fit.OpenDisk]:
    """Returns the disks of a node that can take one more replica. The replica is looked at as if it were the only
    volume.
    """
    disks = disk_profiles.profile_node(view, need.required.classes, name)
    volume = need.volume.volume
    return [
        disk
        for disk in (() if isinstance(disks, disk_profiles.Refused) else disks)
        if volume.size + sum(size for _, size in disk.copies) <= disk.free
        and (not volume.actual_size or volume.actual_size < disk.headroom)
    ]


def used_disks(need: ReplicaNeed) -> frozenset[str]:
    if need.soft.disk:
        return frozenset()
    replicas = need.volume.replicas
    return frozenset(entry.disk_id for entry in replicas if not entry.failed_at or entry.potentially_reusable)


def nodes_in_tiers(cluster: Cluster, need: ReplicaNeed) -> frozenset[str] | None:
    """Names of the nodes that the placed replicas leave to others; None for every node, if no replica is placed.
    Longhorn tries a tier only if the earlier ones have no disk; any may be reached.
    """
    if not need.placed:
        return None
    request = ReplicaRequest.for_volume(need.volume.volume)
    nodes, _ = placement.node_candidates(cluster, request)
    tiers = placement.tiers_of(cluster, request, nodes, need.volume.replicas)
    return frozenset(node.name for _, members in tiers for node in members)


def domain_of(cluster: Cluster, need: ReplicaNeed, node: longhorn.Node, uuid: str) -> object:
    """Returns what at most one of the replicas may use: a zone, a node or a disk; SHARED if any number may use the
    disk. Anti-affinity of zones decides before that of nodes (`longhorn/anti_affinity.py`: TIER_ORDER).
    """
    soft = need.soft
    if not soft.zone:
        return ("zone", node.zone)
    reopened = balances_best_effort(need.volume.volume, cluster.settings) and has_disk_pressure(node, cluster.settings)
    if not soft.node and not reopened:
        return ("node", node.name)
    return SHARED if soft.disk else ("disk", uuid)


# With more space the node would take a replica.
_LACKING_SPACE = frozenset({None, Reason.DISK_PRESSURE, Reason.LOW_AVAILABLE, Reason.INSUFFICIENT_STORAGE})
NODE_SETTING = "replica-soft-anti-affinity"
ZONE_SETTING = "replica-zone-soft-anti-affinity"
DEGRADED_SETTING = "allow-volume-creation-with-degraded-availability"


class DomainShortage(Struct, frozen=True):
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
                f"{volume.name} needs {quantity.format_count(self.need.count, 'node')} with a disk for one of its {layout.data_chunks} data and "
                f"{layout.parity_chunks} parity shards each, {self.available} can take one; "
                "what helps: one more node, or a StorageClass with fewer chunks (dataLayout.dataChunks)"
            )
        kind = "zone" if self.setting == ZONE_SETTING else "node"
        cause = f"the volume's own {kind} anti-affinity is hard" if self.by_volume else f"{self.setting} is false"
        more = f"one more {kind}" + (" (label nodes with topology.kubernetes.io/zone)" if kind == "zone" else "")
        fewer = self.need.volume.volume.number_of_replicas - self.need.count + self.available
        return (
            f"{volume.name} needs {quantity.format_count(self.need.count, kind)} for its replicas, {self.available} can take one, and {cause}; "
            f"what helps: numberOfReplicas {fewer}, {more}, soft anti-affinity, or {DEGRADED_SETTING} true"
        )


def domain_shortage(state: cluster_state.ClusterState, needs: Sequence[ReplicaNeed]) -> DomainShortage | None:
    """Returns the first volume with more replicas than nodes or zones, None if there is none."""
    for need in one_of_each_kind(needs):
        if need.soft.zone and need.soft.node:
            continue
        open_nodes = [
            name
            for name, profile in state.profiles.table(need.required.classes).profiles.items()
            if profile.reason in _LACKING_SPACE
        ]
        domains = set(_domains_of(state, need, open_nodes))
        # The number does not decide if some may take any number, or if no node may take any for a reason of its own.
        if not open_nodes or SHARED in domains or ("disk", "") in domains:
            continue
        available = len(domains)
        if available < need.count:
            volume = need.volume.volume
            own = volume.replica_soft_anti_affinity if need.soft.zone else volume.replica_zone_soft_anti_affinity
            by_volume = effective_soft_anti_affinity(own, setting=True) is False
            return DomainShortage(need, available, NODE_SETTING if need.soft.zone else ZONE_SETTING, by_volume)
    return None


def _domains_of(state: cluster_state.ClusterState, need: ReplicaNeed, names: Iterable[str]) -> Iterator[object]:
    """Returns the domains of those nodes that the placed replicas leave to others (`domain_of`)."""
    cluster = state.view.cluster
    tiers = nodes_in_tiers(cluster, need)
    return (domain_of(cluster, need, cluster.nodes[name], "") for name in names if tiers is None or name in tiers)


def counting_allows(state: cluster_state.ClusterState, needs: Sequence[ReplicaNeed]) -> bool:
    """Whether counting does not exclude a placement, whichever node the pod runs on. Each volume needs enough nodes or
    zones, and the volumes of one class need enough bytes, and enough disks for each size.
    """
    sizes_by_class: dict[VolumeClasses, list[int]] = defaultdict(list)
    for need in needs:
        # A local volume with a replica may need none on the pod's node.
        fewest = need.count - (need.placed and need.volume.local)
        sizes_by_class[need.required.classes] += [need.volume.volume.size] * fewest
    spreading = [need for need in needs if need.elsewhere]
    for need in one_of_each_kind(spreading):
        volume = need.volume.volume
        profiles = state.profiles.table(need.required.classes).profiles
        roomy = (name for name, profile in profiles.items() if has_disk_for(profile, volume.size, volume.actual_size))
        domains = set(_domains_of(state, need, roomy))
        enough = SHARED in domains or ("disk", "") in domains or len(domains) >= need.count - need.volume.local
        if not enough:
            return False
    for classes in {need.required.classes: None for need in spreading}:
        free = list(chain.from_iterable(profile.free for profile in state.profiles.table(classes).profiles.values()))
        if counting_refuses(sizes_by_class[classes], free):
            return False
    return True


def counting_refuses(sizes: Sequence[int], free: Sequence[int]) -> bool:
    """Whether replicas of these sizes cannot fit the disks together. For each size, the replicas that are at least as
    large need a disk's room of that size each.
    """
    descending = sorted(sizes, reverse=True)
    rooms = sorted(free, reverse=True)
    bytes_needed = list(accumulate(descending, initial=0))
    bytes_free = list(accumulate(rooms, initial=0))
    for smallest in sorted(set(sizes) - {0}):
        large = bisect_right(descending, -smallest, key=int.__neg__)
        roomy = bisect_right(rooms, -smallest, key=int.__neg__)
        if bytes_needed[large] > bytes_free[roomy]:
            return True
        places = 0
        for room in rooms[:roomy]:
            if places >= large:
                break
            places += room // smallest
        if places < large:
            return True
    return False


Optional = tuple[OptionalVolume, ...]


class OptionalVolumes(Struct, frozen=True):
    """A pod's volumes without data locality that have unplaced replicas."""

    default: Optional = ()  # what a node can get of them
    # The same for nodes that differ, because of placed replicas or disks under pressure.
    by_node: Mapping[str, Optional] = {}

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


NO_OPTIONAL_VOLUMES = OptionalVolumes()
# Without disks, so none is under pressure.
_ANY_NODE = longhorn.Node(name="")


def _key(on_node: Optional) -> tuple[object, ...]:
    return tuple((competing_volumes.volumes_key((entry.volume,)), entry.count, entry.one_per_disk) for entry in on_node)


def optional_volumes(view: View, resolution: resolve.Resolution) -> OptionalVolumes:
    """Returns the pod's volumes without data locality that may be in the way of its local ones."""
    if not resolution.local:
        return NO_OPTIONAL_VOLUMES
    needs: list[ReplicaNeed] = []
    for volume in resolution.remote:
        placed = sum(replica.node_id != "" and stages.stays(replica) for replica in volume.replicas)
        pending = sum(not replica.node_id for replica in volume.replicas)
        count = max(outstanding_demand.replica_count(volume) - placed, pending)
        if count:
            needs.append(ReplicaNeed(volume, count, SoftAntiAffinity.of(volume.volume, view.settings)))
    if not needs:
        return NO_OPTIONAL_VOLUMES
    cluster = view.cluster
    default = tuple(_optional_on_node(cluster, need, _ANY_NODE) for need in needs)
    pressure = cluster.settings.replica_auto_balance_disk_pressure_percentage > 0
    if not any(
        need.placed or (pressure and balances_best_effort(need.volume.volume, cluster.settings)) for need in needs
    ):
        return OptionalVolumes(default)
    tiers = [nodes_in_tiers(cluster, need) for need in needs]
    usual = tuple(entry.count for entry in default)
    shared: dict[tuple[int, ...], Optional] = {}
    differing: dict[str, Optional] = {}
    for name, node in cluster.nodes.items():
        on_node = [
            _optional_on_node(cluster, need, node) if names is None or name in names else None
            for need, names in zip(needs, tiers, strict=True)
        ]
        counts = tuple(0 if entry is None else entry.count for entry in on_node)
        if counts != usual:
            differing[name] = shared.setdefault(counts, tuple(entry for entry in on_node if entry is not None))
    return OptionalVolumes(default, differing)


def _optional_on_node(cluster: Cluster, need: ReplicaNeed, node: longhorn.Node) -> OptionalVolume:
    kind = domain_of(cluster, need, node, "")
    of_disk = kind == ("disk", "")
    count = need.count if kind == SHARED or of_disk else 1
    return OptionalVolume(need.volume, count, one_per_disk=of_disk, used_disks=used_disks(need))
