"""The replica to place, with its volume and the fields that the replica itself contributes to the decision. That of a
linked clone must sit on the node and disk of a healthy source replica.
"""

from scheduler_core.longhorn.cluster import Cluster
from scheduler_core.longhorn.settings import BEST_EFFORT, Settings
from scheduler_core.model.longhorn import V1, V2, Placement, Replica, Volume
from scheduler_core.structs import Struct

LINKED_CLONE = "linked-clone"
FULL_COPY = "full-copy"
# Of the data source of a volume that is cloned from another one (types.IsDataFromVolume).
SOURCE_PREFIXES = ("vol://", "snap://")
_LEAVES_THE_SETTING = ("", "ignored")


class ReplicaRequest(Struct, frozen=True):
    """A replica to place. Longhorn takes some fields from the volume and some from the replica, so both are kept."""

    volume: Volume
    # Bytes of the replica (spec.volumeSize); only the choice among candidates reads it, all space rules read the
    # volume's size.
    replica_size: int
    data_engine: str = V1  # the replica's; decides about instance manager and engine image, the volume's about disks
    image: str = ""  # the engine image, "" for the default one
    hard_node_affinity: str = ""  # the only node the replica may be on, "" for any
    linked_clone_source: str = ""  # the replica whose data a linked clone shares, "" for any of the source volume

    @classmethod
    def for_volume(cls, volume: Volume, hard_node_affinity: str = "") -> "ReplicaRequest":
        """A new replica, as volume_controller.go:newReplicaCR would create it."""
        return cls(volume, volume.size, volume.data_engine, volume.image, hard_node_affinity)

    @classmethod
    def for_replica(cls, volume: Volume, replica: Replica | Placement) -> "ReplicaRequest":
        """An existing replica that has no node yet, or the one that gets a place."""
        return cls(
            volume,
            replica.size,
            replica.data_engine,
            replica.image,
            replica.hard_node_affinity,
            replica.linked_clone_source,
        )

    @property
    def linked_clone(self) -> bool:
        # A linked clone shares its source's data, so its replicas must stay with the source's.
        return self.volume.clone_mode == LINKED_CLONE

    @property
    def linked_clone_source_volume(self) -> str:
        return source_volume(self.volume.data_source)


def source_volume(data_source: str) -> str:
    """The volume that a data source names, "" for none (types.GetVolumeName)."""
    kind, separator, source = data_source.partition("://")
    return source.partition("/")[0] if kind + separator in SOURCE_PREFIXES else ""


def is_v2(data_engine: str) -> bool:
    """Whether an engine is v2 (types.IsDataEngineV2). Everything else counts as v1."""
    return data_engine == V2


def effective_soft_anti_affinity(volume_value: str, setting: bool) -> bool:  # noqa: FBT001 # the pair reads as in Longhorn
    """A soft anti-affinity setting after the volume's override."""
    # "" and "ignored" leave the setting; of all other values only "enabled" is true.
    return setting if volume_value in _LEAVES_THE_SETTING else volume_value == "enabled"


def auto_balance_mode(volume: Volume, settings: Settings) -> str:
    """The auto-balance mode that counts for a volume (datastore: GetAutoBalancedReplicasSetting)."""
    own = volume.replica_auto_balance
    return settings.replica_auto_balance if own in _LEAVES_THE_SETTING else own


def balances_best_effort(volume: Volume, settings: Settings) -> bool:
    return auto_balance_mode(volume, settings) == BEST_EFFORT


class Sources(Struct, frozen=True):
    """Places of usable source replicas: node names, disk UUIDs."""

    nodes: frozenset[str]
    disks: frozenset[str]


def source_missing(cluster: Cluster, request: ReplicaRequest) -> bool:
    """Whether the named source replica does not exist, which is a client error in Longhorn."""
    return (
        request.linked_clone
        and request.linked_clone_source != ""
        and request.linked_clone_source not in cluster.snapshot.replicas
    )


def sources(cluster: Cluster, request: ReplicaRequest) -> Sources:
    """The nodes and disks of the named source replica, or of all usable replicas of the source volume."""
    replicas = cluster.replicas_of(request.linked_clone_source_volume)
    if request.linked_clone_source:
        named = cluster.snapshot.replicas.get(request.linked_clone_source)
        replicas = () if named is None else (named,)
    usable = [
        replica
        for replica in replicas
        if (replica.node_id and replica.disk_id and replica.healthy_at)
        and not (replica.failed_at or replica.eviction_requested)
    ]
    return Sources(frozenset(replica.node_id for replica in usable), frozenset(replica.disk_id for replica in usable))
