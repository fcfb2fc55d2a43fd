"""What is to be placed: a volume, and the fields of the replica that decide beside it."""

from __future__ import annotations

from dataclasses import dataclass

from scheduler_core.longhorn.settings import BEST_EFFORT, Settings
from scheduler_core.model.longhorn import V1, V2, Replica, Volume

LINKED_CLONE = "linked-clone"
_SOURCES = ("vol://", "snap://")
_IGNORED = ("", "ignored")


@dataclass(frozen=True, slots=True)
class Ask:
    """A replica to place. Longhorn takes some fields from the volume and some from the replica, so both are kept.

    Attributes:
        replica_size: bytes of the replica (spec.volumeSize); only the choice among candidates reads it, all space rules
            read the volume's size
        data_engine: the replica's; decides about instance manager and engine image, the volume's about disks
        image: the engine image, "" for the default one
    """

    volume: Volume
    replica_size: int
    data_engine: str = V1
    image: str = ""
    hard_node_affinity: str = ""
    linked_clone_source: str = ""

    @classmethod
    def fresh(cls, volume: Volume, hard_node_affinity: str = "") -> Ask:
        """A replica as volume_controller.go:newReplicaCR would create it."""
        return cls(volume, volume.size, volume.data_engine, volume.image, hard_node_affinity)

    @classmethod
    def of(cls, volume: Volume, replica: Replica) -> Ask:
        """An existing replica that has no place yet."""
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
        """Whether the volume shares its source's data, so that its replicas must stay with the source's."""
        return self.volume.clone_mode == LINKED_CLONE

    @property
    def linked_clone_source_volume(self) -> str:
        """The volume that is cloned (types.GetVolumeName of spec.dataSource)."""
        kind, separator, source = self.volume.data_source.partition("://")
        return source.partition("/")[0] if kind + separator in _SOURCES else ""


def is_v2(data_engine: str) -> bool:
    """types.IsDataEngineV2; everything else counts as v1."""
    return data_engine == V2


def override(volume_value: str, setting: bool) -> bool:  # noqa: FBT001 # the pair reads as in Longhorn
    """A volume's soft anti-affinity field over its setting: "" and "ignored" leave the setting, only "enabled" is true."""
    return setting if volume_value in _IGNORED else volume_value == "enabled"


def auto_balance(volume: Volume, settings: Settings) -> str:
    """The auto-balance mode that counts for a volume (datastore: GetAutoBalancedReplicasSetting)."""
    own = volume.replica_auto_balance
    return settings.replica_auto_balance if own in _IGNORED else own


def balances_best_effort(volume: Volume, settings: Settings) -> bool:
    """Whether best-effort auto-balance is on for a volume."""
    return auto_balance(volume, settings) == BEST_EFFORT
