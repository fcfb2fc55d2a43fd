"""Whether a node can be lost for good.

It can if its pods find other nodes, and no volume loses its data. One order: the node is gone (`lose_nodes`), its pods
are decided about by the production decision, and Longhorn rebuilds the missing replicas (`run_order`). The node is safe
to lose if nothing goes wrong in any order. A detached volume that keeps a replica is fine: Longhorn rebuilds it once it
is attached.
"""

from collections.abc import Mapping, Sequence

from scheduler_core.decide.decision import FilterOptions
from scheduler_core.predict import cluster_changes, predicted_replicas, prediction, timeline
from scheduler_core.predict.predicted_cluster import PredictedCluster
from scheduler_core.predict.prediction_input import Situation
from scheduler_core.structs import Struct, replace

# A single step takes too long in a larger cluster.
MAX_NODES = 1000


class NodeLossOutcome(Struct, frozen=True):
    """What the loss of one node leads to."""

    node: str
    orders: int
    pods: int  # how many pods with Longhorn volumes would move
    volumes: int  # how many volumes would lose a replica
    # What goes wrong, with the number of orders, most frequent first; empty if the node is safe to lose.
    problems: Mapping[str, int]

    @property
    def safe(self) -> bool:
        """Whether the node can be lost in every order."""
        return not self.problems

    @property
    def reason(self) -> str:
        """The most frequent problem, "" if there is none."""
        return next(iter(self.problems), "")


def predict_node_loss(
    cluster: PredictedCluster, node: str, options: FilterOptions, orders: Sequence[predicted_replicas.Choose]
) -> NodeLossOutcome:
    """Predicts the loss of a node, once with each of at least one order. Raises a WhatIfError if there is no such node."""
    lost = cluster_changes.lose_nodes(Situation(cluster), (node,))
    # Pods without claims change nothing for volumes or for pods with claims.
    own = lost.cluster.snapshot.pods
    waiting = tuple(key for key in lost.waiting or () if own[key].volumes)
    lost = replace(lost, pods={key: pod for key, pod in lost.pods.items() if own[key].volumes}, waiting=waiting)
    pods = [key for key in lost.pods if cluster.volumes_of(cluster.snapshot.pods[key])]
    results = (timeline.run_order(lost, options, choose) for choose in orders)
    problems = [problem for result in results for problem in dict.fromkeys(_problems(cluster, lost, result))]
    return NodeLossOutcome(node, len(orders), len(pods), len(lost.degraded), prediction.sort_by_count(problems))


def _problems(before: PredictedCluster, lost: Situation, result: timeline.OrderResult) -> list[str]:
    """Returns what goes wrong in one order; `before` has the node."""
    cluster = result.cluster
    moved = {volume.name for key in lost.pods for volume in before.volumes_of(before.snapshot.pods[key])}
    volumes = [(name, cluster.snapshot.volumes.get(name)) for name in sorted(lost.degraded | moved)]
    faulted = {name for name, volume in volumes if volume and not predicted_replicas.healthy_replicas(cluster, name)}
    gone = (key for key in lost.gone_pods if before.volumes_of(before.snapshot.pods[key]))
    problems = [f"volume {name} loses its data" for name in sorted(faulted)]
    problems += [f"nothing creates pod {'/'.join(key)} again" for key in gone]
    for key in lost.pods:
        problem = prediction.pod_problem(key, result)
        own = before.volumes_of(before.snapshot.pods[key])
        # A pod only waits because its volume is faulted, which is the problem.
        if problem and own and not any(volume.name in faulted for volume in own):
            problems.append(problem)
    return problems + [
        f"volume {name} lacks a replica: {result.incomplete[name]}"
        for name, volume in volumes
        if volume is not None and name not in faulted and volume.node_id and name in result.incomplete
    ]
