"""A burst of 200 pods, which the report and `test_burst.py` measure."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from tests.e2e.objects import Object, Volume, Workload
from tests.e2e.placement_audit import PlacementAudit
from tests.e2e.plan import Result, wait_for_result
from tests.e2e.rig import Rig

APP: Final = "burst"
NODES: Final = 20
PODS: Final = 200
SIZE: Final = "18Gi"
# Exactly for two volumes each of ten pods. It is a multiple of 100Mi, because Longhorn rounds a disk's free space down to that, and a
# DiskSchedule grants no more than what is free: of 360Gi, nine pods' bytes and not ten's.
EXACT: Final = "368700Mi"
# Without the extender some pods may never run. The attacher's ten workers need 80 to 160 s for 400 volumes.
_SETTLE_SECONDS: Final = 240.0


@dataclass(frozen=True, slots=True)
class Burst:
    """The size of a burst."""

    pods: int = PODS  # the number of pods
    nodes: int = NODES  # the number of nodes
    disk: str = "400Gi"  # the size of each node's disk; the default one fits eleven pods

    def add_nodes(self, rig: Rig) -> None:
        """Adds the nodes, each with a single disk. A second disk could take what does not fit on the first, and so hide it."""
        rig.add_nodes(APP, {f"burst-{number:02d}": [self.disk] for number in range(1, self.nodes + 1)})

    def run(self, rig: Rig, *, asks: bool, must: bool) -> Result:
        """Creates all claims, then all pods; returns the result when they run. So kube-scheduler has all pods at the same time."""
        workload = Workload(app=APP, group=APP, volumes=[Volume(SIZE)] * 2, asks=asks)
        objects = [entry for number in range(self.pods) for entry in workload.loose(number)]
        rig.post(entry for entry in objects if entry["kind"] != "Pod")
        with PlacementAudit(rig) as audit:
            rig.post(entry for entry in objects if entry["kind"] == "Pod")
            return wait_for_result(rig, APP, self.pods, audit, must=must, settle=_SETTLE_SECONDS)


def names_by_uid(pods: list[Object]) -> Mapping[str, str]:
    return {pod["metadata"]["uid"]: pod["metadata"]["name"] for pod in pods}
