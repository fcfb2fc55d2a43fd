"""Requested evictions of nodes and disks: which node takes no new replica, and which replica leaves its place.

A disk whose eviction is requested takes no replica by Longhorn's own rules (`disk_stage.py`). Longhorn's scheduler does not read the node's
request, which its webhook accepts only for nodes without scheduling; it counts because Longhorn's scheduler-extender proposal says so
(Filter, step 4).
"""

from __future__ import annotations

from scheduler_core.model.longhorn import Node, Replica


def takes_new_replicas(node: Node) -> bool:
    return not node.eviction_requested


def stays(replica: Replica) -> bool:
    """Whether a placed replica stays on its disk: active, neither evicted nor deleted."""
    return bool(
        replica.node_id
        and replica.disk_id
        and replica.active
        and not replica.eviction_requested
        and not replica.deleting
    )
