"""Today's predicates against a second implementation, which reads the documents naively, on random clusters."""

from functools import cache

import pytest
from hypothesis import given, strategies as st

from scheduler_core.convert.generic import NODE, SCHEDULED_POD
from scheduler_core.generic.cluster_state import GenericClusterState
from scheduler_core.generic.scheduler import find_nodes_that_fit
from scheduler_core.model.generic import Namespace
from tests.core.generic.tables import policy
from tests.e2e.objects import Object
from tests.worlds.documented_scheduling import DocumentedScheduler
from tests.worlds.scheduling_constraints import NAMESPACES, OVERHEAD, Generator, RandomCluster, object_of

SEEDS = st.integers(0, 100_000)


def admitted(pod: Object) -> Object:
    """The pod as the API server admits it: with the overhead of its runtime class."""
    if pod["spec"].pop("runtimeClassName", ""):
        pod["spec"]["overhead"] = OVERHEAD
    if pod.pop("terminating", False):
        pod["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    return pod


@cache
def cluster(seed: int) -> tuple[RandomCluster, GenericClusterState, DocumentedScheduler]:
    """A random cluster, for both implementations."""
    objects = Generator(seed).cluster(nodes=5, placed=12, pending=4)
    terminating = {object_of(pod): pod["terminating"] for pod in objects.placed}
    for pod in (*objects.placed, *objects.pending):
        admitted(pod)
    state = GenericClusterState.of(
        [NODE.read(raw) for raw in objects.nodes], [SCHEDULED_POD.read(raw) for raw in objects.placed], []
    )
    for name, labels in NAMESPACES.items():
        state = state.with_namespace(Namespace(name, frozenset(labels.items())))
    placed = [{**pod, "terminating": terminating[object_of(pod)]} for pod in objects.placed]
    return objects, state, DocumentedScheduler(objects.nodes, placed, NAMESPACES)


def fitting_nodes(state: GenericClusterState, raw: Object) -> set[str]:
    pod = SCHEDULED_POD.read(raw)
    result = find_nodes_that_fit(pod, None, state, policy("today"))
    return {node_info.node.name for node_info in result.feasible}


@given(SEEDS)
def test_a_pod_fits_where_the_documents_let_it_run(seed: int) -> None:
    """Taints, affinity, spread, ports and all resources, mixed at random."""
    objects, state, documented = cluster(seed)
    for pod in objects.pending:
        assert fitting_nodes(state, pod) == documented.fitting_nodes(pod)


@given(SEEDS)
def test_objects_that_are_removed_and_added_leave_no_trace(seed: int) -> None:
    """Nor do nodes. The sums of a node are equal to those made at once."""
    objects, state, _ = cluster(seed)
    changed = state
    for raw in objects.placed[:6]:
        changed = changed.without_pod(SCHEDULED_POD.read(raw).namespaced_name)
    for raw in objects.placed[:6]:
        changed = changed.with_pod(SCHEDULED_POD.read(raw))
    for name in list(changed.node_names)[:3]:
        changed = changed.without_node(name)
    for raw in objects.nodes:
        changed = changed.with_node(NODE.read(raw))
    assert changed.constrained_nodes == state.constrained_nodes
    for pod in objects.pending:
        assert fitting_nodes(changed, pod) == fitting_nodes(state, pod)


@pytest.mark.parametrize("share", [0.1, 0.9])
def test_the_random_pods_fit_on_some_nodes_and_not_on_others(share: float) -> None:
    """Otherwise the comparisons would say little."""
    fits = [
        name in fitting_nodes(cluster(seed)[1], pod)
        for seed in range(40)
        for pod in cluster(seed)[0].pending
        for name in cluster(seed)[1].node_names
    ]
    assert (sum(fits) / len(fits) > share) == (share < 0.5)
