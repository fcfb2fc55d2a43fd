"""`find_remedies`: the cheapest changes of the cluster that make a pod fit.

Data flow: the decision about the pod → for each node the steps that may lift its refusal → each is decided on the changed cluster →
remedies by cost. Steps that change settings come first, then space, of which the least bytes are found by bisection. Only if no
single step helps, two steps on one node are tried: the first lifts the node's refusal, the second the one that it then has.

Which steps may lift a refusal follows from its reason: Longhorn checks nodes before disks. Where the replicas of the pod's volumes may
be on other nodes than the pod, a step on any node may help, and all are tried.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from scheduler_core.evaluation.replicas import DomainShortage, domain_shortage, replica_needs
from scheduler_core.extender.decision import FilterOptions
from scheduler_core.giving_way import give_way
from scheduler_core.model import longhorn
from scheduler_core.model.kube import Pod
from scheduler_core.model.verdict import UNSAFE, Reason
from scheduler_core.predict.disk_space_steps import (
    DiskNeeds,
    SpaceQuestion,
    needs_of_one_volume,
    needs_of_volumes,
    space_questions,
)
from scheduler_core.predict.pod_decision import PodDecision
from scheduler_core.predict.predicted_cluster import PredictedCluster
from scheduler_core.predict.remedy import Remedy, Step, move_step
from scheduler_core.predict.replica_moves import ReplicaMove, replica_moves
from scheduler_core.predict.setting_steps import (
    allow_disk_steps,
    allow_node_steps,
    spread_steps,
    tag_disk_steps,
    tag_node_steps,
    uncordon_steps,
)
from scheduler_core.predict.trials import Trials
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


@dataclass(frozen=True, slots=True)
class RemedySearch:
    """The result of a search for remedies."""

    remedies: tuple[Remedy, ...] = ()  # the cheapest first
    complete: bool = True  # whether it ended by itself; otherwise there may be cheaper remedies


def find_remedies(
    pod: Pod,
    cluster: PredictedCluster,
    options: FilterOptions,
    limit: int,
    max_decisions: int = MAX_DECISIONS,
) -> RemedySearch:
    """Returns remedies for a pod that fits nowhere, the cheapest first.

    There are at most `limit`. Each was checked: after its steps the production decision about the pod names a node, and
    of a size one byte less does not suffice. A pod that fits needs none. `max_decisions` limits the search: fewer find
    remedies that work, but maybe not the cheapest.
    """
    trials = Trials(pod, cluster, options, max_decisions)
    decision = trials.decide(())
    if decision.node or limit <= 0:
        return RemedySearch()
    search = _Search(trials, limit)
    remedies = search.remedies([_Start((), decision, None)])
    if not remedies:
        remedies = _Search(trials, limit).remedies(search.refused)
    return RemedySearch(tuple(remedies), not trials.exhausted)


@dataclass(frozen=True, slots=True)
class _Start:
    """Where the search for one more step starts."""

    steps: tuple[Step, ...]  # those that were made already
    decision: PodDecision  # the decision about the pod after them
    node: str | None  # the node on which one more step is sought; None for any

    def changes_field_of(self, step: Step) -> bool:
        """Whether a step made already changes the same field."""
        return any((step.kind, step.node, step.disk) == (each.kind, each.node, each.disk) for each in self.steps)


@dataclass(frozen=True, slots=True)
class _Search:
    """The search for the cheapest remedies, at most `limit` of them."""

    trials: Trials
    limit: int
    # Changed settings with which the pod does not fit; one more step starts from each.
    refused: list[_Start] = field(default_factory=list["_Start"])

    def remedies(self, starts: Sequence[_Start]) -> list[Remedy]:
        """Returns the remedies with one step more than the starts, the cheapest first."""
        remedies = self._setting_remedies(starts)
        if len(remedies) == self.limit:
            return remedies
        remedies += self._space_remedies(starts, self.limit - len(remedies))
        for start in starts:
            if not start.steps and len(remedies) < self.limit:
                remedies += self._move_remedies(start, self.limit - len(remedies))
        return remedies

    def _setting_remedies(self, starts: Sequence[_Start]) -> list[Remedy]:
        candidates: dict[object, Remedy] = {}
        steps_of_node: dict[str, dict[Step, None]] = {}
        for start in starts:
            shortage = _shortage(self.trials.cluster, start)
            spread = spread_steps(shortage) if shortage is not None else ()
            for step in (*spread, *_setting_steps(self.trials.cluster, start)):
                if not start.changes_field_of(step):
                    remedy = Remedy((*start.steps, step))
                    # Two steps may be made in either order.
                    identity = frozenset((each.kind, each.node, each.disk, each.tags) for each in remedy.steps)
                    candidates.setdefault(identity, remedy)
                    steps_of_node.setdefault(step.node, {}).update(dict.fromkeys(remedy.steps))
        every_step = [step for steps in steps_of_node.values() for step in steps]
        may_help = self.trials.may_help(every_step)
        remedies: list[Remedy] = []
        for remedy in sorted(candidates.values(), key=lambda remedy: remedy.order):
            if len(remedies) == self.limit:
                break
            node = remedy.steps[-1].node
            # One decision about all steps of a node may save several about each.
            if not may_help or not self.trials.may_help([*steps_of_node[node]]):
                self.refused.append(_Start(remedy.steps, starts[0].decision, node))
                continue
            decision = self.trials.decide(remedy.steps)
            if decision.node:
                remedies.append(remedy)
            else:
                self.refused.append(_Start(remedy.steps, decision, node))
        return remedies

    def _space_remedies(self, starts: Sequence[_Start], limit: int) -> list[Remedy]:
        questions: list[tuple[SpaceQuestion, _Start]] = []
        for start in starts:
            of_start = _space_questions(self.trials, start)
            questions += [(question, start) for question in of_start]
        questions.sort(key=lambda entry: entry[0].order)
        most_space: dict[tuple[tuple[Step, ...], str], list[Step]] = {}
        for question, start in questions:
            give_way()
            of_node = most_space.setdefault((start.steps, question.node), [*start.steps])
            of_node.append(question.step(question.most))
        remedies: list[Remedy] = []
        if not self.trials.may_help([step for steps in most_space.values() for step in steps]):
            return remedies
        for question, start in questions:
            most = remedies[-1].cost.size if len(remedies) == limit else question.most
            if self.trials.exhausted or (len(remedies) == limit and question.least >= most):
                break
            if not self.trials.may_help(most_space[start.steps, question.node]):
                continue
            size = self._least_size(start, replace(question, most=min(most, question.most)))
            if size:
                insort(remedies, Remedy((*start.steps, question.step(size))), key=lambda remedy: remedy.order)
                del remedies[limit:]
        return remedies

    def _move_remedies(self, start: _Start, limit: int) -> list[Remedy]:
        """Returns the moves of one replica that make the pod fit wherever Longhorn puts the replica."""
        cluster = self.trials.cluster
        remedies: list[Remedy] = []
        replicas = _replicas_in_the_way(self.trials, start)
        volumes = {
            cluster.snapshot.volumes[name]
            for name in {each.volume for each in replicas}
            if name in cluster.snapshot.volumes
        }
        movable = {replica.name for replica in replicas}
        for volume in sorted(volumes, key=lambda volume: (volume.actual_size, volume.name)):
            self.trials.decisions_left -= 1
            for move in replica_moves(cluster, (volume.name,)):
                if len(remedies) == limit or self.trials.exhausted:
                    return remedies
                if move.replica in movable and self._fits_after(move):
                    remedies += [Remedy((move_step(move),))]
        return remedies

    def _fits_after(self, move: ReplicaMove) -> bool:
        for target in move.targets:
            decision = self.trials.decide_move(move, target)
            if not decision.node:
                return False
        return True

    def _least_size(self, start: _Start, question: SpaceQuestion) -> int:
        """Returns the least bytes with which the pod fits, else 0; with one byte less it was decided not to fit."""
        low = 0
        high = 0
        for high in (*(guess for guess in question.guesses if guess < question.most), question.most):
            if self._fits(start, question, high):
                break
            low = high
        if low == high:
            return 0
        # Most guesses are the least size.
        if high - low > 1 and not self._fits(start, question, high - 1):
            low = high - 1
        while high - low > 1:
            middle = (low + high) // 2
            if self._fits(start, question, middle):
                high = middle
            else:
                low = middle
        return 0 if self.trials.exhausted else high

    def _fits(self, start: _Start, question: SpaceQuestion, size: int) -> bool:
        return self.trials.fits((*start.steps, question.step(size)))


def _shortage(cluster: PredictedCluster, start: _Start) -> DomainShortage | None:
    decision = start.decision.decision
    if decision is None or start.node is not None or Reason.TOO_FEW_NODES not in decision.reasons:
        return None
    return domain_shortage(cluster.state, replica_needs(decision.resolution, cluster.state.view))


def _setting_steps(cluster: PredictedCluster, start: _Start) -> list[Step]:
    names = sorted({*cluster.snapshot.nodes, *cluster.snapshot.longhorn_nodes}) if start.node is None else (start.node,)
    steps = [step for name in names for step in uncordon_steps(cluster, name)]
    for candidate in _candidates(cluster, start):
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


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A node whose refusal a step may lift."""

    node: longhorn.Node
    reason: Reason | None  # None if steps of every kind may help
    resolution: Resolution  # the pod's volumes there


def _candidates(cluster: PredictedCluster, start: _Start) -> Iterator[_Candidate]:
    decision = start.decision.decision
    if decision is None:
        return
    longhorn_nodes = cluster.snapshot.longhorn_nodes
    if replica_needs(decision.resolution, cluster.state.view):
        for name in sorted(longhorn_nodes) if start.node is None else (start.node,):
            give_way()
            node = longhorn_nodes.get(name)
            if node is not None:
                yield _Candidate(node, None, decision.resolution_on(name))
        return
    for name, reason in zip(decision.candidates, decision.reasons, strict=True):
        give_way()
        node = longhorn_nodes.get(name)
        if node is not None and start.node in (None, name):
            yield _Candidate(node, reason, decision.resolution_on(name))
    if Reason.SPOKEN_FOR not in decision.reasons:
        return
    # A volume that does not fit on its pod's node counts on others until there is room for it, also on a node that kube-scheduler refuses.
    for name in sorted(set(longhorn_nodes).difference(decision.candidates)):
        if start.node in (None, name) and cluster.state.demand.by_node.get(name):
            yield _Candidate(longhorn_nodes[name], None, decision.resolution)


def _space_questions(trials: Trials, start: _Start) -> list[SpaceQuestion]:
    cluster = trials.cluster
    questions: list[SpaceQuestion] = []
    for candidate in _candidates(cluster, start):
        if candidate.reason is None or candidate.reason in _DISKS:
            of_node = space_questions(cluster, candidate.node, _needs(trials, candidate))
            # Where every disk is closed to some volume, space helps only if it opens a disk.
            closed = candidate.reason in _CLOSED
            questions += (question for question in of_node if not (closed and question.disk.schedulable))
    return questions


def _replicas_in_the_way(trials: Trials, start: _Start) -> list[longhorn.Replica]:
    """Returns the replicas whose disk may lack no more than their size."""
    cluster = trials.cluster
    replicas: list[longhorn.Replica] = []
    by_disk = cluster.state.view.indexes.replicas_by_disk
    for candidate in _candidates(cluster, start):
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
