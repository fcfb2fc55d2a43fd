"""`find_remedies`: the cheapest changes of the cluster that make a pod fit, each of one step.

Data flow: the decision about the pod → for each node the steps that may lift its refusal (`possible_steps.py`) → each is decided on the
changed cluster (`Trials`) → remedies by cost. Steps that change settings come first, then space, of which the least bytes are found by
bisection, then moves of one replica.

Which steps may lift a refusal follows from its reason: Longhorn checks nodes before disks. Where the replicas of the pod's volumes may
be on other nodes than the pod, a step on any node may help, and all are tried.
"""

from bisect import insort
from collections.abc import Sequence
from itertools import islice

from scheduler_core.decide.decision import Decision, FilterOptions
from scheduler_core.evaluation import disk_profiles, replicas_to_place
from scheduler_core.model.kube import Pod
from scheduler_core.packing.budget import give_way
from scheduler_core.predict import possible_steps, predicted_replicas, remedy
from scheduler_core.predict.pod_decision import PodDecider, PodDecision
from scheduler_core.predict.predicted_cluster import ChangesByObject, PredictedCluster
from scheduler_core.structs import Struct

MAX_DECISIONS = 600
"""How many changed clusters are decided; a search that needs more may miss cheaper remedies.

A decision about the one node that a step changes counts as a seventh.
"""
# It takes at most a fifth of one about 1,000 nodes. There are more of them before a remedy is found.
_SHARE_OF_ONE_NODE = 1 / 7


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
    remedies: list[remedy.Step] = []
    for find in (_setting_remedies, _space_remedies, _move_remedies):
        if len(remedies) < limit:
            remedies += find(trials, limit - len(remedies))
    return RemedySearch(tuple(remedies), not trials.exhausted)


def _setting_remedies(trials: "Trials", limit: int) -> list[remedy.Step]:
    steps = dict.fromkeys(possible_steps.setting_steps(trials.cluster, trials.decision))
    return list(islice(filter(trials.fits, sorted(steps, key=lambda step: step.order)), limit))


def _space_remedies(trials: "Trials", limit: int) -> list[remedy.Step]:
    remedies: list[remedy.Step] = []
    for question in sorted(
        possible_steps.space_questions(trials.cluster, trials.decision), key=lambda question: question.order
    ):
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
            # Longhorn may choose any of the targets.
            if move.replica in movable and all(trials.fits_after_move(move, target) for target in move.targets):
                remedies.append(remedy.move_step(move))
    return remedies


class Trials:
    """The decisions about a pod after one step each, limited in number. Each trial takes back the step of the one before
    it and makes its own in one update, so that the caches of the production decision see a few changed nodes each time.
    Where the nodes are decided about one by one, only the changed one is.
    """

    def __init__(self, pod: Pod, cluster: PredictedCluster, options: FilterOptions, decisions: int) -> None:
        self.cluster = cluster
        self.decisions_left: float = decisions
        self._pod = pod
        self._decider = PodDecider(options)
        self._latest = cluster
        self._changed: ChangesByObject = {}
        self.decision = self._decide(cluster)  # without any step
        decision = self.decision.decision
        # Without a decision, each node was refused by kube-scheduler alone, and all others will be.
        alone = all(self.decision.reasons.values()) if decision is None else _reads_one_node(decision, cluster)
        # Whether a step on one node changes the decision about no other node. Of kube-scheduler's filters only topology spread reads other
        # nodes' taints. Without Kubernetes nodes, cordoned ones are no candidates.
        spread = pod.scheduling.constraints.spread
        self._one_by_one = alone and not spread and bool(cluster.scheduling.node_names)

    @property
    def exhausted(self) -> bool:
        return self.decisions_left <= 0

    def fits(self, step: remedy.Step) -> bool:
        """Whether the pod fits after a step, False once the trials are exhausted."""
        if self.exhausted:
            return False
        objects, uncordoned = remedy.step_changes(self.cluster, step)
        self._latest = self._latest.update({**self._reverse_changes(), **objects})
        self._changed = objects
        scheduling = self.cluster.scheduling
        if uncordoned is not None:
            scheduling = scheduling.with_node(uncordoned)
        # Another pod's volume that begins to fit on its node, or ceases to, counts on other nodes.
        demands = (cluster.state.demand.by_node.get(step.node) for cluster in (self.cluster, self._latest))
        alone = self._one_by_one and step.node in self.cluster.scheduling.nodes and not any(demands)
        names = [step.node] if alone else None
        return bool(self._decide(self._latest.with_scheduling(scheduling), names).node)

    def fits_after_move(self, move: predicted_replicas.ReplicaMove, target: predicted_replicas.DiskPlace) -> bool:
        """Whether the pod fits after a move to one of its targets, False once the trials are exhausted."""
        if self.exhausted:
            return False
        before = self._latest.update(self._reverse_changes())
        self._latest = predicted_replicas.apply_move(before, move, target)
        replicas = {*before.state.view.replicas_of(move.volume), *self._latest.state.view.replicas_of(move.volume)}
        self._changed = {("replicas", replica.name): None for replica in replicas}
        self._changed |= {("longhorn_nodes", name): None for name in (move.origin.node, target.node)}
        return bool(self._decide(self._latest).node)

    def _decide(self, cluster: PredictedCluster, names: Sequence[str] | None = None) -> PodDecision:
        give_way()
        self.decisions_left -= 1 if names is None else _SHARE_OF_ONE_NODE
        return self._decider.decide(self._pod, cluster, predicted_replicas.choose_first, names)

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
        and not replicas_to_place.replica_needs(resolution, view)
        and disk_profiles.unready_volume(view, resolution) is None
        and disk_profiles.refusal_on_every_node(view, resolution) is None
    )
