"""200 pods at once: what the report and `test_burst.py` measure."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from tests.e2e.objects import Object, Volume, Workload
from tests.e2e.plan import Result, run
from tests.e2e.rig import Rig

APP: Final = "burst"
NODES: Final = 20
PODS: Final = 200
_SIZE: Final = "18Gi"
# For two volumes each of ten pods, which have to be there, and for nobody else.
EXACT: Final = "360Gi"
# Without the extender some pods may never run; twice as long as all of them take with it.
_SETTLE_SECONDS: Final = 120.0


@dataclass(frozen=True, slots=True)
class Burst:
    """How large a burst is.

    Attributes:
        pods: how many
        nodes: on how many nodes
        disk: the size of the one that each node has: for eleven pods, unless told otherwise
    """

    pods: int = PODS
    nodes: int = NODES
    disk: str = "400Gi"

    def add_nodes(self, rig: Rig) -> None:
        """The nodes, each with one disk: what is too much on it no other disk has taken."""
        rig.add_nodes(APP, {f"burst-{number:02d}": [self.disk] for number in range(1, self.nodes + 1)})

    def once(self, rig: Rig, *, asks: bool, must: bool) -> Result:
        """Creates all claims, then all pods, so that kube-scheduler has them all at once; the result when they run."""
        workload = Workload(app=APP, group=APP, volumes=[Volume(_SIZE)] * 2, asks=asks)
        objects = [entry for number in range(self.pods) for entry in workload.loose(number)]
        rig.post(entry for entry in objects if entry["kind"] != "Pod")
        started, before = time.monotonic(), rig.misplacements()
        rig.post(entry for entry in objects if entry["kind"] == "Pod")
        return run(rig, APP, self.pods, started, must=must, before=before, settle=_SETTLE_SECONDS)


def uids(pods: list[Object]) -> Mapping[str, str]:
    """The names of pods by their UIDs."""
    return {pod["metadata"]["uid"]: pod["metadata"]["name"] for pod in pods}
