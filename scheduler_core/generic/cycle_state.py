"""State of one scheduling cycle: the pod, the cluster, facts about its Longhorn volumes, and values that several rules share, each
computed once.

The facts are Longhorn's own decision about one pod, per node. `scheduler_core/decide/score_facts.py` computes them: each node's
reason, order safety and stale safety, the volumes that keep a replica there, and the bytes that the plan leaves free on each disk.
This module does not know how.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, cmp_to_key
from operator import attrgetter
from typing import NamedTuple

from scheduler_core import errors
from scheduler_core.generic.cluster_state import GenericClusterState, NodeInfo, SequenceNumber, ServicePods
from scheduler_core.model import kube, verdict
from scheduler_core.model.generic import Controller, Service
from scheduler_core.structs import Struct

_ALL_TENTHS = 10
_Share = tuple[int, int]


def _compare(first: _Share, second: _Share) -> int:
    return first[0] * second[1] - second[0] * first[1]


_BY_SIZE = cmp_to_key(_compare)


class DiskFacts(NamedTuple):
    """A disk that is open to the pod's volumes."""

    limit: int  # the most bytes that may be allocated on it (Longhorn's over-provisioning limit)
    # The bytes that remain of the limit after the plan for the pod's volumes and the space of other pods' volumes.
    free: int


class ScoreInputs(NamedTuple):
    """What Longhorn's priorities read about a node that fits. Thousands of nodes share a handful of values, so that a
    priority scores each value once.
    """

    order_safe: bool  # as in `NodeFacts`
    stale_safe: bool  # as in `NodeFacts`
    replica_bytes: int  # as in `NodeFacts`
    balance: int  # how evenly the disks are filled: 10 less the difference of their free shares in tenths, rounded up
    largest_share: int  # the share of the free bytes that is on one disk, in tenths, cut off


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """Facts about the pod's volumes on one node."""

    reason: verdict.Reason  # why the node fits or does not
    # Whether Longhorn finds space in whatever order it places the new replicas; true where none is new.
    order_safe: bool = False
    # Sizes, in sum, of the pod's Longhorn volumes with a replica on the node that stays there; for a healthy replica
    # also the bytes written, which need not be rebuilt.
    replica_bytes: int = 0
    disks: tuple[DiskFacts, ...] = ()  # the open disks after the plan; empty where nothing would be placed
    # Whether Longhorn finds space even if it sees none of its latest placements; true where none is new.
    stale_safe: bool = False
    # What the priorities read; None where the volumes do not fit.
    # Computed once, because the facts about a node are kept for later pods.
    score_inputs: ScoreInputs | None = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        inputs = None
        if self.reason.fits:
            balance = _balance(self.disks)
            free = [max(0, disk.free) for disk in self.disks]
            share = _ALL_TENTHS * max(free) // sum(free) if any(free) else _ALL_TENTHS
            inputs = ScoreInputs(self.order_safe, self.stale_safe, self.replica_bytes, balance, share)
        object.__setattr__(self, "score_inputs", inputs)


def _balance(disks: Sequence[DiskFacts]) -> int:
    shares = [(max(0, min(disk.free, disk.limit)), disk.limit) for disk in disks if disk.limit > 0]
    if not shares:
        return _ALL_TENTHS
    limit = shares[0][1]
    if all(share[1] == limit for share in shares):
        # Mostly the disks of a node are alike, and need no comparison of fractions.
        return _ALL_TENTHS - -(-_ALL_TENTHS * (max(shares)[0] - min(shares)[0]) // limit)
    max_free, max_limit = max(shares, key=_BY_SIZE)
    min_free, min_limit = min(shares, key=_BY_SIZE)
    difference = max_free * min_limit - min_free * max_limit
    return _ALL_TENTHS - -(-_ALL_TENTHS * difference // (max_limit * min_limit))


class LonghornFacts(Struct, frozen=True):
    """Facts about a pod's Longhorn volumes."""

    # By name; a node that is not named was not evaluated, so nothing fits on it.
    nodes: Mapping[str, NodeFacts] = {}
    # The `replica_bytes` of a node with a healthy replica of every volume that has a replica anywhere; if none has, the
    # sizes of all volumes.
    total_bytes: int = 0


NO_FACTS = LonghornFacts()


class UndecidableError(errors.CoreError):
    """A predicate cannot be decided for any node, so the pod is not scheduled in this cycle."""


class Argument(Struct, frozen=True):
    """Argument of a configurable rule."""

    labels: tuple[str, ...] = ()  # node labels; a priority has one
    presence: bool = False  # whether the labels are required or unwanted


NO_ARGUMENT = Argument()


class _FactsOfNodes(NamedTuple):
    node_infos: Sequence[NodeInfo]
    distinct: Sequence[ScoreInputs | None]
    indexes: Sequence[int]


@dataclass(frozen=True)
class CycleState:
    """A pod, the cluster, and facts about its Longhorn volumes."""

    pod: kube.Pod
    cluster: GenericClusterState
    longhorn_facts: LonghornFacts = field(default=NO_FACTS)
    _latest_facts: _FactsOfNodes | None = field(default=None, init=False, compare=False)

    @cached_property
    def services(self) -> tuple[ServicePods, ...]:
        services = self.cluster.services.get(self.pod.namespace, ())
        return tuple(entry for entry in services if entry.service.selects(self.pod.scheduling.labels))

    @cached_property
    def first_service_pods(self) -> Mapping[SequenceNumber, kube.Pod]:
        return self.services[0].pods if self.services else {}

    @cached_property
    def first_service_pods_by_node(self) -> Counter[str]:
        """Number of the first service's pods per node, which may not exist."""
        return Counter(pod.node_name for pod in self.first_service_pods.values())

    @cached_property
    def service_pods_by_node(self) -> Counter[str]:
        """Number of pods per node of all services that select the pod."""
        # A pod of several services counts once; the node may not exist.
        if len(self.services) <= 1:
            return self.first_service_pods_by_node
        pods = {number: pod for entry in self.services for number, pod in entry.pods.items()}
        return Counter(pod.node_name for pod in pods.values())

    @cached_property
    def controllers(self) -> tuple[Controller, ...]:
        controllers = self.cluster.controllers.get(self.pod.namespace)
        return tuple(entry for entry in (controllers or {}).values() if entry.selects(self.pod.scheduling.labels))

    @cached_property
    def owned_pods_by_node(self) -> Counter[str]:
        """Number of pods per node that share a service or controller with the pod. A pod of several of them counts
        once; the node may not exist. Finished pods are included.
        """
        if not self.controllers:
            return self.service_pods_by_node
        owners: list[Service | Controller] = [*(entry.service for entry in self.services), *self.controllers]
        return Counter(
            pod.node_name
            for _, pod in self.cluster.assigned_pods.values()
            if pod.namespace == self.pod.namespace and any(owner.selects(pod.scheduling.labels) for owner in owners)
        )

    def score_facts(self, node_infos: Sequence[NodeInfo], score: Callable[[ScoreInputs], int]) -> list[int]:
        """Scores the facts about the pod's Longhorn volumes on each node, in order. 0 where the volumes do not fit or
        were not evaluated. Equal facts are scored once. They are kept for the next rule that asks about the same nodes.
        """
        facts = self._latest_facts
        if facts is None or facts.node_infos is not node_infos:
            found = map(self.longhorn_facts.nodes.get, map(attrgetter("node.name"), node_infos))
            inputs = [None if entry is None else entry.score_inputs for entry in found]
            numbers = {key: number for number, key in enumerate(dict.fromkeys(inputs))}
            facts = _FactsOfNodes(node_infos, tuple(numbers), list(map(numbers.__getitem__, inputs)))
            object.__setattr__(self, "_latest_facts", facts)
        scores = [0 if inputs is None else score(inputs) for inputs in facts.distinct]
        return list(map(scores.__getitem__, facts.indexes))
