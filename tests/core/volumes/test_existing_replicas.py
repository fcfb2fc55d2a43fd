"""Restart: to which nodes a pod returns, and where its volumes need no new space."""

from typing import Any

import pytest

from scheduler_core.volumes.existing_replicas import ReplicaUse, nodes_with_replica, replica_uses
from scheduler_core.volumes.resolve import resolve
from tests.builders import Object, as_pod, bound, disk, explained, fitting, longhorn_node, pod, reasons, replica, view

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


def replica_use_on_n1(*objects: Object) -> ReplicaUse:
    current = view(NODES, bound("a"), *objects)
    (volume,) = resolve(as_pod(pod("a")), current).volumes
    return replica_uses(volume, current.cluster).get("n1", ReplicaUse.NONE)


@pytest.mark.parametrize(
    ("here", "elsewhere", "use"),
    [
        pytest.param(HEALTHY, None, ReplicaUse.HEALTHY, id="healthy"),
        pytest.param(NEW, None, ReplicaUse.NEW, id="placed, never healthy"),
        pytest.param(FAILED, None, ReplicaUse.FAILED, id="failed, reusable"),
        pytest.param(FAILED_NEVER_HEALTHY, None, ReplicaUse.FAILED, id="failed before it was healthy, reusable"),
        pytest.param(WORN_OUT, None, ReplicaUse.FAILED, id="failed too often, salvageable"),
        pytest.param(WORN_OUT, HEALTHY, ReplicaUse.NONE, id="failed too often, not needed for salvage"),
        pytest.param(USELESS, None, ReplicaUse.NONE, id="failed too often, holds nothing"),
        pytest.param(EVICTING, None, ReplicaUse.NONE, id="evicting"),
        pytest.param(DELETING, None, ReplicaUse.NONE, id="deleting"),
        pytest.param(INACTIVE, None, ReplicaUse.NONE, id="inactive"),
    ],
)
def test_the_use_of_a_replica_follows_from_its_state(
    here: dict[str, Any], elsewhere: dict[str, Any] | None, use: ReplicaUse
) -> None:
    others = [replica("r2", "vol-a", "n2", **elsewhere)] if elsewhere is not None else []
    assert replica_use_on_n1(replica("r1", "vol-a", "n1", **here), *others) is use


@pytest.mark.parametrize(
    "node",
    [
        pytest.param(longhorn_node("n1", ready=False), id="node not ready"),
        pytest.param(longhorn_node("n1", {"disk-1": disk(ready=False)}), id="disk not ready"),
        pytest.param(longhorn_node("n1", {"other": disk()}), id="disk removed"),
    ],
)
def test_a_replica_counts_only_on_a_ready_disk_of_a_ready_node(node: Object) -> None:
    """Otherwise the volume needs new space there."""
    current = view(node, bound("a"), replica("r1", "vol-a", "n1"))
    (volume,) = resolve(as_pod(pod("a")), current).volumes
    assert nodes_with_replica(volume, current.cluster) == frozenset()


class TestReturn:
    """Only candidates that are a home of every local volume are returned."""

    def test_a_pod_returns_to_its_replicas(self) -> None:
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
            pytest.param(longhorn_node("n2", tags=["other"]), id="other tags"),
        ],
    )
    def test_a_home_needs_no_new_space(self, home: Object) -> None:
        explanation = explained(pod("a"), longhorn_node("n1"), home, bound("a"), replica("r1", "vol-a", "n2"))
        assert fitting(explanation) == ["n2"]
        assert explanation.verdicts[1].plan == {}

    def test_a_home_that_is_no_candidate_does_not_count(self) -> None:
        explanation = explained(
            pod("a"), NODES, bound("a", 60), replica("r1", "vol-a", "n2", size=60), nodes=["n1", "n3"]
        )
        assert reasons(explanation) == {"n1": "ROOM", "n3": "ROOM"}

    def test_a_home_of_only_one_of_two_volumes_does_not_count(self) -> None:
        small = [longhorn_node("n1", 50), longhorn_node("n2", 50), longhorn_node("n3", 100)]
        explanation = explained(
            pod("a", "b"), small, bound("a", 50), bound("b", 50), replica("r1", "vol-a", "n1", size=50),
        )  # fmt: skip
        assert reasons(explanation) == {"n1": "INSUFFICIENT_STORAGE", "n2": "NOT_TOGETHER", "n3": "ROOM"}

    def test_a_volume_with_a_kept_replica_needs_no_second_replica_on_the_node(self) -> None:
        nodes = [longhorn_node("n1", {"disk-1": disk(100, listed={"r1": 50})}), longhorn_node("n2", 90)]
        explanation = explained(
            pod("a", "b"), nodes, bound("a", 50), bound("b", 50), replica("r1", "vol-a", "n1", size=50)
        )
        assert reasons(explanation) == {"n1": "ROOM", "n2": "NOT_TOGETHER"}
        assert explanation.verdicts[0].plan == {"vol-b": "n1-disk-1"}

    def test_remote_volumes_do_not_decide_about_homes(self) -> None:
        explanation = explained(
            pod("a", "remote"), NODES, bound("a"), bound("remote", locality="disabled"),
            replica("r1", "vol-a", "n2"), replica("r2", "vol-remote", "n3"),
        )  # fmt: skip
        assert fitting(explanation) == ["n2"]

    def test_a_pod_with_remote_volumes_alone_has_no_home(self) -> None:
        explanation = explained(
            pod("remote"), NODES, bound("remote", locality="disabled"), replica("r1", "vol-remote", "n3")
        )
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
    def test_the_best_replicas_decide_which_nodes_are_homes(
        self, first: dict[str, Any], second: dict[str, Any], homes: list[str]
    ) -> None:
        explanation = explained(
            pod("a"), NODES, bound("a"), replica("r1", "vol-a", "n1", **first), replica("r2", "vol-a", "n2", **second)
        )
        assert [name for name, reason in reasons(explanation).items() if reason == "HOME"] == homes

    def test_a_new_replica_makes_a_home_if_the_healthy_one_is_on_no_candidate(self) -> None:
        explanation = explained(
            pod("a"), NODES, bound("a"), replica("r1", "vol-a", "n1"), replica("r2", "vol-a", "n2", healthy=False),
            nodes=["n2", "n3"],
        )  # fmt: skip
        assert reasons(explanation) == {"n2": "HOME", "n3": "HOME_ELSEWHERE"}

    def test_a_failed_replica_makes_no_home_if_any_replica_is_healthy(self) -> None:
        """It would have to be rebuilt from the healthy one; it still needs no new space."""
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
    def test_with_a_healthy_replica_a_failed_one_is_kept_only_if_longhorn_reuses_it(self, node: Object) -> None:
        """Otherwise a rebuild needs new space, which a closed node does not give."""
        explanation = explained(
            pod("a"), longhorn_node("n1"), node, longhorn_node("n3"), bound("a", 60),
            replica("r1", "vol-a", "n1", size=60), replica("r2", "vol-a", "n2", failed=True, size=60), nodes=["n2", "n3"],
        )  # fmt: skip
        assert fitting(explanation) == ["n3"]

    def test_a_home_is_refused_if_another_volume_fits_no_disk_of_the_cluster(self) -> None:
        """The pod would return and be stuck, waiting for a volume that cannot be placed."""
        explanation = explained(
            pod("a", "remote"), longhorn_node("n1", {"disk-1": disk(100, listed={"r": 100})}), bound("a"),
            replica("r", "vol-a", "n1"), bound("remote", 50, locality="disabled"),
        )  # fmt: skip
        assert reasons(explanation) == {"n1": "NO_ROOM_IN_CLUSTER"}

    def test_a_healthy_replica_on_a_node_without_the_engine_hides_no_other_home(self) -> None:
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

    def test_a_node_without_the_volume_s_engine_is_no_home(self) -> None:
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
    node = longhorn_node("n1", {"disk-1": disk(allow=False, evict=True), "disk-2": disk(100)})
    explanation = explained(
        pod("a"), node, longhorn_node("n2", 10), bound("a"), replica("r1", "vol-a", "n1", evictionRequested=True)
    )
    assert reasons(explanation) == {"n1": "ROOM", "n2": "INSUFFICIENT_STORAGE"}
    assert explanation.verdicts[0].plan == {"vol-a": "n1-disk-2"}


def test_hard_disk_anti_affinity_closes_the_disk_of_a_deleting_replica() -> None:
    node = longhorn_node("n1", {"disk-1": disk(500)})
    raw = bound("a", replicaDiskSoftAntiAffinity="disabled")
    explanation = explained(pod("a"), node, raw, replica("r1", "vol-a", "n1", deleting=True))
    assert reasons(explanation) == {"n1": "ANTI_AFFINITY"}


def test_soft_disk_anti_affinity_falls_back_to_the_disk_of_the_evicting_replica() -> None:
    node = longhorn_node("n1", {"disk-1": disk(200), "disk-2": disk(60, tags=["ssd"])})
    volumes = [bound("a", 50), bound("b", 60, diskSelector=["ssd"])]
    evicting = replica("r1", "vol-a", "n1", size=50, evictionRequested=True)
    (verdict,) = explained(pod("a", "b"), node, *volumes, evicting).verdicts
    assert verdict.plan == {"vol-a": "n1-disk-1", "vol-b": "n1-disk-2"}
    assert verdict.order_safe is False


def test_the_fallback_of_soft_anti_affinity_can_make_a_node_order_safe() -> None:
    node = longhorn_node("n1", {"disk-1": disk(100), "disk-2": disk(50)})
    evicting = replica("r1", "vol-a", "n1", size=50, evictionRequested=True)
    (verdict,) = explained(pod("a", "b"), node, bound("a", 50), bound("b", 50), evicting).verdicts
    assert (verdict.fits, verdict.order_safe) == (True, True)


@pytest.mark.parametrize("listed", [{}, {"r1": 40}], ids=["not listed yet", "listed"])
def test_a_disk_without_space_is_not_reported_as_anti_affinity(listed: dict[str, float]) -> None:
    node = longhorn_node("n1", {"disk-1": disk(60, listed=listed)})
    evicting = replica("r1", "vol-a", "n1", size=40, evictionRequested=True)
    assert reasons(explained(pod("a"), node, bound("a", 40), evicting)) == {"n1": "INSUFFICIENT_STORAGE"}


class TestStrictLocal:
    """A strict-local volume stays where its replica is."""

    @pytest.mark.parametrize("state", [HEALTHY, NEW, FAILED], ids=["healthy", "new", "failed"])
    def test_a_strict_local_volume_fits_only_on_its_replica_s_node(self, state: dict[str, Any]) -> None:
        explanation = explained(
            pod("a"),
            NODES,
            bound("a", locality="strict-local"),
            replica("r1", "vol-a", "n3", **state),
            nodes=["n1", "n2"],
        )
        assert reasons(explanation) == {"n1": "STRICT_LOCAL_ELSEWHERE", "n2": "STRICT_LOCAL_ELSEWHERE"}

    def test_a_strict_local_volume_without_a_placed_replica_fits_wherever_there_is_space(self) -> None:
        explanation = explained(
            pod("a"),
            longhorn_node("n1", 50),
            longhorn_node("n2"),
            bound("a", locality="strict-local"),
            replica("r1", "vol-a"),
        )
        assert reasons(explanation) == {"n1": "INSUFFICIENT_STORAGE", "n2": "ROOM"}


def test_a_claim_in_use_ties_the_pod_to_the_other_pod_s_node() -> None:
    explanation = explained(
        pod("a"), NODES, bound("a", locality="disabled"), pod("a", name="other", uid="2", node="n2", phase="Running"),
        replica("r1", "vol-a", "n1"),
    )  # fmt: skip
    assert reasons(explanation) == {"n1": "CLAIM_IN_USE", "n2": "ATTACHABLE", "n3": "CLAIM_IN_USE"}
