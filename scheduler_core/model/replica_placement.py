"""The placement of one replica, as Longhorn's scheduler writes it."""

from __future__ import annotations

from dataclasses import dataclass

from scheduler_core.model.longhorn import V1, Replica


@dataclass(frozen=True, slots=True)
class Placement:
    """A replica that had no place, and the place that it gets."""

    replica: str  # name of the replica
    volume: str  # name of its Longhorn volume
    size: int  # bytes (spec.volumeSize)
    node: str
    disk: str  # the disk's UUID
    disk_path: str  # the disk's path on the node
    data_engine: str = V1
    image: str = ""
    hard_node_affinity: str = ""  # the only node the replica may be on, "" for any
    linked_clone_source: str = ""  # the replica whose data a linked clone shares, "" for any of the source volume

    @property
    def place(self) -> str:
        return f"{self.node}/{self.disk}{self.disk_path}"

    @classmethod
    def of(cls, replica: Replica) -> Placement:
        """Returns the placement of a replica."""
        return cls(
            replica=replica.name,
            volume=replica.volume,
            size=replica.size,
            node=replica.node_id,
            disk=replica.disk_id,
            disk_path=replica.disk_path,
            data_engine=replica.data_engine,
            image=replica.image,
            hard_node_affinity=replica.hard_node_affinity,
            linked_clone_source=replica.linked_clone_source,
        )
