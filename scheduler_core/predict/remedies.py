"""`find_remedies`: the cheapest changes of the cluster that make a pod fit, each of one step.

Data flow: the decision about the pod → for each node the steps that may lift its refusal → each is decided on the changed cluster
(`Trials`) → remedies by cost. Steps that change settings come first, then space, of which the least bytes are found by bisection,
then moves of one replica.

Which steps may lift a refusal follows from its reason: Longhorn checks nodes before disks. Where the replicas of the pod's volumes may
be on other nodes than the pod, a step on any node may help, and all are tried.
"""

from __future__ import annotations

from bisect import insort
from typing import Final

from msgspec import Struct

from scheduler_core.decide.decision import FilterOptions
from scheduler_core.model.kube import Pod
from scheduler_core.packing.budget import give_way
from scheduler_core.predict.pod_decision import PodDecision
from scheduler_core.predict.possible_steps import (
    replicas_in_the_way,
    setting_steps,
    space_questions,
)
from scheduler_core.predict.predicted_cluster import PredictedCluster
from scheduler_core.predict.predicted_replicas import replica_moves
from scheduler_core.predict.remedy import Step, move_step
from scheduler_core.predict.trials import Trials
from scheduler_core.values import replace

MAX_DECISIONS: Final = 600
"""How many changed clusters are decided; a search that needs more may miss cheaper remedies.

A decision about the few nodes that steps change counts as a seventh.
"""


class RemedySearch(Struct, frozen=True):
    """The result of a search for remedies."""

    remedies: tuple[Step, ...] = ()  # the cheapest first
    complete: bool = True  # whether it ended by itself; otherwise there may be cheaper remedies
    fits: bool = False  # whether the pod fits as it is


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
        return RemedySearch(fits=bool(decision.node))
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
        cluster = self.trials.cluster
        steps = dict.fromkeys(setting_steps(cluster, self.decision))
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
        trials = self.trials
        questions = space_questions(trials.cluster, self.decision, proven=trials.monotone)
        questions.sort(key=lambda question: question.order)
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
            size = replace(question, most=min(most, question.most)).least_size(self.trials.fits)
            if size and not self.trials.exhausted:
                insort(remedies, question.step(size), key=lambda step: step.order)
                del remedies[limit:]
        return remedies

    def _move_remedies(self, limit: int) -> list[Step]:
        """Returns the moves of one replica that make the pod fit wherever Longhorn puts the replica."""
        cluster = self.trials.cluster
        remedies: list[Step] = []
        replicas = replicas_in_the_way(cluster, self.decision, proven=self.trials.monotone)
        names = {replica.volume for replica in replicas} & {*cluster.snapshot.volumes}
        volumes = [cluster.snapshot.volumes[name] for name in names]
        movable = {replica.name for replica in replicas}
        for volume in sorted(volumes, key=lambda volume: (volume.actual_size, volume.name)):
            self.trials.decisions_left -= 1
            for move in replica_moves(cluster, volume.name):
                if len(remedies) == limit or self.trials.exhausted:
                    return remedies
                # Longhorn may choose any of the targets.
                if move.replica in movable and all(
                    self.trials.decide_move(move, target).node for target in move.targets
                ):
                    remedies.append(move_step(move))
        return remedies
