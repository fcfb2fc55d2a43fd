"""Nodes without Longhorn's CSI driver: volumes are not attached there.

kube-scheduler does not look for the driver (NodeVolumeLimits, unless the CSIDriver sets preventPodSchedulingIfMissing and the alpha
feature VolumeLimitScaling is on), and so /filter does not either. A pod that is bound to such a node waits there for its volumes.
"""

from __future__ import annotations

from typing import Final

from scheduler_core.longhorn.provisioned_volume import DRIVER
from scheduler_core.model.snapshot import Snapshot

NO_DRIVER: Final = "Longhorn's CSI driver is not registered on the node"
NO_DRIVER_DETAIL: Final = (
    f"kube-scheduler may choose the node, and the pod then waits for its volumes until the node's CSINode names {DRIVER}; what helps: "
    "a running longhorn-csi-plugin pod there"
)


def lacks_driver(snapshot: Snapshot, node: str) -> bool:
    """Whether Longhorn's CSI driver is not registered on a node; a snapshot without CSINodes says nothing."""
    return snapshot.csi_nodes is not None and DRIVER not in snapshot.csi_nodes.get(node, ())
