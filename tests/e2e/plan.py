"""The proposal's test plan for the scheduler extender, goal by goal.

Each function runs one repetition on a rig and returns what happened. Every goal has nodes of its own, and a node selector keeps its
pods on them, so that one cluster serves all goals.
"""

from scheduler_core.structs import replace
from tests.e2e.bursts import READY_SECONDS, Result, wait_for_result
from tests.e2e.objects import Object, statefulset
from tests.e2e.placement_audit import PlacementAudit
from tests.e2e.rig import Rig

LOAD = (0.1, 0.4, 0.6, 0.8)
EVEN = {f"race-{number}": 4 for number in range(1, 5)}


def goal_1_nodes(rig: Rig) -> None:
    """Adds 4 nodes with 1 disk of 400Gi and different other work."""
    rig.add_nodes("race", {name: ["400Gi"] for name in EVEN})
    for name, share in zip(EVEN, LOAD, strict=True):
        rig.load(name, share)


def _race(*, asks: bool = True, storage_class: str = "longhorn-local") -> Object:
    return statefulset("race", group="race", replicas=16, storage_class=storage_class, asks=asks)


def start_goal_1(rig: Rig) -> None:
    """Creates the pods of goal 1; returns when some, but not all, have a node."""
    rig.create(_race())
    rig.until("some pods have a node", lambda: sum(map(bool, rig.nodes_of("race").values())) >= 3)


def goal_1(rig: Rig, *, asks: bool) -> Result:
    """A StatefulSet of 16 parallel pods with 100Gi each. With the extender 4 pods are on each node."""
    try:
        with PlacementAudit(rig) as audit:
            rig.create(_race(asks=asks))
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
        with PlacementAudit(rig) as audit:
            drain(rig, "drain-1", "drain")
            result = wait_for_result(rig, "drain", 4, audit, must=asks)
            if asks:
                rig.until("every volume has a local replica", lambda: not rig.misplaced_pods("drain"), 60)
                result = replace(result, misplaced=rig.misplaced_pods("drain"), overbooked=audit.overbooked)
            return result
    finally:
        kubectl("uncordon", "drain-1", *others)
        rig.remove("drain")


def drain(rig: Rig, node: str, app: str) -> None:
    """Drains the node of all pods of an app; returns when these have successors."""
    before = {pod["metadata"]["uid"] for pod in rig.pods(app)}
    rig.cluster.kubectl("drain", node, "--ignore-daemonsets", "--delete-emptydir-data", "--force", "--timeout=60s")
    rig.until("the pods are new ones", lambda: not before & {pod["metadata"]["uid"] for pod in rig.pods(app)})


def goal_3_restart(rig: Rig, *, asks: bool) -> tuple[Result, dict[str, str]]:
    """16 pods are deleted and created again over their retained volumes. With the extender each returns to its node.
    Returns the result, and the nodes before.
    """
    try:
        rig.create(_race(storage_class="longhorn-retain"))
        rig.until("all pods run", lambda: rig.ready("race", 16), READY_SECONDS)
        before = rig.nodes_of("race")
        rig.cluster.kubectl("delete", "statefulset", "race", "--wait=true")
        rig.until("no pod is left", lambda: not rig.pods("race"))
        rig.until("nothing is attached", lambda: not rig.items("/apis/storage.k8s.io/v1/volumeattachments"))
        with PlacementAudit(rig) as audit:
            rig.create(_race(storage_class="longhorn-retain", asks=asks))
            return wait_for_result(rig, "race", 16, audit, must=asks), before
    finally:
        rig.remove("race")
