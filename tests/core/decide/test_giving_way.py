"""No request works long until it gives way, whatever other pods have and whatever is cached."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from scheduler_core.evaluation.competing_volumes import CompetitorGroups
from scheduler_core.model.kube import Pod
from scheduler_core.predict.cluster_changes import drain
from tests import builders as make
from tests.bench.offers_cluster import new_pod
from tests.worlds.crowded_cluster import NODES, CrowdedCluster
from tests.worlds.decision_runners import run_counting
from tests.worlds.predicted_clusters import node, situation

# About 5 ms. A loop over the nodes that did not give way took ten times as many.
MOST_CALLS = 30_000


@pytest.fixture(scope="module")
def only_cluster() -> CrowdedCluster:
    return CrowdedCluster()


@pytest.fixture
def cluster(only_cluster: CrowdedCluster) -> CrowdedCluster:
    only_cluster.clear_caches()
    return only_cluster


@pytest.mark.parametrize(
    "request_of", [CrowdedCluster.filter, CrowdedCluster.prioritize, CrowdedCluster.explain, CrowdedCluster.row]
)
def test_a_request_gives_way_often(cluster: CrowdedCluster, request_of: Callable[[CrowdedCluster, Pod], Any]) -> None:
    pods = {
        "cold": new_pod("cold"),
        "new sizes": new_pod("new", (11, 3)),
        "again": new_pod("new", (11, 3)),
        "too large": new_pod("large", (320, 3)),
    }
    calls = {name: run_counting(partial(request_of, cluster, pod))[1] for name, pod in pods.items()}
    cluster.clear_contention()
    calls["only disks cached"] = run_counting(partial(request_of, cluster, pods["again"]))[1]
    assert {name: most for name, most in calls.items() if most > MOST_CALLS} == {}


def test_volumes_that_may_go_anywhere_are_added_once(cluster: CrowdedCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[object] = []
    competitors = CompetitorGroups.competitors

    def counted(groups: CompetitorGroups, *volumes: Any) -> Any:
        made.append(volumes)
        return competitors(groups, *volumes)

    monkeypatch.setattr(CompetitorGroups, "competitors", counted)
    cluster.filter(new_pod("first"))
    assert len(made) >= NODES
    made.clear()
    assert cluster.filter(new_pod("second", (11, 3))).competitors
    assert made == []


def test_a_drain_notes_which_pods_wait() -> None:
    """So that its orders do not look through all pods again."""
    before = situation(node("n1"), make.pod(name="waits"), make.pod(name="runs", node="n1"))
    assert drain(before, nodes=("n1",)).waiting == (("default", "waits"),)
