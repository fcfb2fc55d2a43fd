"""The remedies for a pod, as `remedies` and `explain` print them."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Final

from app.cli.explain_subject import ClusterSource, ExplainedPod
from app.cli.predictions import predicted_cluster
from app.schemas.pod_explanation import RemedyAnswer
from app.schemas.remedies_answer import remedy_answer
from scheduler_core.extender.decision import FilterOptions
from scheduler_core.model.generic import PodKey
from scheduler_core.predict.predicted_cluster import PredictedCluster
from scheduler_core.predict.remedies import MAX_DECISIONS, find_remedies

# Each takes about 1 ms in a cluster of 100 nodes. `explain` is asked why a pod waits, so its remedy must not take long.
_EXPLAIN_DECISIONS: Final = 100
# More remedies of nodes that must not be changed are not passed over.
_MAX_AVOIDED: Final = 10


def cluster_of_pod(pod: ExplainedPod, source: ClusterSource) -> PredictedCluster:
    """Returns the cluster that a pod is decided in, with the other objects of the pod's file."""
    return predicted_cluster(replace(source, snapshot=pod.snapshot))


def remedy_after(
    cluster: PredictedCluster, key: PodKey, avoided: Collection[str], options: FilterOptions, longhorn_namespace: str
) -> RemedyAnswer | None:
    """Returns the cheapest remedy of a short search for a pod of a predicted cluster that changes no node of `avoided`,
    None without one.
    """
    pod = cluster.snapshot.pods[key]
    limit = 1 + min(len(avoided), _MAX_AVOIDED)
    remedies = find_remedies(pod, cluster, options, limit, _EXPLAIN_DECISIONS).remedies
    # A node that is drained is not to be uncordoned.
    remedy = next((remedy for remedy in remedies if remedy.node not in avoided), None)
    return None if remedy is None else remedy_answer(cluster, remedy, longhorn_namespace)


def cheapest_remedies(
    pod: ExplainedPod, source: ClusterSource, options: FilterOptions, longhorn_namespace: str, limit: int
) -> list[RemedyAnswer]:
    """Returns the cheapest remedies, none in a cluster that cannot be predicted. The search for one is short."""
    if pod.snapshot.disk_schedules:
        return []
    cluster = cluster_of_pod(pod, source)
    decisions = _EXPLAIN_DECISIONS if limit == 1 else MAX_DECISIONS
    remedies = find_remedies(pod.pod, cluster, options, limit, decisions).remedies
    return [remedy_answer(cluster, remedy, longhorn_namespace) for remedy in remedies]
