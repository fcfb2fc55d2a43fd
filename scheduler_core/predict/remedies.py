"""`find_remedies`: the cheapest changes of the cluster that make a pod fit, each of one step.

Data flow: the decision about the pod → for each node the steps that may lift its refusal (`possible_steps.py`) → each is decided on the
changed cluster (`Trials`) → remedies by cost. Steps that change settings come first, then space, of which the least bytes are found by
bisection, then moves of one replica.

Which steps may lift a refusal follows from its reason: Longhorn checks nodes before disks. Where the replicas of the pod's volumes may
be on other nodes than the pod, a step on any node may help, and all are tried.
"""

from bisect import insort
from itertools import islice

from scheduler_core.decide.decision import FilterOptions
from scheduler_core.model.kube import Pod
from scheduler_core.packing.budget import give_way
from scheduler_core.predict import possible_steps, predicted_replicas, remedy
from scheduler_core.predict.pod_decision import PodDecider, PodDecision
from scheduler_core.predict.predicted_cluster import ChangesByObject, PredictedCluster
from scheduler_core.structs import Struct

MAX_DECISIONS = 600
"""How many changed clusters are decided; a search that needs more may miss cheaper remedies."""


class RemedySearch(Struct, frozen=True):
    """The result of a search for remedies."""

    remedies: tuple[remedy.Step, ...] = ()  # the cheapest first
    complete: bool = True  # whether it ended by itself; otherwise there may be cheaper remedies
    fits: bool = False  # whether the pod fits as it is


def find_remedies(
    pod: Pod, cluster: PredictedCluster, options: FilterOptions, limit: int, max_decisions: int = MAX_DECISIONS
) -> RemedySearch:
    """Returns remedies for a pod that fits nowhere, each of one step, the cheapest first.

    There are at most `limit`. Each was checked: after its step the production decision about the pod names a node, and
    of a size one byte less does not suffice. A pod that fits needs none. `max_decisions` limits the search: fewer find
    remedies that work, but maybe not the cheapest.
    """
    trials = Trials(pod, cluster, options, max_decisions)
    if trials.decision.node or limit <= 0:
        return RemedySearch(fits=bool(trials.decision.node))
    steps = {*possible_steps.setting_steps(cluster, trials.decision)}
    remedies = [*islice(filter(trials.fits, sorted(steps, key=lambda step: step.order)), limit)]
    for find in (_space_remedies, _move_remedies):
        if len(remedies) < limit:
            remedies += find(trials, limit - len(remedies))
    return RemedySearch(tuple(remedies), not trials.exhausted)


def _space_remedies(trials: "Trials", limit: int) -> list[remedy.Step]:
    remedies: list[remedy.Step] = []
    questions = possible_steps.space_questions(trials.cluster, trials.decision)
    for question in sorted(questions, key=lambda each: (each.least, each.step(each.guesses[0]).order)):
        most = min(remedies[-1].size, question.most) if len(remedies) == limit else question.most
        if trials.exhausted or (len(remedies) == limit and question.least >= most):
            break
        size = question.least_size(most, trials.fits)
        if size and not trials.exhausted:
            insort(remedies, question.step(size), key=lambda step: step.order)
            del remedies[limit:]
    return remedies


def _move_remedies(trials: "Trials", limit: int) -> list[remedy.Step]:
    """Returns the moves of one replica that make the pod fit wherever Longhorn puts the replica."""
    cluster = trials.cluster
    remedies: list[remedy.Step] = []
    replicas = possible_steps.replicas_in_the_way(cluster, trials.decision)
    names = {replica.volume for replica in replicas} & {*cluster.snapshot.volumes}
    volumes = [cluster.snapshot.volumes[name] for name in names]
    movable = {replica.name for replica in replicas}
    for volume in sorted(volumes, key=lambda volume: (volume.actual_size, volume.name)):
        trials.decisions_left -= 1
        for move in predicted_replicas.replica_moves(cluster, volume.name):
            if len(remedies) == limit or trials.exhausted:
                return remedies
            step = remedy.move_step(move)
            # Longhorn may choose any of the targets.
            if move.replica in movable and all(trials.fits(step, target) for target in move.targets):
                remedies.append(step)
    return remedies


class Trials:
    """The decisions about a pod after one step each, limited in number. Each trial takes back the step of the one before
    it and makes its own in one update, so that the caches of the production decision see a few changed nodes each time.
    """

    def __init__(self, pod: Pod, cluster: PredictedCluster, options: FilterOptions, decisions: int) -> None:
        self.cluster = cluster
        self.decisions_left = decisions
        self._pod = pod
        self._decider = PodDecider(options)
        self._latest = cluster
        self._changed: ChangesByObject = {}
        self.decision = self._decide(cluster)  # without any step

    @property
    def exhausted(self) -> bool:
        return self.decisions_left <= 0

    def fits(self, step: remedy.Step, target: predicted_replicas.DiskPlace | None = None) -> bool:
        """Whether the pod fits after a step, of a move to one of its targets; False once the trials are exhausted."""
        if self.exhausted:
            return False
        objects, uncordoned = remedy.step_changes(self.cluster, step, target)
        before = {key: getattr(self.cluster.snapshot, key[0]).get(key[1]) for key in self._changed}
        self._latest = self._latest.update({**before, **objects})
        self._changed = objects
        scheduling = self.cluster.scheduling
        if uncordoned is not None:
            scheduling = scheduling.with_node(uncordoned)
        return bool(self._decide(self._latest.with_scheduling(scheduling)).node)

    def _decide(self, cluster: PredictedCluster) -> PodDecision:
        give_way()
        self.decisions_left -= 1
        return self._decider.decide(self._pod, cluster, predicted_replicas.choose_first)
