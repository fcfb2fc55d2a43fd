"""Nodes, pods and services of the generic scheduler with large defaults, and single decisions."""

from collections.abc import Iterable
from typing import Any

from scheduler_core.generic.cluster_state import GenericClusterState
from scheduler_core.generic.cycle_state import NO_FACTS, Argument, CycleState, LonghornFacts
from scheduler_core.generic.policy import DEFAULT_POLICY, Policy
from scheduler_core.generic.rule_registry import PREDICATES, PRIORITIES
from scheduler_core.generic.scheduler import ScheduleResult, schedule
from scheduler_core.model.constraints import PodScheduling
from scheduler_core.model.generic import Node, Service
from scheduler_core.model.kube import Pod

GI = 1024**3


def node(name: str, *, cpu: int = 4000, memory: int = 8 * GI, pods: int = 110, **labels: str) -> Node:
    """A ready node with 4 CPUs and 8Gi; labels by keyword."""
    return Node(name, labels, cpu=cpu, memory=memory, pods=pods)


def pod(name: str = "new", on: str = "", *, cpu: int = 0, memory: int = 0, **more: Any) -> Pod:
    """A pod, on the node `on` if given; the priorities assume what it requests."""
    namespace = more.pop("namespace", "shop")
    phase = "Failed" if more.pop("finished", False) else "Running"
    read = {key: frozenset(more.pop(key, {}).items()) for key in ("labels", "node_selector")}
    fields = {"cpu": cpu, "memory": memory, "nonzero_cpu": cpu, "nonzero_memory": memory, **read, **more}
    return Pod(namespace, name, node_name=on, phase=phase, scheduling=PodScheduling(**fields))


def web(name: str = "new", on: str = "", **more: Any) -> Pod:
    return pod(name, on, labels={"app": "web"}, **more)


def service(name: str = "web", namespace: str = "shop", **selector: str) -> Service:
    return Service(namespace, name, frozenset((selector or {"app": "web"}).items()))


def state(
    nodes: Iterable[Node], pods: Iterable[Pod] = (), services: Iterable[Service] = (service(),)
) -> GenericClusterState:
    return GenericClusterState.of(nodes, pods, services)


def failed(
    rule: str, asking_pod: Pod, cluster: GenericClusterState, *, longhorn: LonghornFacts = NO_FACTS, **argument: Any
) -> dict[str, str]:
    check = PREDICATES[rule].function(CycleState(asking_pod, cluster, longhorn), Argument(**argument))
    return {name: text for name in cluster.node_names if (text := check(cluster.nodes[name]))}


def scores(
    rule: str, asking_pod: Pod, cluster: GenericClusterState, *, longhorn: LonghornFacts = NO_FACTS, **argument: Any
) -> list[int]:
    """The scores that a priority gives the nodes, in order of their names."""
    states = [cluster.nodes[name] for name in cluster.node_names]
    return PRIORITIES[rule].function(CycleState(asking_pod, cluster, longhorn), Argument(**argument), states)


def decide(
    asking_pod: Pod, cluster: GenericClusterState, policy: Policy = DEFAULT_POLICY, longhorn: LonghornFacts = NO_FACTS
) -> ScheduleResult:
    """Decides about a pod; selects the first of equal nodes by name."""
    return schedule(asking_pod, None, cluster, policy, min, lambda _: longhorn)
