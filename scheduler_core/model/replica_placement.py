"""The placement of one replica, as Longhorn's scheduler writes it."""

from __future__ import annotations

from dataclasses import dataclass

from scheduler_core.model.longhorn import V1, Replica


@dataclass(frozen=True, slots=True)
class Placement:
    """A replica that had no place, and the place that it gets.

    Attributes:
        replica: name of the replica
        volume: name of its Longhorn volume
        size: bytes (spec.volumeSize)
        disk: the disk's UUID
        disk_path: the disk's path on the node
        hard_node_affinity: the only node the replica may be on, "" for any
        linked_clone_source: the replica whose data a linked clone shares, "" for any of the source volume
    """

    replica: str
    volume: str
    size: int
    node: str
    disk: str
    disk_path: str
    data_engine: str = V1
    image: str = ""
    hard_node_affinity: str = ""
    linked_clone_source: str = ""

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
