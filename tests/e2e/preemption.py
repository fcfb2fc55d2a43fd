"""Preemption for CPU where one node of four has Longhorn room, for the report and `test_scenarios.py`."""

import time
from dataclasses import dataclass

from app.kube.resources import PODS
from tests.e2e.objects import PAUSE, RESOURCE, Object, Volume, Workload
from tests.e2e.rig import Rig

APP = "preempt"
ROOMY = "preempt-3"
_NODES = 4
_CPUS = "20"  # more than half of a node's
_FINALIZER = "tests/ends-slowly"
# A nominated node's room was lost three seconds after the nomination.
_HELD_SECONDS = 8.0


@dataclass(frozen=True, slots=True)
class Preemption:
    """What a preemption did."""

    preemptor: str  # the node of the pod of high priority, "" for none
    victims: list[str]  # the nodes whose pods of low priority were deleted
    late: str  # the node of a pod of low priority that was created while the victim ended
    misplaced: list[str]  # pods with a local volume without a replica on their node

    @property
    def problems(self) -> list[str]:
        """What should not have happened."""
        checks = {
            f"the preemptor is on {self.preemptor or 'no node'}": self.preemptor == ROOMY,
            f"victims on {self.victims}": self.victims == [ROOMY],
            f"a pod of low priority took the room on {self.late}": self.late == "",
            f"misplaced: {self.misplaced}": not self.misplaced,
        }
        return [f"preemption: {problem}" for problem, holds in checks.items() if not holds]


def run(rig: Rig) -> Preemption:
    """Runs it once on nodes of its own. Every node's CPU is taken by a pod of low priority, and only one node has room
    on its disk. The victim ends slowly; meanwhile a pod of low priority, which needs no CPU, asks for the room.
    """
    sizes = {f"{APP}-{number}": "99Gi" for number in range(1, _NODES + 1)} | {ROOMY: "100Gi"}
    rig.add_nodes(APP, {name: [size] for name, size in sizes.items()})
    rig.create(
        {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": "high"}, "value": 1000}
    )
    rig.create(*(_victim(node) for node in sizes))
    rig.until("the victims run", lambda: rig.ready("victim", _NODES))
    try:
        rig.post(_pod("urgent", {"priorityClassName": "high"}, _CPUS))
        rig.until("the pod of high priority preempts", lambda: _ending(rig))
        rig.post(_pod("late", {}, "0"))
        time.sleep(_HELD_SECONDS)
        late = rig.nodes_of("late")["late-0"]
        for node in _ending(rig):
            _let_end(rig, node)
        if not late:
            rig.until("the pod of high priority runs", lambda: rig.ready("urgent", 1))
        remaining = set(rig.nodes_of("victim").values())
        victims = sorted(set(sizes) - remaining)
        misplaced = rig.misplaced_pods("urgent") + rig.misplaced_pods("late")
        return Preemption(rig.nodes_of("urgent")["urgent-0"], victims, late, misplaced)
    finally:
        for node in rig.nodes_of("victim").values():
            _let_end(rig, node)
        rig.remove("urgent", "late", "victim")


def _victim(node: str) -> Object:
    """A pod without volumes that takes more than half of a node's CPU."""
    container = {"name": "work", "image": PAUSE, "resources": {"requests": {"cpu": _CPUS}}}
    metadata = {"name": f"victim-on-{node}", "namespace": "default", "labels": {"app": "victim"}}
    spec = {"nodeName": node, "terminationGracePeriodSeconds": 0, "containers": [container]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {**metadata, "finalizers": [_FINALIZER]}, "spec": spec}


def _pod(app: str, more: Object, cpus: str) -> list[Object]:
    """The objects of a pod with one claim that fits on the roomy node only."""
    *claims, pod = Workload(app=app, group=APP, volumes=[Volume("100Gi")]).loose()
    [container] = pod["spec"]["containers"]
    container["resources"]["requests"] = {RESOURCE: "1", "cpu": cpus}
    return [*claims, {**pod, "spec": {**pod["spec"], **more}}]


def _let_end(rig: Rig, node: str) -> None:
    rig.cluster.api.patch(PODS.path("default", f"victim-on-{node}"), {"metadata": {"finalizers": None}})


def _ending(rig: Rig) -> list[str]:
    return [pod["spec"]["nodeName"] for pod in rig.pods("victim") if "deletionTimestamp" in pod["metadata"]]
