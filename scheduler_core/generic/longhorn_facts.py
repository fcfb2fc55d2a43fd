"""Facts that the Longhorn rules of a policy read.

They are Longhorn's own decision about one pod, per node.

`scheduler_core/extender/longhorn_facts.py` computes them: each node's reason, order safety and stale safety, the volumes that keep a
replica there, and the bytes that the plan leaves free on each disk. This module does not know how.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from scheduler_core.model.verdict import Reason


@dataclass(frozen=True, slots=True)
class DiskFacts:
    """A disk that is open to the pod's volumes.

    Attributes:
        limit: the most bytes that may be allocated on it (Longhorn's over-provisioning limit)
        free: the bytes that remain of the limit after the plan for the pod's volumes and the space of other pods' volumes
    """

    limit: int
    free: int


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """Facts about the pod's volumes on one node.

    Attributes:
        reason: why the node fits or does not
        order_safe: whether Longhorn finds space in whatever order it places the new replicas; true where none is new
        replica_bytes: sizes, in sum, of the pod's Longhorn volumes with a replica on the node that stays there; for a healthy replica
            also the bytes written, which need not be rebuilt
        disks: the open disks after the plan; empty where nothing would be placed
        stale_safe: whether Longhorn finds space even if it sees none of its latest placements; true where none is new
    """

    reason: Reason
    order_safe: bool = False
    replica_bytes: int = 0
    disks: tuple[DiskFacts, ...] = ()
    stale_safe: bool = False


@dataclass(frozen=True, slots=True)
class LonghornFacts:
    """Facts about a pod's Longhorn volumes.

    Attributes:
        nodes: by name; a node that is not named was not evaluated, so nothing fits on it
        total_bytes: the `replica_bytes` of a node with a healthy replica of every volume that has a replica anywhere; if none has, the
            sizes of all volumes
    """

    nodes: Mapping[str, NodeFacts] = field(default_factory=dict[str, NodeFacts])
    total_bytes: int = 0


NO_FACTS: Final = LonghornFacts()
