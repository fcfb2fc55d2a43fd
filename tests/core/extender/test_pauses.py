"""No decision works long between two pauses, whatever other pods have and whatever is cached."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from scheduler_core.cooperative import Cooperative, run_to_end
from scheduler_core.evaluation.competitors import CompetitorGroups
from scheduler_core.extender.status import waiting_rows
from scheduler_core.extender.status.report import status_report
from scheduler_core.extender.status.waiting_rows import pods_on_node
from scheduler_core.extender.what_if.cluster_changes import Drain
from scheduler_core.model.kube import Pod
from tests import builders as make
from tests.bench.offers_cluster import new_pod
from tests.worlds.crowded_cluster import NODES, CrowdedCluster
from tests.worlds.pauses import run_counting
from tests.worlds.predicted_clusters import node, situation

# About 5 ms. A loop over the nodes without a pause took ten times as many.
MOST_CALLS = 30_000


@pytest.fixture(scope="module")
def only_cluster() -> CrowdedCluster:
    """One cluster for all tests: it takes long to make."""
    return CrowdedCluster()


@pytest.fixture
def cluster(only_cluster: CrowdedCluster) -> CrowdedCluster:
    """The cluster with empty caches."""
    only_cluster.clear_caches()
    return only_cluster


@pytest.mark.parametrize(
    "request_of", [CrowdedCluster.filter, CrowdedCluster.prioritize, CrowdedCluster.explain, CrowdedCluster.row]
)
def test_a_request_pauses_often(
    cluster: CrowdedCluster, request_of: Callable[[CrowdedCluster, Pod], Cooperative[Any]]
) -> None:
    """With empty caches, about sizes that no earlier request had, about the same pod again, and where the pod fits nowhere."""
    pods = {
        "cold": new_pod("cold"),
        "new sizes": new_pod("new", (11, 3)),
        "again": new_pod("new", (11, 3)),
        "too large": new_pod("large", (320, 3)),
    }
    calls = {name: run_counting(request_of(cluster, pod))[1] for name, pod in pods.items()}
    cluster.clear_contention()
    calls["only disks cached"] = run_counting(request_of(cluster, pods["again"]))[1]
    assert {name: most for name, most in calls.items() if most > MOST_CALLS} == {}


def test_volumes_that_may_go_anywhere_are_added_once(cluster: CrowdedCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """A request with other sizes finds the competitors of every node."""
    made: list[object] = []
    competitors = CompetitorGroups.competitors

    def counted(groups: CompetitorGroups, *volumes: Any) -> Any:
        made.append(volumes)
        return competitors(groups, *volumes)

    monkeypatch.setattr(CompetitorGroups, "competitors", counted)
    run_to_end(cluster.filter(new_pod("first")))
    assert len(made) >= NODES
    made.clear()
    assert run_to_end(cluster.filter(new_pod("second", (11, 3)))).competitors
    assert made == []


def test_looking_through_all_pods_pauses(cluster: CrowdedCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """For the pods of a node, and for those that wait."""
    monkeypatch.setattr(waiting_rows, "_PODS_PER_PAUSE", 10)
    view = cluster.state.view
    pauses = len(view.snapshot.pods) // 10
    assert sum(1 for _ in pods_on_node(view, cluster.names[0])) == pauses
    assert sum(1 for _ in status_report(cluster.state)) >= pauses


def test_a_drain_notes_which_pods_wait() -> None:
    """So that its orders do not look through all pods again."""
    before = situation(node("n1"), make.pod(name="waits"), make.pod(name="runs", node="n1"))
    assert Drain(("n1",)).apply(before).waiting == (("default", "waits"),)
