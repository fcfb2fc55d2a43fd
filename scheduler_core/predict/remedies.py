"""`find_remedies`: the cheapest changes of the cluster that make a pod fit, each of one step.

Data flow: the decision about the pod → for each node the steps that may lift its refusal → each is decided on the changed cluster
(`Trials`) → remedies by cost. Steps that change settings come first, then space, of which the least bytes are found by bisection,
then moves of one replica.

Which steps may lift a refusal follows from its reason: Longhorn checks nodes before disks. Where the replicas of the pod's volumes may
be on other nodes than the pod, a step on any node may help, and all are tried.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from msgspec import Struct

from scheduler_core.caches import nodes_changed_since
from scheduler_core.decide.decision import Decision, FilterOptions, Packing
from scheduler_core.decide.filter_stages import refusal_on_every_node, unready_volume
from scheduler_core.evaluation.replicas import DomainShortage, domain_shortage, replica_needs
from scheduler_core.model import longhorn
from scheduler_core.model.kube import Pod
from scheduler_core.model.verdict import UNSAFE, Reason
from scheduler_core.packing.budget import give_way
from scheduler_core.predict.pod_decision import PodDecider, PodDecision
from scheduler_core.predict.possible_steps import (
    DiskNeeds,
    SpaceQuestion,
    allow_disk_steps,
    allow_node_steps,
    needs_of_one_volume,
    needs_of_volumes,
    space_questions,
    spread_steps,
    tag_disk_steps,
    tag_node_steps,
    uncordon_steps,
)
from scheduler_core.predict.predicted_cluster import ChangesByObject, PredictedCluster
from scheduler_core.predict.predicted_replicas import choose_first
from scheduler_core.predict.remedy import Step, move_step, step_changes
from scheduler_core.predict.replica_moves import DiskPlace, ReplicaMove, apply_move, replica_moves
from scheduler_core.values import replace
from scheduler_core.volumes.existing_replicas import nodes_with_replica
from scheduler_core.volumes.resolve import Resolution

MAX_DECISIONS: Final = 600
"""How many changed clusters are decided; a search that needs more may miss cheaper remedies.

A decision about the few nodes that steps change counts as a seventh.
"""
_NODE_ALLOWED: Final = frozenset({Reason.NODE_EVICTING, Reason.NODE_SCHEDULING_DISABLED})
_CLOSED: Final = frozenset(
    {Reason.NO_DISK, Reason.DISK_PRESSURE, Reason.DISK_TYPE, Reason.DISK_TAGS, Reason.VOLUME_TOO_LARGE}
)
_DISKS: Final = (
    UNSAFE
    | _CLOSED
    | {
        Reason.ANTI_AFFINITY,
        Reason.LOW_AVAILABLE,
        Reason.INSUFFICIENT_STORAGE,
        Reason.NEVER_SAFE,
        Reason.NOT_TOGETHER,
        Reason.SPOKEN_FOR,
        Reason.WAITING,
        Reason.UNDECIDED,
    }
)
_MANY_NODES: Final = 16
# A decision about few nodes takes at most a fifth of one about 1,000 nodes. There are more of them before a remedy is found.
_SHARE_OF_FEW_NODES: Final = 1 / 7
# With the others a disk that is opened may make its node unsafe.
_MONOTONE_PACKINGS: Final = frozenset({Packing.AUTO, Packing.EXACT})


class Trials:
    """The decisions about a pod after steps, limited in number. Each trial takes back the steps of the one before it
    and makes its own in one update, so that the caches of the production decision see a few changed nodes each time.
    Where the nodes are decided about one by one, only the changed nodes are.
    """

    def __init__(self, pod: Pod, cluster: PredictedCluster, options: FilterOptions, decisions: int) -> None:
        self.cluster = cluster
        self.decisions_left: float = decisions
        self._pod = pod
        self._options = options
        self._decider = PodDecider(options)
        self._latest = cluster
        self._changed: ChangesByObject = {}
        self._one_by_one = False
        self._monotone = False
        self._helpful: dict[frozenset[object], bool] = {}

    @property
    def exhausted(self) -> bool:
        return self.decisions_left <= 0

    def fits(self, steps: Sequence[Step]) -> bool:
        """Returns whether the pod fits after the steps, False once the trials are exhausted."""
        return bool(self.decide(steps).node)

    def decide(self, steps: Sequence[Step]) -> PodDecision:
        """Returns the decision about the pod after the steps, empty once the trials are exhausted."""
        if self.exhausted:
            return PodDecision()
        before = self._latest
        objects, nodes = step_changes(self.cluster, steps)
        self._latest = before.update({**self._reverse_changes(), **objects})
        self._changed = objects
        scheduling = self.cluster.scheduling
        for node in nodes:
            scheduling = scheduling.with_node(node)
        names = self._nodes_to_decide(before, steps)
        decision = self._decide(self._latest.with_scheduling(scheduling), names)
        if not steps:
            self._one_by_one = self._decides_one_by_one(decision)
            self._monotone = not self._one_by_one and self._is_monotone(decision.decision)
        return decision

    @property
    def monotone(self) -> bool:
        """Whether a step never hurts: wherever the pod fits, it fits after more steps and more bytes."""
        # This holds for new volumes, of which some may go to other nodes than the pod, while no volume of another pod
        # waits for its place.
        return self._monotone

    def may_help(self, steps: Sequence[Step]) -> bool:
        """Returns whether some of the steps may help; False is proven, by one decision after all of them."""
        if not self._monotone or self.exhausted:
            return True
        key = frozenset((step.kind, step.node, step.disk, step.size, step.tags) for step in steps)
        if key not in self._helpful:
            self._helpful[key] = self.fits(steps)
        return self._helpful[key]

    def _decides_one_by_one(self, decision: PodDecision) -> bool:
        """Whether a step on one node changes the decision about no other node."""
        cluster = self.cluster
        # Of kube-scheduler's filters only topology spread reads other nodes' taints. Without Kubernetes nodes, cordoned ones are no candidates.
        if self._pod.scheduling.constraints.spread or not cluster.scheduling.node_names:
            return False
        if decision.decision is None:
            # Each node was refused by kube-scheduler alone, and all others will be.
            return all(decision.reasons.values())
        return _reads_one_node(decision.decision, cluster)

    def _is_monotone(self, decision: Decision | None) -> bool:
        if decision is None or decision.resolutions or any(entry.replicas for entry in decision.resolution.volumes):
            return False
        demand = self.cluster.state.demand
        constraints = self._pod.scheduling.constraints
        return (
            not demand.by_node
            and not demand.unplaced.replicas
            and not constraints.spread
            and self._options.packing in _MONOTONE_PACKINGS
        )

    def decide_move(self, move: ReplicaMove, target: DiskPlace) -> PodDecision:
        """Returns the decision after a move to one of its targets, empty once the trials are exhausted."""
        if self.exhausted:
            return PodDecision()
        before = self._latest.update(self._reverse_changes())
        self._latest = apply_move(before, move, target)
        replicas = {*before.state.view.replicas_of(move.volume), *self._latest.state.view.replicas_of(move.volume)}
        self._changed = {("replicas", replica.name): None for replica in replicas}
        self._changed |= {("longhorn_nodes", name): None for name in (move.origin.node, target.node)}
        return self._decide(self._latest)

    def _decide(self, cluster: PredictedCluster, names: Sequence[str] | None = None) -> PodDecision:
        give_way()
        self.decisions_left -= 1 if names is None else _SHARE_OF_FEW_NODES
        return self._decider.decide(self._pod, cluster, choose_first, names)

    def _nodes_to_decide(self, before: PredictedCluster, steps: Sequence[Step]) -> list[str] | None:
        """Returns the nodes, None for all, that may be decided otherwise than without any step."""
        # These are the nodes of the steps, and those where a step of the trial before is taken back.
        first, latest = before.state, self._latest.state
        changed = nodes_changed_since(
            (first.profiles.changelog, first.demand.changelog), (latest.profiles.changelog, latest.demand.changelog)
        )
        if not self._one_by_one or changed is None or len(changed) > _MANY_NODES:
            return None
        names = changed.union(step.node for step in steps)
        # Another pod's volume that begins to fit on its node, or ceases to, counts on other nodes.
        if any(state.demand.by_node.get(name) for state in (first, latest) for name in names):
            return None
        return [name for name in sorted(names) if name in self.cluster.scheduling.nodes]

    def _reverse_changes(self) -> ChangesByObject:
        return {key: getattr(self.cluster.snapshot, key[0]).get(key[1]) for key in self._changed}


def _reads_one_node(decision: Decision, cluster: PredictedCluster) -> bool:
    """Whether the decision about each node reads no other node, for a pod that fits nowhere."""
    # Its new volumes all go to the pod's node, and nothing refuses the pod whatever the node.
    view = cluster.state.view
    resolution = decision.resolution
    new = not resolution.unplaced and not any(entry.replicas for entry in resolution.volumes)
    return (
        new
        and not decision.resolutions
        and not view.indexes.available_volumes
        and not replica_needs(resolution, view)
        and unready_volume(view, resolution) is None
        and refusal_on_every_node(view, resolution) is None
    )


class RemedySearch(Struct, frozen=True):
    """The result of a search for remedies."""

    remedies: tuple[Step, ...] = ()  # the cheapest first
    complete: bool = True  # whether it ended by itself; otherwise there may be cheaper remedies


def find_remedies(
    pod: Pod,
    cluster: PredictedCluster,
    options: FilterOptions,
    limit: int,
    max_decisions: int = MAX_DECISIONS,
) -> RemedySearch:
    """Returns remedies for a pod that fits nowhere, each of one step, the cheapest first.

    There are at most `limit`. Each was checked: after its step the production decision about the pod names a node, and
    of a size one byte less does not suffice. A pod that fits needs none. `max_decisions` limits the search: fewer find
    remedies that work, but maybe not the cheapest.
    """
    trials = Trials(pod, cluster, options, max_decisions)
    decision = trials.decide(())
    if decision.node or limit <= 0:
        return RemedySearch()
    remedies = _Search(trials, decision, limit).remedies()
    return RemedySearch(tuple(remedies), not trials.exhausted)


class _Search(Struct, frozen=True):
    trials: Trials
    decision: PodDecision  # about the pod on the cluster as it is
    limit: int

    def remedies(self) -> list[Step]:
        remedies = self._setting_remedies()
        for find in (self._space_remedies, self._move_remedies):
            if len(remedies) < self.limit:
                remedies += find(self.limit - len(remedies))
        return remedies

    def _setting_remedies(self) -> list[Step]:
        shortage = _shortage(self.trials.cluster, self.decision)
        spread = spread_steps(shortage) if shortage is not None else []
        steps = dict.fromkeys((*spread, *_setting_steps(self.trials.cluster, self.decision)))
        steps_of_node: dict[str, list[Step]] = {}
        for step in steps:
            steps_of_node.setdefault(step.node, []).append(step)
        remedies: list[Step] = []
        if not self.trials.may_help([step for of_node in steps_of_node.values() for step in of_node]):
            return remedies
        for step in sorted(steps, key=lambda step: step.order):
            if len(remedies) == self.limit:
                break
            # One decision about all steps of a node may save several about each.
            if self.trials.may_help(steps_of_node[step.node]) and self.trials.fits((step,)):
                remedies.append(step)
        return remedies

    def _space_remedies(self, limit: int) -> list[Step]:
        questions = sorted(_space_questions(self.trials, self.decision), key=lambda question: question.order)
        most_space: dict[str, list[Step]] = {}
        for question in questions:
            give_way()
            most_space.setdefault(question.node, []).append(question.step(question.most))
        remedies: list[Step] = []
        if not self.trials.may_help([step for steps in most_space.values() for step in steps]):
            return remedies
        for question in questions:
            most = remedies[-1].size if len(remedies) == limit else question.most
            if self.trials.exhausted or (len(remedies) == limit and question.least >= most):
                break
            if not self.trials.may_help(most_space[question.node]):
                continue
            size = self._least_size(replace(question, most=min(most, question.most)))
            if size:
                insort(remedies, question.step(size), key=lambda step: step.order)
                del remedies[limit:]
        return remedies

    def _move_remedies(self, limit: int) -> list[Step]:
        """Returns the moves of one replica that make the pod fit wherever Longhorn puts the replica."""
        cluster = self.trials.cluster
        remedies: list[Step] = []
        replicas = _replicas_in_the_way(self.trials, self.decision)
        names = {replica.volume for replica in replicas} & {*cluster.snapshot.volumes}
        volumes = [cluster.snapshot.volumes[name] for name in names]
        movable = {replica.name for replica in replicas}
        for volume in sorted(volumes, key=lambda volume: (volume.actual_size, volume.name)):
            self.trials.decisions_left -= 1
            for move in replica_moves(cluster, (volume.name,)):
                if len(remedies) == limit or self.trials.exhausted:
                    return remedies
                if move.replica in movable and self._fits_after(move):
                    remedies.append(move_step(move))
        return remedies

    def _fits_after(self, move: ReplicaMove) -> bool:
        return all(self.trials.decide_move(move, target).node for target in move.targets)

    def _least_size(self, question: SpaceQuestion) -> int:
        """Returns the least bytes with which the pod fits, else 0; with one byte less it was decided not to fit."""

        def fits(size: int) -> bool:
            return self.trials.fits((question.step(size),))

        low = 0
        high = 0
        for high in (*(guess for guess in question.guesses if guess < question.most), question.most):
            if fits(high):
                break
            low = high
        if low == high:
            return 0
        # Most guesses are the least size.
        if high - low > 1 and not fits(high - 1):
            low = high - 1
        while high - low > 1:
            middle = (low + high) // 2
            if fits(middle):
                high = middle
            else:
                low = middle
        return 0 if self.trials.exhausted else high


def _shortage(cluster: PredictedCluster, of_pod: PodDecision) -> DomainShortage | None:
    decision = of_pod.decision
    if decision is None or Reason.TOO_FEW_NODES not in decision.reasons:
        return None
    return domain_shortage(cluster.state, replica_needs(decision.resolution, cluster.state.view))


def _setting_steps(cluster: PredictedCluster, decision: PodDecision) -> list[Step]:
    names = sorted({*cluster.snapshot.nodes, *cluster.snapshot.longhorn_nodes})
    steps = [step for name in names for step in uncordon_steps(cluster, name)]
    for candidate in _candidates(cluster, decision):
        reason = candidate.reason
        if reason is None or reason in _NODE_ALLOWED:
            steps += allow_node_steps(candidate.node)
        # Of volumes of several classes, one may lack a disk, and another one the node's tag.
        if reason is None or reason is Reason.NODE_TAGS or reason in _DISKS:
            steps += tag_node_steps(cluster, candidate.resolution, candidate.node)
        if reason is None or reason in _DISKS:
            steps += allow_disk_steps(candidate.node)
            steps += tag_disk_steps(cluster, candidate.resolution, candidate.node)
    return steps


class _Candidate(Struct, frozen=True):
    node: longhorn.Node
    reason: Reason | None  # None if steps of every kind may help
    resolution: Resolution  # the pod's volumes there


def _candidates(cluster: PredictedCluster, of_pod: PodDecision) -> Iterator[_Candidate]:
    decision = of_pod.decision
    if decision is None:
        return
    longhorn_nodes = cluster.snapshot.longhorn_nodes
    if replica_needs(decision.resolution, cluster.state.view):
        for name in sorted(longhorn_nodes):
            give_way()
            yield _Candidate(longhorn_nodes[name], None, decision.resolution_on(name))
        return
    for name, reason in zip(decision.candidates, decision.reasons, strict=True):
        give_way()
        node = longhorn_nodes.get(name)
        if node is not None:
            yield _Candidate(node, reason, decision.resolution_on(name))
    if Reason.SPOKEN_FOR not in decision.reasons:
        return
    # A volume that does not fit on its pod's node counts on others until there is room for it, also on a node that kube-scheduler refuses.
    for name in sorted(set(longhorn_nodes).difference(decision.candidates)):
        if cluster.state.demand.by_node.get(name):
            yield _Candidate(longhorn_nodes[name], None, decision.resolution)


def _space_questions(trials: Trials, decision: PodDecision) -> list[SpaceQuestion]:
    cluster = trials.cluster
    questions: list[SpaceQuestion] = []
    for candidate in _candidates(cluster, decision):
        if candidate.reason is None or candidate.reason in _DISKS:
            of_node = space_questions(cluster, candidate.node, _needs(trials, candidate))
            # Where every disk is closed to some volume, space helps only if it opens a disk.
            closed = candidate.reason in _CLOSED
            questions += (question for question in of_node if not (closed and question.disk.schedulable))
    return questions


def _replicas_in_the_way(trials: Trials, decision: PodDecision) -> list[longhorn.Replica]:
    """Returns the replicas whose disk may lack no more than their size."""
    cluster = trials.cluster
    replicas: list[longhorn.Replica] = []
    by_disk = cluster.state.view.indexes.replicas_by_disk
    for candidate in _candidates(cluster, decision):
        if candidate.reason is not None and candidate.reason not in _DISKS:
            continue
        needs = _needs(trials, candidate)
        for disk in candidate.node.disks:
            replicas += (each for each in by_disk.get(disk.uuid) or () if each.size >= needs[disk.name].least)
    return replicas


def _needs(trials: Trials, candidate: _Candidate) -> Mapping[str, DiskNeeds]:
    name = candidate.node.name
    view = trials.cluster.state.view
    spaces = view.free_space(name)
    if candidate.reason is None:
        volumes = [entry.volume for entry in candidate.resolution.volumes]
        return needs_of_one_volume(volumes, spaces, proven=trials.monotone)
    unplaced = [entry for entry in candidate.resolution.local if name not in nodes_with_replica(entry, view.cluster)]
    return needs_of_volumes([entry.volume for entry in unplaced], spaces)
