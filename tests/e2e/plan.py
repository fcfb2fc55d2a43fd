"""The proposal's test plan for the scheduler extender, goal by goal.

Each function runs one repetition on a rig and returns what happened. Every goal has nodes of its own, and a node selector keeps its
pods on them, so that one cluster serves all goals.
"""

import time
from collections import Counter
from dataclasses import dataclass
from typing import Final

from scheduler_core.values import replace
from tests.e2e.objects import statefulset
from tests.e2e.placement_audit import PlacementAudit
from tests.e2e.rig import Rig

LOAD: Final = (0.1, 0.4, 0.6, 0.8)
READY_SECONDS: Final = 480.0
# Without the extender pods may be stuck for ever; pods that do not run by then are counted.
SETTLE_SECONDS: Final = 45.0


@dataclass(frozen=True)
class Result:
    """One repetition.

    Attributes:
        seconds: from creation until every pod runs; None if not every pod came to run
        nodes: the node of each pod
        misplaced: pods with a local volume without a replica on their node
        mended: replicas placed elsewhere than where their volume was, also if a local one was created later
        overbooked: disks that held more than Longhorn allows, because two volumes were placed before its status followed, also if a
            volume left later; each with the volumes that met, and the milliseconds between them
        stuck: pods that did not come to run
    """

    seconds: float | None
    nodes: dict[str, str]
    misplaced: list[str]
    mended: int
    overbooked: list[str]
    stuck: list[str]

    @property
    def per_node(self) -> dict[str, int]:
        return dict(sorted(Counter(node for node in self.nodes.values() if node).items()))


def wait_for_result(
    rig: Rig, app: str, count: int, audit: PlacementAudit, *, must: bool, settle: float = SETTLE_SECONDS
) -> Result:
    """Waits for an app's pods, and returns where pods and replicas are.

    Args:
        rig: where the app runs
        app: the app
        count: the number of its pods
        audit: began when they were created
        must: whether all pods have to come to run
        settle: after how many seconds the wait ends without `must`
    """
    seconds: float | None = None
    deadline = audit.started + (READY_SECONDS if must else settle)
    while time.monotonic() < deadline:
        if rig.ready(app, count):
            seconds = time.monotonic() - audit.started
            break
        time.sleep(0.1)
    if must and seconds is None:
        raise AssertionError(f"{app} is not ready after {READY_SECONDS:g} s: {rig.nodes_of(app)} {rig.status()}")
    stuck = sorted(pod["metadata"]["name"] for pod in rig.pods(app) if pod["status"].get("phase") != "Running")
    return Result(seconds, rig.nodes_of(app), rig.misplaced_pods(app), audit.misplacements, audit.overbooked, stuck)


def goal_1_nodes(rig: Rig) -> None:
    """Adds 4 nodes with 1 disk of 400Gi and different other work."""
    rig.add_nodes("race", {f"race-{number}": ["400Gi"] for number in range(1, 5)})
    for number, share in enumerate(LOAD, start=1):
        rig.load(f"race-{number}", share)


def goal_1(rig: Rig, *, asks: bool) -> Result:
    """A StatefulSet of 16 parallel pods with 100Gi each. With the extender 4 pods are on each node."""
    try:
        with PlacementAudit(rig) as audit:
            rig.create(statefulset("race", group="race", replicas=16, asks=asks))
            return wait_for_result(rig, "race", 16, audit, must=asks)
    finally:
        rig.remove("race")


def goal_2_nodes(rig: Rig) -> None:
    """Adds 4 nodes with 1, 2, 3 and 4 disks of 100Gi."""
    rig.add_nodes("many", {f"many-{number}": ["100Gi"] * number for number in range(1, 5)})


def goal_2(rig: Rig, *, asks: bool) -> Result:
    """A pod with 4 claims of 100Gi. With the extender it is on the node with 4 disks."""
    try:
        with PlacementAudit(rig) as audit:
            rig.create(statefulset("many", group="many", replicas=1, claims=4, asks=asks))
            return wait_for_result(rig, "many", 1, audit, must=asks)
    finally:
        rig.remove("many")


def goal_3_nodes(rig: Rig) -> None:
    """Adds two nodes with 400Gi and two with 99Gi."""
    rig.add_nodes("drain", {"drain-1": ["400Gi"], "drain-2": ["400Gi"], "drain-3": ["99Gi"], "drain-4": ["99Gi"]})


def goal_3_drain(rig: Rig, *, asks: bool) -> Result:
    """4 pods of 100Gi leave a drained node for the other large one. With the extender all of them move there."""
    kubectl = rig.cluster.kubectl
    others = ["drain-2", "drain-3", "drain-4"]
    kubectl("cordon", *others)
    try:
        rig.create(statefulset("drain", group="drain", replicas=4, asks=asks))
        rig.until("all pods run on drain-1", lambda: rig.ready("drain", 4), 120)
        assert set(rig.nodes_of("drain").values()) == {"drain-1"}
        kubectl("uncordon", *others)
        before = {pod["metadata"]["uid"] for pod in rig.pods("drain")}
        with PlacementAudit(rig) as audit:
            kubectl("drain", "drain-1", "--ignore-daemonsets", "--delete-emptydir-data", "--force", "--timeout=60s")
            rig.until(
                "the pods are new ones", lambda: not before & {pod["metadata"]["uid"] for pod in rig.pods("drain")}
            )
            result = wait_for_result(rig, "drain", 4, audit, must=asks)
            if asks:
                rig.until("every volume has a local replica", lambda: not rig.misplaced_pods("drain"), 60)
                result = replace(result, misplaced=rig.misplaced_pods("drain"), overbooked=audit.overbooked)
            return result
    finally:
        kubectl("uncordon", "drain-1", *others)
        rig.remove("drain")


def goal_3_restart(rig: Rig, *, asks: bool) -> tuple[Result, dict[str, str]]:
    """16 pods are deleted and created again over their retained volumes. With the extender each returns to its node.
    Returns the result, and the nodes before.
    """
    recreated = statefulset("race", group="race", replicas=16, storage_class="longhorn-retain", asks=asks)
    try:
        rig.create(statefulset("race", group="race", replicas=16, storage_class="longhorn-retain", asks=True))
        rig.until("all pods run", lambda: rig.ready("race", 16), READY_SECONDS)
        before = rig.nodes_of("race")
        rig.cluster.kubectl("delete", "statefulset", "race", "--wait=true")
        rig.until("no pod is left", lambda: not rig.pods("race"))
        rig.until("nothing is attached", lambda: not rig.items("/apis/storage.k8s.io/v1/volumeattachments"))
        with PlacementAudit(rig) as audit:
            rig.create(recreated)
            return wait_for_result(rig, "race", 16, audit, must=asks), before
    finally:
        rig.remove("race")
