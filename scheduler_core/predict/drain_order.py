"""In which order nodes can be maintained: each is drained, maintained and uncordoned.

What became of a node's pods and replicas carries over. A drain fits if it finishes, every pod that it moves is placed, and no attached
volume is without a healthy replica (`maintain_node`).

Where no order fits, the result is how far the best one gets. Several courses of events are followed side by side, each with its own
random choices. A drain fits only if it fits in all of them. The search drains one node after the other and goes back from a dead end,
where no remaining node can be drained. Nodes that cannot be drained whatever happens to the others (`permanent_blockers`) are left
out from the start.
"""

from collections import Counter
from collections.abc import Callable, Sequence

from scheduler_core.decide.decision import FilterOptions
from scheduler_core.model.snapshot import NamespacedName
from scheduler_core.predict.cluster_changes import check_node, drain, permanent_blockers, return_node
from scheduler_core.predict.predicted_cluster import PredictedCluster
from scheduler_core.predict.predicted_replicas import Choose, healthy_replicas, replicas_on_node
from scheduler_core.predict.prediction import longest_wait, pod_problem
from scheduler_core.predict.prediction_input import Situation
from scheduler_core.predict.timeline import OrderResult, run_order
from scheduler_core.structs import Struct


class Maintenance(Struct, frozen=True):
    """One node's maintenance in one order."""

    cluster: PredictedCluster  # after the node was uncordoned, and everything has settled
    pods: int = 0  # how many pods the drain moves
    copied_bytes: int = 0  # data that rebuilds copy
    reduced_volumes: int = 0  # how many volumes have fewer healthy replicas meanwhile
    problems: tuple[str, ...] = ()  # why the drain does not fit; empty if it does
    rebuild_wait: float = 0  # for how many seconds nothing is rebuilt where Longhorn could reuse a failed replica


def maintain_node(
    cluster: PredictedCluster, node: str, parallel: frozenset[NamespacedName], options: FilterOptions, choose: Choose
) -> Maintenance:
    """Drains a node, and uncordons it once the drain has finished.

    Volumes may lack a replica meanwhile: the replicas on the node are there again after the maintenance, unless
    Longhorn has rebuilt them elsewhere. Raises a WhatIfError if there is no such node.
    """
    drained = drain(Situation(cluster, parallel=parallel), (node,))
    result = run_order(drained, options, choose)
    problems = _drain_problems(cluster, drained, result, node)
    if problems:
        return Maintenance(result.cluster, problems=problems)
    returned = return_node(cluster, result.cluster, node)
    settled = run_order(Situation(returned, parallel=parallel), options, choose)
    return Maintenance(
        cluster=settled.cluster,
        pods=len(drained.pods),
        copied_bytes=result.copied_bytes + settled.copied_bytes,
        reduced_volumes=len(result.fewer_replicas),
        rebuild_wait=longest_wait(result.waits.values()),
    )


def _drain_problems(before: PredictedCluster, drained: Situation, result: OrderResult, node: str) -> tuple[str, ...]:
    problems = [*result.blockers.get(node, ())]
    cluster = result.cluster
    # Those come first that no PodDisruptionBudget keeps on the node.
    for key in sorted(drained.pods, key=lambda key: drained.cluster.snapshot.pods[key].node_name):
        problem = pod_problem(key, result)
        # The blockers name the pods that may not be evicted.
        if problem and cluster.snapshot.pods[key].node_name != node:
            problems.append(problem)
    for name in sorted({replica.volume for replica in replicas_on_node(before, node)}):
        volume = cluster.snapshot.volumes.get(name)
        if (
            volume is not None
            and volume.node_id
            and not healthy_replicas(cluster, name)
            and healthy_replicas(before, name)
        ):
            problems.append(f"volume {name} has no healthy replica meanwhile")
    return tuple(problems)


class DrainStep(Struct, frozen=True):
    """The maintenance of one node."""

    node: str
    pods: tuple[int, int]  # as in `Maintenance`, the least and the most over all courses
    copied_bytes: tuple[int, int]  # as in `Maintenance`, the least and the most over all courses
    reduced_volumes: tuple[int, int]  # as in `Maintenance`, the least and the most over all courses
    rebuild_wait: float = 0  # as in `Maintenance`, the most over all courses

    @classmethod
    def of(cls, node: str, courses: Sequence[Maintenance]) -> "DrainStep":
        """Returns what a node's maintenance is in at least one course of events."""
        counts = ([each.pods, each.copied_bytes, each.reduced_volumes] for each in courses)
        pods, copied_bytes, volumes = ((min(values), max(values)) for values in zip(*counts, strict=True))
        return cls(node, pods, copied_bytes, volumes, max(result.rebuild_wait for result in courses))


class MaintenanceRequest(Struct, frozen=True):
    """The nodes that are to be maintained."""

    start: Situation  # the cluster before the first drain
    nodes: tuple[str, ...]
    options: FilterOptions
    # For each course of events, what makes the random choices of a node's maintenance; "" is the time before it.
    courses: Sequence[Callable[[str], Choose]]
    tries: int  # how many orders are tried at most: those that end in a dead end
    report: Callable[[int], None] = lambda _: None  # called after each drain, with the most drains in a row so far


class FailedDrain(Struct, frozen=True):
    """A node that the best order does not drain; the fields are keys of the JSON."""

    node: str
    blocked: bool  # whether it cannot be drained in any order
    problems: tuple[str, ...]  # why not, after the nodes of the best order; empty if that was not tried
    first_problems: tuple[str, ...]  # why its drain fails even as the first one; empty if it does not


class DrainOrder(Struct, frozen=True):
    """The result of a search."""

    steps: tuple[DrainStep, ...]  # the longest order in which every drain fits
    failed: tuple[FailedDrain, ...]  # the other nodes; first those that cannot be drained in any order
    courses: int  # how many courses of events were followed
    dead_ends: int  # how many orders ended where no other node can be drained
    exhaustive: bool  # whether every order was tried, so that there is none that drains more nodes

    @property
    def complete(self) -> bool:
        """Whether every node can be drained in this order."""
        return not self.failed


def find_drain_order(request: MaintenanceRequest) -> DrainOrder:
    """Searches an order of the nodes in which every drain fits. Raises a WhatIfError if a node does not exist."""
    for name in request.nodes:
        check_node(request.start.cluster, name)
    clusters = tuple(run_order(request.start, request.options, course("")).cluster for course in request.courses)
    blocked: list[FailedDrain] = []
    others: list[str] = []
    for name in request.nodes:
        texts = tuple(dict.fromkeys(text for cluster in clusters for text in permanent_blockers(cluster, name)))
        if texts:
            blocked.append(FailedDrain(name, blocked=True, problems=texts, first_problems=texts))
        else:
            others.append(name)
    return _Search(request, _State(clusters, tuple(others), others)).run(blocked)


class _State(Struct):
    clusters: tuple[PredictedCluster, ...]  # one for each course of events
    remaining: tuple[str, ...]
    untried: list[str]  # remaining nodes that have not been tried here
    steps: tuple[DrainStep, ...] = ()  # the drains that led here
    failures: dict[str, tuple[str, ...]] = {}  # why the drains of the others fail here


class _Search:
    """Depth-first search with a stack of its own: a cluster may have more nodes than Python nests calls."""

    def __init__(self, request: MaintenanceRequest, first: _State) -> None:
        self._request = request
        self._first = first
        self._stack = [first]
        self._best = first
        self._failures: Counter[str] = Counter()
        self._dead_ends = 0

    def run(self, blocked: Sequence[FailedDrain]) -> DrainOrder:
        while self._stack and self._best.remaining and self._dead_ends < self._request.tries:
            state = self._stack[-1]
            if not state.untried:
                self._dead_ends += len(state.failures) == len(state.remaining)
                self._stack.pop()
                continue
            # The one that failed most often comes first, because it may only fit while there is much room.
            name = max(state.untried, key=lambda node: self._failures[node])
            state.untried.remove(name)
            drained = self._drain(state, name)
            if drained is not None:
                self._stack.append(drained)
                self._best = max(self._best, drained, key=lambda each: len(each.steps))
            self._request.report(len(self._best.steps))
        failed = [*blocked]
        for name in sorted(self._best.remaining):
            if name in self._first.untried:
                self._drain(self._first, name)
            problems, first_problems = (state.failures.get(name, ()) for state in (self._best, self._first))
            failed.append(FailedDrain(name, blocked=False, problems=problems, first_problems=first_problems))
        exhaustive = not self._stack or not self._best.remaining
        return DrainOrder(self._best.steps, tuple(failed), len(self._request.courses), self._dead_ends, exhaustive)

    def _drain(self, state: _State, name: str) -> _State | None:
        """Returns the state after a node's maintenance, or None, with the problems noted, if its drain does not fit."""
        request = self._request
        results: list[Maintenance] = []
        for cluster, course in zip(state.clusters, request.courses, strict=True):
            result = maintain_node(cluster, name, request.start.parallel, request.options, course(name))
            if result.problems:
                self._failures[name] += 1
                state.failures[name] = result.problems
                return None
            results.append(result)
        clusters = tuple(result.cluster for result in results)
        remaining = tuple(node for node in state.remaining if node != name)
        return _State(clusters, remaining, [*remaining], (*state.steps, DrainStep.of(name, results)))
