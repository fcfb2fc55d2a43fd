"""Monitors demand, change by change: how much there is, why, and what of it went wrong.

Data flow: the demand of a view and the previous report → the nodes whose demand or free space changed → only these are
evaluated → the next `PlacementReport`. It costs one comparison per node with demand, and the evaluation of the changed
nodes.

- **Misplaced**: Longhorn placed a new volume on another node than its demand's. A volume with a replica that was ever healthy
  is not new: it may have been drained away, and its local replica is still to come.
- **Hopeless**: the demand does not fit on its node together with older demand (`evaluation/contention.py`), so it does not count there.
- **Roaming**: Longhorn places the volume of hopeless demand on any other node, so it counts on every node (`evaluation/volumes_anywhere.py`).
- **Stuck**: a pod is bound, and a volume of it has not been on its node for `STUCK_AFTER` seconds.

If best-effort volumes only prefer their pod's node, one that Longhorn placed on another node is neither misplaced nor
stuck.

Objects have no time at which a problem began, so its age counts from the first report that has it.
"""

import math
from collections.abc import Mapping, Sequence

from rpds import HashTrieMap

from scheduler_core.evaluation.cluster_state import ClusterState
from scheduler_core.evaluation.competing_volumes import NO_REQUESTER, ContentionQuery, identity
from scheduler_core.evaluation.contention import Contention
from scheduler_core.offers.ledger import Ledger
from scheduler_core.packing.budget import Budget
from scheduler_core.structs import Struct, field
from scheduler_core.volumes.outstanding_demand import Demand, DemandSource
from scheduler_core.volumes.resolve import is_local

STUCK_AFTER = 60.0
# Longhorn writes the places of a new volume's replicas one by one, and the local replica need not be seen first.
SETTLE_TIME = 1.0
# These share a budget too: a node for which it does not suffice has no hopeless demand, like a node where all of it fits.
_NODES_PER_BUDGET = 16


class Misplaced(Struct, frozen=True):
    """A new volume that Longhorn placed on the wrong node, and that is still not on the node where it is demanded."""

    pod: str  # the pod that uses it, as ``namespace/name``; "" if that was never seen
    volume: str
    node: str  # where it is demanded
    replicas_on: tuple[str, ...]  # nodes that have its replicas now, sorted


class Stuck(Struct, frozen=True):
    """A bound pod that waits too long for volumes."""

    pod: str  # as ``namespace/name``
    node: str
    volumes: tuple[str, ...]  # the volumes that are not on its node, the oldest claim's first
    since: float  # when the first of them was seen to be missing, in the caller's seconds


class _NodeReport(Struct, frozen=True):
    demands: tuple[Demand, ...] = ()
    free_space: object = None  # of its disks, when its demand was evaluated
    hopeless: tuple[Demand, ...] = ()
    misplaced: tuple[Misplaced, ...] = ()
    stuck: tuple[Stuck, ...] = ()
    bound_since: Mapping[tuple[str, str], float] = {}  # by pod and claim, when the demand of a bound pod was first seen
    # By volume, when a new volume was first seen elsewhere while some replica had no place.
    misplaced_since: Mapping[str, float] = {}
    due: float = math.inf  # when the report changes by time alone

    @property
    def has_problem(self) -> bool:
        return bool(self.hopeless or self.misplaced or self.stuck)

    def is_current(self, demands: tuple[Demand, ...], free_space: object) -> bool:
        """Whether the report still holds; unchanged values are shared between views, so identity tells."""
        return self.demands is demands and self.free_space is free_space


_NO_REPORT = _NodeReport()


class _Situation(Struct, frozen=True):
    now: float
    # Misplaced volumes that the previous report already has on one of the nodes, by volume.
    reported: Mapping[str, Misplaced]
    require_best_effort: bool  # whether a best-effort volume needs space on its pod's node, or only prefers it


class PlacementReport(Struct, frozen=True):
    """The state of all demand at one time. A new report is empty; only `update` makes the next."""

    time: float = -math.inf  # when it was made, in the caller's seconds
    # Number of demands by what ties them to their nodes.
    by_source: Mapping[DemandSource, int] = field(default_factory=lambda: dict.fromkeys(DemandSource, 0))
    # Misplacements that this report is the first to have, once per pod and volume, sorted by node.
    new_misplacements: tuple[Misplaced, ...] = ()
    roaming: frozenset[str] = frozenset()  # identities of the volumes that may be placed on any node
    _nodes: "HashTrieMap[str, _NodeReport]" = field(default_factory=HashTrieMap)
    _problems: "HashTrieMap[str, _NodeReport]" = field(default_factory=HashTrieMap)

    @property
    def hopeless(self) -> tuple[Demand, ...]:
        """Demand that does not fit together with older demand, sorted by node and age."""
        return tuple(demand for report in self._reports_with_problems() for demand in report.hopeless)

    @property
    def misplaced(self) -> tuple[Misplaced, ...]:
        return tuple(entry for report in self._reports_with_problems() for entry in report.misplaced)

    @property
    def stuck(self) -> tuple[Stuck, ...]:
        return tuple(entry for report in self._reports_with_problems() for entry in report.stuck)

    def update(
        self,
        state: ClusterState,
        contention: Contention,
        ledger: Ledger,
        now: float,
        *,
        require_best_effort: bool = True,
    ) -> "PlacementReport":
        """Returns the report at a later time. A `now` before this report's time counts as that. `contention` caches how nodes pack;
        the instance that pods are evaluated with has done most of the work. The offers change nothing here, but are packed in the
        same step. Best-effort volumes need space on their pod's node, or only prefer it.
        """
        now = max(now, self.time)
        demand = state.demand.by_node
        free_space = state.view.indexes.free_space
        names = self._nodes_to_update(state, now)
        hopeless = self._hopeless_demands(state, contention, ledger, names)
        query = ContentionQuery(state, state.demand, ledger, NO_REQUESTER, Budget())
        contention.update(query)
        roaming = frozenset(map(identity, contention.roaming_volumes(query)))
        # Demand may have moved from one node to another; then both are updated.
        reported = {entry.volume: entry for name in names for entry in self._node_report(name).misplaced}
        situation = _Situation(now, reported, require_best_effort)
        nodes = self._nodes
        problems = self._problems
        by_source = dict(self.by_source)
        new_misplacements: list[Misplaced] = []
        for name in names:
            before = self._node_report(name)
            demands = demand.get(name) or ()
            for entry in before.demands:
                by_source[entry.source] -= 1
            for entry in demands:
                by_source[entry.source] += 1
            report, new = _report_node(situation, before, demands, free_space.get(name), hopeless[name])
            nodes = nodes.insert(name, report) if demands else nodes.discard(name)
            problems = problems.insert(name, report) if report.has_problem else problems.discard(name)
            new_misplacements += new
        return PlacementReport(now, by_source, tuple(new_misplacements), roaming, nodes, problems)

    def _reports_with_problems(self) -> list[_NodeReport]:
        return [self._problems[name] for name in sorted(self._problems)]

    def _node_report(self, name: str) -> _NodeReport:
        return self._nodes.get(name) or _NO_REPORT

    def _nodes_to_update(self, state: ClusterState, now: float) -> list[str]:
        """Names of nodes, sorted, whose demand or free space changed, or whose report is due."""
        names: list[str] = []
        free_space = state.view.indexes.free_space
        with_demand = state.demand.by_node
        reported = 0
        for name, demands in with_demand.items():
            before = self._nodes.get(name)
            reported += before is not None
            if before is None or before.due <= now or not before.is_current(demands, free_space.get(name)):
                names.append(name)
        # Iterating over a persistent map takes a microsecond per entry, so only where some node has lost its demand.
        if reported < len(self._nodes):
            names += [name for name in self._nodes if name not in with_demand]
        return sorted(names)

    def _hopeless_demands(
        self, state: ClusterState, contention: Contention, ledger: Ledger, names: Sequence[str]
    ) -> dict[str, tuple[Demand, ...]]:
        free_space = state.view.indexes.free_space
        with_demand = state.demand.by_node
        hopeless: dict[str, tuple[Demand, ...]] = dict.fromkeys(names, ())
        changed: list[str] = []
        for name in names:
            before = self._node_report(name)
            demands = with_demand.get(name) or ()
            if before.is_current(demands, free_space.get(name)):
                hopeless[name] = before.hopeless
            elif demands:
                changed.append(name)
        # Each few nodes have a budget of their own.
        for first in range(0, len(changed), _NODES_PER_BUDGET):
            batch = changed[first : first + _NODES_PER_BUDGET]
            query = ContentionQuery(state, state.demand, ledger, NO_REQUESTER, Budget())
            competitors = contention.competitors(query, batch)
            for name in batch:
                # A node where no demand fits, or that Longhorn does not list, has no competitors.
                on_node = competitors.get(name)
                fitting = {identity(volume) for volume in on_node.demanded} if on_node is not None else set[str]()
                hopeless[name] = tuple(demand for demand in with_demand[name] if identity(demand.volume) not in fitting)
        return hopeless


def _report_node(
    situation: _Situation,
    before: _NodeReport,
    demands: tuple[Demand, ...],
    free_space: object,
    hopeless: tuple[Demand, ...],
) -> tuple[_NodeReport, list[Misplaced]]:
    now = situation.now
    required = demands
    if not situation.require_best_effort:
        required = tuple(
            demand
            for demand in demands
            if is_local(demand.volume.volume, require_best_effort=False) or not _elsewhere(demand)
        )
    bound = [demand for demand in required if demand.source is DemandSource.POD]
    bound_since = {_pod_and_claim(demand): before.bound_since.get(_pod_and_claim(demand), now) for demand in bound}
    misplaced: list[Misplaced] = []
    new_misplacements: list[Misplaced] = []
    misplaced_since: dict[str, float] = {}
    for demand in required:
        volume = demand.volume.name
        since = _misplaced_since(demand, before, now)
        staying = [each for each in demand.volume.replicas if not each.deleting and not each.failed_at]
        all_placed = all(replica.node_id for replica in staying)
        settled = since is not None and (all_placed or since + SETTLE_TIME <= now)
        reported = situation.reported.get(volume) if demand.volume.bound else None
        if reported is not None or settled:
            pod = demand.pod or (reported.pod if reported else "")
            entry = Misplaced(pod, volume, demand.node, _elsewhere(demand))
            misplaced.append(entry)
            if settled and (reported is None or (reported.pod and reported.pod != entry.pod)):
                new_misplacements.append(entry)
        elif since is not None:
            misplaced_since[volume] = since
    ends = [since + STUCK_AFTER for since in bound_since.values()]
    ends += [since + SETTLE_TIME for since in misplaced_since.values()]
    report = _NodeReport(
        demands=demands,
        free_space=free_space,
        hopeless=hopeless,
        misplaced=tuple(misplaced),
        stuck=_stuck_pods(required, bound_since, now),
        bound_since=bound_since,
        misplaced_since=misplaced_since,
        due=min((end for end in ends if end > now), default=math.inf),
    )
    return report, new_misplacements


def _stuck_pods(demands: tuple[Demand, ...], since: Mapping[tuple[str, str], float], now: float) -> tuple[Stuck, ...]:
    late: dict[str, list[Demand]] = {}
    for demand in demands:
        if since.get(_pod_and_claim(demand), now) + STUCK_AFTER <= now:
            late.setdefault(demand.pod, []).append(demand)
    return tuple(
        Stuck(
            pod=pod,
            node=late[pod][0].node,
            volumes=tuple(demand.volume.name for demand in late[pod]),
            since=min(since[_pod_and_claim(demand)] for demand in late[pod]),
        )
        for pod in sorted(late)
    )


def _pod_and_claim(demand: Demand) -> tuple[str, str]:
    return demand.pod, demand.volume.claim


def _misplaced_since(demand: Demand, before: _NodeReport, now: float) -> float | None:
    """Returns when a new volume was first seen elsewhere, None if it is not on other nodes or was not new."""
    if not _elsewhere(demand):
        return None
    new = not any(replica.healthy_at for replica in demand.volume.replicas)
    return before.misplaced_since.get(demand.volume.name, now if new else None)


def _elsewhere(demand: Demand) -> tuple[str, ...]:
    """Returns the nodes of a volume's replicas, empty if one of these is the node where the volume is demanded."""
    nodes = {replica.node_id for replica in demand.volume.replicas if not replica.deleting and not replica.failed_at}
    return () if demand.node in nodes else tuple(sorted(nodes - {""}))
