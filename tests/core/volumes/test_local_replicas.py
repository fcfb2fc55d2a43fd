"""Restart: to which nodes a pod returns, and where its volumes need no new space."""

from __future__ import annotations

from typing import Any

import pytest

from scheduler_core.volumes.local_replicas import Standing, kept_on, standings
from scheduler_core.volumes.resolve import resolve
from tests.builders import (
    Object,
    as_pod,
    bound,
    disk,
    explained,
    fitting,
    longhorn_node,
    pod,
    reasons,
    replica,
    view,
)

NODES = [longhorn_node("n1"), longhorn_node("n2"), longhorn_node("n3")]

HEALTHY: dict[str, Any] = {}
NEW: dict[str, Any] = {"healthy": False}
FAILED: dict[str, Any] = {"failed": True}
FAILED_NEVER_HEALTHY: dict[str, Any] = {"failed": True, "healthy": False}
WORN_OUT: dict[str, Any] = {"failed": True, "rebuildRetryCount": 5}
USELESS: dict[str, Any] = {"failed": True, "healthy": False, "rebuildRetryCount": 5}
EVICTING: dict[str, Any] = {"evictionRequested": True}
DELETING: dict[str, Any] = {"deleting": True}
INACTIVE: dict[str, Any] = {"active": False}


def standing_on_n1(*objects: Object) -> Standing:
    """What volume vol-a has on node n1."""
    current = view(NODES, bound("a"), *objects)
    (found,) = resolve(as_pod(pod("a")), current).volumes
    return standings(found, current.cluster).get("n1", Standing.NONE)


@pytest.mark.parametrize(
    ("here", "elsewhere", "standing"),
    [
        pytest.param(HEALTHY, None, Standing.HEALTHY, id="healthy"),
        pytest.param(NEW, None, Standing.NEW, id="placed, never healthy"),
        pytest.param(FAILED, None, Standing.FAILED, id="failed, reusable"),
        pytest.param(FAILED_NEVER_HEALTHY, None, Standing.FAILED, id="failed before it was healthy, reusable"),
        pytest.param(WORN_OUT, None, Standing.FAILED, id="failed too often, salvageable"),
        pytest.param(WORN_OUT, HEALTHY, Standing.NONE, id="failed too often, not needed for salvage"),
        pytest.param(USELESS, None, Standing.NONE, id="failed too often, holds nothing"),
        pytest.param(EVICTING, None, Standing.NONE, id="evicting"),
        pytest.param(DELETING, None, Standing.NONE, id="deleting"),
        pytest.param(INACTIVE, None, Standing.NONE, id="inactive"),
    ],
)
def test_what_a_replica_means(here: dict[str, Any], elsewhere: dict[str, Any] | None, standing: Standing) -> None:
    """The rows of the table in homes.py."""
    others = [replica("r2", "vol-a", "n2", **elsewhere)] if elsewhere is not None else []
    assert standing_on_n1(replica("r1", "vol-a", "n1", **here), *others) is standing


@pytest.mark.parametrize(
    "node",
    [
        pytest.param(longhorn_node("n1", ready=False), id="node not ready"),
        pytest.param(longhorn_node("n1", {"disk-1": disk(ready=False)}), id="disk not ready"),
        pytest.param(longhorn_node("n1", {"other": disk()}), id="disk gone"),
    ],
)
def test_a_replica_counts_only_on_a_ready_disk_of_a_ready_node(node: Object) -> None:
    """Otherwise the volume needs new space there."""
    current = view(node, bound("a"), replica("r1", "vol-a", "n1"))
    (found,) = resolve(as_pod(pod("a")), current).volumes
    assert kept_on(found, current.cluster) == frozenset()


class TestReturn:
    """Candidates that are a home of every local volume are the only ones returned."""

    def test_a_pod_returns_to_its_replicas(self) -> None:
        """Exactly the node that holds a replica of every volume."""
        explanation = explained(
            pod("a", "b"), NODES, bound("a"), bound("b"), replica("r1", "vol-a", "n2"), replica("r2", "vol-b", "n2")
        )
        assert reasons(explanation) == {"n1": "HOME_ELSEWHERE", "n2": "HOME", "n3": "HOME_ELSEWHERE"}

    @pytest.mark.parametrize(
        "home",
        [
            pytest.param(longhorn_node("n2", {"disk-1": disk(100, scheduled=100, available=1)}), id="full"),
            pytest.param(longhorn_node("n2", allow=False), id="allowScheduling false"),
            pytest.param(longhorn_node("n2", schedulable=False), id="cordoned"),
            pytest.param(longhorn_node("n2", {"disk-1": disk(allow=False)}), id="disk closed"),
            pytest.param(longhorn_node("n2", tags=["other"]), id="retagged"),
        ],
    )
    def test_nothing_new_is_needed_at_home(self, home: Object) -> None:
        """A home stays one whatever happened to the room on it."""
        explanation = explained(pod("a"), longhorn_node("n1"), home, bound("a"), replica("r1", "vol-a", "n2"))
        assert fitting(explanation) == ["n2"]
        assert explanation.verdicts[1].plan == {}

    def test_a_home_that_is_no_candidate_does_not_count(self) -> None:
        """kube-scheduler left it out, so the pod needs room elsewhere."""
        explanation = explained(
            pod("a"), NODES, bound("a", 60), replica("r1", "vol-a", "n2", size=60), nodes=["n1", "n3"]
        )
        assert reasons(explanation) == {"n1": "ROOM", "n3": "ROOM"}

    def test_a_home_of_one_volume_only_is_no_home(self) -> None:
        """Then all nodes with room compete; where a replica is kept less room is needed."""
        small = [longhorn_node("n1", 50), longhorn_node("n2", 50), longhorn_node("n3", 100)]
        explanation = explained(
            pod("a", "b"), small, bound("a", 50), bound("b", 50), replica("r1", "vol-a", "n1", size=50),
        )  # fmt: skip
        assert reasons(explanation) == {"n1": "INSUFFICIENT_STORAGE", "n2": "NOT_TOGETHER", "n3": "ROOM"}

    def test_a_kept_replica_needs_no_second_place(self) -> None:
        """On a node that keeps one volume, only the other is packed."""
        nodes = [longhorn_node("n1", {"disk-1": disk(100, listed={"r1": 50})}), longhorn_node("n2", 90)]
        explanation = explained(
            pod("a", "b"), nodes, bound("a", 50), bound("b", 50), replica("r1", "vol-a", "n1", size=50)
        )
        assert reasons(explanation) == {"n1": "ROOM", "n2": "NOT_TOGETHER"}
        assert explanation.verdicts[0].plan == {"vol-b": "n1-disk-1"}

    def test_volumes_without_local_room_have_no_say(self) -> None:
        """They cannot have a home, so they are left out of the question."""
        explanation = explained(
            pod("a", "far"), NODES, bound("a"), bound("far", locality="disabled"),
            replica("r1", "vol-a", "n2"), replica("r2", "vol-far", "n3"),
        )  # fmt: skip
        assert fitting(explanation) == ["n2"]

    def test_only_remote_volumes_have_no_home(self) -> None:
        """At least one local volume is needed to return somewhere."""
        explanation = explained(pod("far"), NODES, bound("far", locality="disabled"), replica("r1", "vol-far", "n3"))
        assert reasons(explanation) == dict.fromkeys(("n1", "n2", "n3"), "ATTACHABLE")

    @pytest.mark.parametrize(
        ("first", "second", "homes"),
        [
            pytest.param(HEALTHY, NEW, ["n1"], id="healthy before never healthy"),
            pytest.param(HEALTHY, FAILED, ["n1"], id="healthy before failed"),
            pytest.param(HEALTHY, HEALTHY, ["n1", "n2"], id="two healthy ones"),
            pytest.param(NEW, NEW, ["n1", "n2"], id="two on their first attach"),
            pytest.param(NEW, FAILED, ["n1", "n2"], id="no healthy one: never healthy and failed"),
            pytest.param(FAILED, EVICTING, ["n1"], id="failed before evicting"),
        ],
    )
    def test_better_replicas_win(self, first: dict[str, Any], second: dict[str, Any], homes: list[str]) -> None:
        """The last column of the table: who is home depends on what else there is."""
        explanation = explained(
            pod("a"), NODES, bound("a"), replica("r1", "vol-a", "n1", **first), replica("r2", "vol-a", "n2", **second)
        )
        assert [name for name, reason in reasons(explanation).items() if reason == "HOME"] == homes

    def test_a_healthy_replica_that_is_no_candidate_leaves_the_new_one_a_home(self) -> None:
        """A rebuilding replica is a home only if no candidate has a healthy one."""
        explanation = explained(
            pod("a"), NODES, bound("a"), replica("r1", "vol-a", "n1"), replica("r2", "vol-a", "n2", healthy=False),
            nodes=["n2", "n3"],
        )  # fmt: skip
        assert reasons(explanation) == {"n2": "HOME", "n3": "HOME_ELSEWHERE"}

    def test_a_healthy_replica_anywhere_ends_a_failed_ones_home(self) -> None:
        """The failed replica would have to be rebuilt from it; it still needs no new space."""
        explanation = explained(
            pod("a"), NODES, bound("a", 60), replica("r1", "vol-a", "n1", size=60),
            replica("r2", "vol-a", "n2", failed=True, size=60), nodes=["n2", "n3"],
        )  # fmt: skip
        assert reasons(explanation) == {"n2": "ROOM", "n3": "ROOM"}
        assert [verdict.plan for verdict in explanation.verdicts] == [{}, {"vol-a": "n3-disk-1"}]

    @pytest.mark.parametrize(
        "node",
        [
            pytest.param(longhorn_node("n2", {"disk-1": disk(100, allow=False)}), id="its disk closed"),
            pytest.param(longhorn_node("n2", schedulable=False), id="its node cordoned"),
            pytest.param(longhorn_node("n2", allow=False), id="its node closed"),
        ],
    )
    def test_beside_a_healthy_replica_a_failed_one_is_kept_only_if_longhorn_reuses_it(self, node: Object) -> None:
        """Otherwise a rebuild needs new space, which a closed node does not give."""
        explanation = explained(
            pod("a"), longhorn_node("n1"), node, longhorn_node("n3"), bound("a", 60),
            replica("r1", "vol-a", "n1", size=60), replica("r2", "vol-a", "n2", failed=True, size=60), nodes=["n2", "n3"],
        )  # fmt: skip
        assert fitting(explanation) == ["n3"]

    def test_a_home_does_not_hide_that_another_volume_has_room_nowhere(self) -> None:
        """The pod would go home and be stuck there, waiting for a volume that cannot be created."""
        explanation = explained(
            pod("a", "far"), longhorn_node("n1", {"disk-1": disk(100, listed={"r": 100})}), bound("a"),
            replica("r", "vol-a", "n1"), bound("far", 50, locality="disabled"),
        )  # fmt: skip
        assert reasons(explanation) == {"n1": "NO_ROOM_IN_CLUSTER"}

    def test_a_healthy_replica_where_nothing_attaches_hides_no_other_home(self) -> None:
        """A candidate without the engine cannot be a home, so it takes no home from others."""
        engine = {
            "apiVersion": "longhorn.io/v1beta2",
            "kind": "EngineImage",
            "metadata": {"name": "ei"},
            "spec": {"image": "engine:1"},
            "status": {"state": "deployed", "nodeDeploymentMap": {"n2": True, "n3": True}},
        }
        explanation = explained(
            pod("a"), NODES, engine, bound("a", image="engine:1"),
            replica("r1", "vol-a", "n1"), replica("r2", "vol-a", "n2", healthy=False),
        )  # fmt: skip
        assert reasons(explanation) == {"n1": "HOME_ELSEWHERE", "n2": "HOME", "n3": "HOME_ELSEWHERE"}

    def test_a_home_without_the_volumes_engine_is_no_home(self) -> None:
        """Longhorn could not attach the volume there."""
        engine = {
            "apiVersion": "longhorn.io/v1beta2",
            "kind": "EngineImage",
            "metadata": {"name": "ei"},
            "spec": {"image": "engine:1"},
            "status": {"state": "deployed", "nodeDeploymentMap": {"n1": True, "n3": True}},
        }
        explanation = explained(pod("a"), NODES, engine, bound("a", image="engine:1"), replica("r1", "vol-a", "n2"))
        assert reasons(explanation) == {"n1": "ROOM", "n2": "ENGINE_NOT_READY", "n3": "ROOM"}


def test_an_evicting_replica_needs_new_space_on_its_own_node() -> None:
    """Its data goes elsewhere, so a local replica must be made again; the node's other disk takes it."""
    node = longhorn_node("n1", {"disk-1": disk(allow=False, evict=True), "disk-2": disk(100)})
    explanation = explained(
        pod("a"), node, longhorn_node("n2", 10), bound("a"), replica("r1", "vol-a", "n1", evictionRequested=True)
    )
    assert reasons(explanation) == {"n1": "ROOM", "n2": "INSUFFICIENT_STORAGE"}
    assert explanation.verdicts[0].plan == {"vol-a": "n1-disk-2"}


def test_disk_anti_affinity_counts_beside_a_leaving_replica() -> None:
    """With hard disk anti-affinity the disk of a deleting replica is closed to its successor."""
    node = longhorn_node("n1", {"disk-1": disk(500)})
    raw = bound("a", replicaDiskSoftAntiAffinity="disabled")
    explanation = explained(pod("a"), node, raw, replica("r1", "vol-a", "n1", deleting=True))
    assert reasons(explanation) == {"n1": "ANTI_AFFINITY"}


def test_soft_disk_anti_affinity_falls_back_to_the_disk_of_the_leaving_replica() -> None:
    """A packing may use it, for Longhorn does when the other disk is full; an order that wastes the other is told."""
    node = longhorn_node("n1", {"disk-1": disk(200), "disk-2": disk(60, tags=["ssd"])})
    volumes = [bound("a", 50), bound("b", 60, diskSelector=["ssd"])]
    leaving = replica("r1", "vol-a", "n1", size=50, evictionRequested=True)
    (verdict,) = explained(pod("a", "b"), node, *volumes, leaving).verdicts
    assert verdict.plan == {"vol-a": "n1-disk-1", "vol-b": "n1-disk-2"}
    assert verdict.order_safe is False


def test_every_order_may_succeed_because_of_that_fallback() -> None:
    """Whichever volume takes the free disk first, the other finds the disk of the leaving replica."""
    node = longhorn_node("n1", {"disk-1": disk(100), "disk-2": disk(50)})
    leaving = replica("r1", "vol-a", "n1", size=50, evictionRequested=True)
    (verdict,) = explained(pod("a", "b"), node, bound("a", 50), bound("b", 50), leaving).verdicts
    assert (verdict.fits, verdict.order_safe) == (True, True)


@pytest.mark.parametrize("listed", [{}, {"r1": 40}], ids=["not listed yet", "listed"])
def test_a_replica_in_the_way_is_told_from_too_little_room(listed: dict[str, float]) -> None:
    """Whether Longhorn's status lists the leaving replica yet changes no reason."""
    node = longhorn_node("n1", {"disk-1": disk(60, listed=listed)})
    leaving = replica("r1", "vol-a", "n1", size=40, evictionRequested=True)
    assert reasons(explained(pod("a"), node, bound("a", 40), leaving)) == {"n1": "INSUFFICIENT_STORAGE"}


class TestStrictLocal:
    """A strict-local volume lives where its replica is."""

    @pytest.mark.parametrize("state", [HEALTHY, NEW, FAILED], ids=["healthy", "new", "failed"])
    def test_it_fits_only_with_its_replica(self, state: dict[str, Any]) -> None:
        """Even when the replica's node is no candidate: then nothing fits."""
        explanation = explained(
            pod("a"),
            NODES,
            bound("a", locality="strict-local"),
            replica("r1", "vol-a", "n3", **state),
            nodes=["n1", "n2"],
        )
        assert reasons(explanation) == {"n1": "STRICT_LOCAL_ELSEWHERE", "n2": "STRICT_LOCAL_ELSEWHERE"}

    def test_without_a_placed_replica_it_goes_where_there_is_room(self) -> None:
        """Its replica object may exist already; it has no node before the volume is attached."""
        explanation = explained(
            pod("a"),
            longhorn_node("n1", 50),
            longhorn_node("n2"),
            bound("a", locality="strict-local"),
            replica("r1", "vol-a"),
        )
        assert reasons(explanation) == {"n1": "INSUFFICIENT_STORAGE", "n2": "ROOM"}


def test_a_shared_claim_ties_the_pod_to_the_other_pods_node() -> None:
    """A claim in use elsewhere rules out every other node, whatever their room."""
    explanation = explained(
        pod("a"), NODES, bound("a", locality="disabled"), pod("a", name="other", uid="2", node="n2", phase="Running"),
        replica("r1", "vol-a", "n1"),
    )  # fmt: skip
    assert reasons(explanation) == {"n1": "CLAIM_IN_USE", "n2": "ATTACHABLE", "n3": "CLAIM_IN_USE"}
