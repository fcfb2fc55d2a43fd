"""Everything of one state that the status page and `top` show: one row per waiting pod with each node's reason, those that
fit first, then those that come closest, and the bound pods without their volumes.
"""

from collections import Counter
from collections.abc import Mapping

from scheduler_core import errors
from scheduler_core.cluster.view import View
from scheduler_core.decide import explain
from scheduler_core.decide.decision import Contenders, Decision, FilterOptions
from scheduler_core.decide.filter import filter_nodes
from scheduler_core.evaluation.cluster_state import ClusterState
from scheduler_core.evaluation.contention import Contention
from scheduler_core.model import kube, quantity
from scheduler_core.model.verdict import Reason
from scheduler_core.monitor import capacity_report, demand_monitor
from scheduler_core.monitor.node_rows import NodeCondition, NodeRow, SpaceTotal, node_rows
from scheduler_core.offers.ledger import Ledger
from scheduler_core.structs import Struct, field
from scheduler_core.volumes.resolve import NO_DRIVER, lacks_driver

# A node that they refuse lacks nothing but space.
LACKING_SPACE = frozenset({Reason.INSUFFICIENT_STORAGE, Reason.NOT_TOGETHER, Reason.SPOKEN_FOR})
# Reasons are listed roughly in the order in which rules are checked; the rules before a reason's were passed.
_ORDER = {reason: position for position, reason in enumerate(Reason)}


def sort_candidates(view: View, decision: Decision) -> list[str]:
    """Returns the candidates of a decision, the closest first. Those that fit come first, then those that another
    packing mode would offer, then those that lack space alone, the one with the most free bytes on one disk first; then
    the others by the rule that refuses them, and by name.
    """

    def closeness(candidate: tuple[str, Reason]) -> tuple[object, ...]:
        name, reason = candidate
        if reason.fits:
            group, rank = 0, 0
        elif reason is Reason.NEVER_SAFE:
            group, rank = 1, 0
        elif reason in LACKING_SPACE:
            spaces = view.free_space(name).values() if name in view.cluster.nodes else ()
            group, rank = 2, -max((space.free for space in spaces), default=0)
        else:
            group, rank = 3, -_ORDER[reason]
        return group, rank, quantity.natural_key(name), name

    return [name for name, _ in sorted(zip(decision.candidates, decision.reasons, strict=True), key=closeness)]


# Explaining a node takes longer than deciding about it, so only these are compared byte by byte.
_COMPARED_NODES = 5


class NearestNode(Struct, frozen=True):
    """The node that comes closest to taking a pod."""

    node: str
    reason: Reason
    missing: int  # the least bytes that one disk would have to have more; 0 if space is not all that it lacks
    detail: str  # the numbers, as a sentence


class WaitingRow(Struct, frozen=True):
    """A pod without a node."""

    pod: kube.Pod
    size: int = 0  # bytes of its Longhorn volumes in sum
    nodes: int = 0  # how many nodes there are
    fitting: int = 0  # how many of them fit now
    reasons: Mapping[str, int] = {}  # why the others do not, with the number of nodes, most frequent first
    closest: NearestNode | None = None  # None if some node fits, or if there are no nodes
    error: str = ""  # why nothing can be decided about the pod; "" if it can


def pods_on_node(view: View, node: str) -> list[kube.Pod]:
    pods = (pod for pod in view.snapshot.pods.values() if pod.node_name == node and pod.live and pod.volumes)
    return sorted(pods, key=lambda pod: quantity.natural_key(pod.key))


def waiting_pods(view: View) -> tuple[kube.Pod, ...]:
    """Returns the live, unscheduled pods with claims, the oldest first."""
    pods = pods_on_node(view, "")
    return tuple(sorted(pods, key=lambda pod: pod.created or "~"))


def candidate_nodes(view: View) -> list[str]:
    """Returns the names of the nodes that pods may run on, sorted; a snapshot without Kubernetes nodes has Longhorn's."""
    return sorted(view.snapshot.nodes or view.snapshot.longhorn_nodes)


def waiting_row(
    pod: kube.Pod, state: ClusterState, options: FilterOptions, contenders: Contenders, refused: Mapping[str, str]
) -> WaitingRow:
    """Returns a pod's row by the decision of `/filter`; `refused`: kube-scheduler's own reasons, by node."""
    nodes = candidate_nodes(state.view)
    names = [name for name in nodes if name not in refused]
    try:
        decision = filter_nodes(pod, names, state, options, contenders)
        closest = None if decision.fits else _closest_node(pod, decision, state, options)
    except errors.ResolutionError as error:
        return WaitingRow(pod, nodes=len(nodes), error=str(error))
    snapshot = state.view.snapshot
    fitting = [
        name for name in decision.fitting_nodes if not decision.resolution.volumes or not lacks_driver(snapshot, name)
    ]
    reasons = Counter(reason.text for reason in decision.reasons if not reason.fits)
    reasons.update([NO_DRIVER] * (len(decision.fitting_nodes) - len(fitting)))
    reasons.update(refused[name] for name in nodes if name in refused)
    return WaitingRow(
        pod,
        size=sum(volume.volume.size for volume in decision.resolution.volumes),
        nodes=len(nodes),
        fitting=len(fitting),
        reasons=dict(sorted(reasons.items(), key=lambda entry: (-entry[1], entry[0]))),
        closest=closest,
    )


def _closest_node(pod: kube.Pod, decision: Decision, state: ClusterState, options: FilterOptions) -> NearestNode | None:
    """Returns the node that lacks the fewest bytes or, where all lack something else, the one that passed most rules."""
    reasons = dict(zip(decision.candidates, decision.reasons, strict=True))
    order = sort_candidates(state.view, decision)
    # Only the nodes with most free bytes on one disk are compared byte by byte.
    lacking = [name for name in order[:_COMPARED_NODES] if reasons[name] in LACKING_SPACE]
    if not order:
        return None
    lacks_nothing = reasons[order[0]] is Reason.NEVER_SAFE
    names = order[:1] if lacks_nothing or not lacking else lacking
    explanation = explain.explain_part(pod, decision, names, state, options)
    verdicts = zip(names, explanation.verdicts, strict=True)
    # Those whose missing bytes are known come before others.
    name, verdict = min(
        verdicts, key=lambda each: (each[1].missing == 0, each[1].missing, -_ORDER[each[1].reason], each[0])
    )
    return NearestNode(name, verdict.reason, verdict.missing, verdict.detail)


def placement_problems(state: ClusterState, *, require_best_effort: bool = True) -> demand_monitor.PlacementReport:
    """Reports a state as if it had lasted for `STUCK_AFTER` seconds."""
    contention = Contention()
    report = demand_monitor.PlacementReport()
    # The objects do not say since when a volume is missing, so a pod that was bound a moment ago is reported as stuck,
    # too, until Longhorn has placed its volumes.
    for now in (0.0, demand_monitor.STUCK_AFTER):
        report = report.update(state, contention, Ledger(), now, require_best_effort=require_best_effort)
    return report


class StatusReport(Struct, frozen=True):
    """A cluster at one time."""

    rows: tuple[NodeRow, ...] = ()  # the nodes, worst first
    space: SpaceTotal = field(default_factory=SpaceTotal)  # of all disks
    largest_volumes: Mapping[str, int] = {}  # by Longhorn's StorageClasses, as in `CapacityReport`
    waiting: tuple[kube.Pod, ...] = ()  # pods with claims and without a node, the oldest first

    @property
    def disks(self) -> int:
        return sum(len(row.disks) for row in self.rows)

    @property
    def largest_volume(self) -> int | None:
        """Bytes of the largest volume that some StorageClass can get now, None without StorageClasses of Longhorn."""
        return max(self.largest_volumes.values(), default=None)

    def count(self, condition: NodeCondition) -> int:
        return sum(row.condition is condition for row in self.rows)


def status_report(state: ClusterState) -> StatusReport:
    """Reports a state. The cost grows with disks, and with nodes times different StorageClasses."""
    rows = node_rows(state)
    space = sum((row.space for row in rows), SpaceTotal())
    return StatusReport(rows, space, capacity_report.largest_volumes(state.view), waiting_pods(state.view))
