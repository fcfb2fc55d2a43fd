"""What the classic scheduler's Longhorn rules read: for one pod, what Longhorn's own rules found on each node.

It is filled from `scheduler_core.extender.filter`: the reason and order safety of each node, which volumes keep a replica there, and what
the plan leaves free on each disk. This module knows nothing of how that was found.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from scheduler_core.model.verdict import Reason


@dataclass(frozen=True, slots=True)
class DiskFacts:
    """A disk of a node that is open to the pod's volumes, in bytes.

    Attributes:
        limit: what may be promised on it in all (Longhorn's over-provisioning limit)
        free: what of that is left once the pod's volumes are placed by the plan, beside what others were promised
    """

    limit: int
    free: int


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """What one node means to the pod's volumes.

    Attributes:
        reason: why the node fits or does not
        order_safe: whether Longhorn finds room in whatever order it places what is new there; true where nothing is new
        kept: bytes (volume sizes) of the pod's Longhorn volumes that have a replica on the node that stays
        disks: the open disks after the plan; none where nothing would be placed
    """

    reason: Reason
    order_safe: bool = False
    kept: int = 0
    disks: tuple[DiskFacts, ...] = ()


@dataclass(frozen=True, slots=True)
class LonghornFacts:
    """What is known of a pod's Longhorn volumes; a node that is not named was not looked at, so nothing fits there.

    Attributes:
        nodes: by name
        total: bytes (volume sizes) of all the pod's Longhorn volumes
    """

    nodes: Mapping[str, NodeFacts] = field(default_factory=dict[str, NodeFacts])
    total: int = 0


NOTHING_KNOWN: Final = LonghornFacts()
