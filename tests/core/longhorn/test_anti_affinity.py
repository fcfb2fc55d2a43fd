"""Anti-affinity: which replicas count where, the order of the tiers, and the disk rule."""

from typing import Any

import pytest

from scheduler_core.longhorn.anti_affinity import SoftAntiAffinity, Tier
from scheduler_core.longhorn.placement import DiskCandidates, find_candidates
from scheduler_core.longhorn.replica_request import ReplicaRequest
from scheduler_core.longhorn.settings import Settings
from scheduler_core.model import longhorn as lh
from tests.worlds.longhorn import GIB, LONG_AGO, cluster, conditions, disk, failed, node, places, replica, volume

ZONE_HARD = {"replica-zone-soft-anti-affinity": "false"}
NODE_SOFT = {"replica-soft-anti-affinity": "true"}
DISK_HARD = {"replica-disk-soft-anti-affinity": "false"}
BEST_EFFORT = {"replica-auto-balance": "best-effort"}


def find_next(
    *nodes: lh.Node, replicas: list[lh.Replica], settings: dict[str, str] | None = None, **volume_fields: Any
) -> DiskCandidates:
    entry = volume(**volume_fields)
    view = cluster(*nodes, volumes=[entry], replicas=replicas, settings=settings)
    return find_candidates(view, ReplicaRequest.for_volume(entry), replicas)


@pytest.mark.parametrize(
    ("value", "setting", "expected"),
    [
        pytest.param("", True, True, id="empty leaves the setting"),
        pytest.param("ignored", False, False, id="ignored leaves the setting"),
        pytest.param("enabled", False, True, id="enabled"),
        pytest.param("disabled", True, False, id="disabled"),
        pytest.param("Enabled", True, False, id="anything else is false"),
    ],
)
def test_the_volume_overrides_the_setting(value: str, setting: bool, expected: bool) -> None:
    settings = Settings(
        replica_soft_anti_affinity=setting,
        replica_zone_soft_anti_affinity=setting,
        replica_disk_soft_anti_affinity=setting,
    )
    fields = ("replica_soft_anti_affinity", "replica_zone_soft_anti_affinity", "replica_disk_soft_anti_affinity")
    volume_fields: dict[str, Any] = dict.fromkeys(fields, value)
    soft = SoftAntiAffinity.of(volume(**volume_fields), settings)
    assert soft == SoftAntiAffinity(expected, expected, expected)


class TestCounting:
    """Some replicas use their node and zone; n1 and n2 share a zone, which is hard."""

    @pytest.mark.parametrize(
        ("entry", "counts"),
        [
            pytest.param(replica("r", "n1/d1"), True, id="healthy"),
            pytest.param(replica("r", "n1/d1", healthy_at=""), True, id="rebuilding"),
            pytest.param(replica("r", "n1/d1", deleting=True), False, id="deleting"),
            pytest.param(failed("r", "n1/d1"), True, id="failed but reusable"),
            pytest.param(failed("r", "n1/d1", rebuild_retry_count=4), True, id="four retries"),
            pytest.param(failed("r", "n1/d1", rebuild_retry_count=5), False, id="five retries"),
            pytest.param(failed("r", "n1/d1", eviction_requested=True), False, id="failed and evicting"),
            pytest.param(failed("r", "n1/d1", disk_id=""), False, id="failed without disk"),
            pytest.param(replica("r"), False, id="unplaced"),
        ],
    )
    def test_a_replica_uses_its_node_and_zone_unless_it_cannot_come_back(self, entry: lh.Replica, counts: bool) -> None:
        """Failed replicas that may be reused count."""
        result = find_next(node("n1", zone="a"), node("n2", zone="a"), replicas=[entry], settings=ZONE_HARD)
        assert ("n2/d1" not in places(result)) is counts

    @pytest.mark.parametrize(
        "fields",
        [
            pytest.param({"conditions": conditions(Schedulable="False")}, id="cordoned"),
            pytest.param({"conditions": conditions(Ready="False")}, id="not ready"),
            pytest.param({"allow_scheduling": False}, id="scheduling disabled"),
        ],
    )
    def test_a_node_that_is_no_candidate_frees_its_zone(self, fields: dict[str, Any]) -> None:
        closed = node("n1", zone="a", **fields)
        result = find_next(closed, node("n2", zone="a"), replicas=[replica("r", "n1/d1")], settings=ZONE_HARD)
        assert places(result) == ["n2/d1"]

    def test_a_node_with_closed_disks_still_uses_its_zone(self) -> None:
        closed = node("n1", disk(allow_scheduling=False), zone="a")
        result = find_next(closed, node("n2", zone="a"), replicas=[replica("r", "n1/d1")], settings=ZONE_HARD)
        assert places(result) == []

    @pytest.mark.parametrize(
        ("since", "replenished"),
        [
            pytest.param("2025-12-31T23:49:59Z", True, id="+1 s"),
            pytest.param("2025-12-31T23:50:00Z", True, id="equal"),
            pytest.param("2025-12-31T23:50:01Z", False, id="-1 s"),
        ],
    )
    def test_failed_replicas_stop_counting_when_the_wait_runs_out(self, since: str, replenished: bool) -> None:
        """After 600 s of degradation the failed replica's node may be used again, on another disk if possible."""
        result = find_next(
            node("n1", disk("d1"), disk("d2")),
            replicas=[failed("r", "n1/d1")],
            robustness="degraded",
            last_degraded_at=since,
        )
        assert places(result) == (["n1/d2"] if replenished else [])

    def test_an_unreadable_degradation_time_refuses_every_node(self) -> None:
        result = find_next(node("n1"), replicas=[], robustness="degraded", last_degraded_at="yesterday")
        assert result.reasons == {"longhorn client operation failed"}


class TestEviction:
    """Nodes that only hold evicting replicas are reopened last."""

    def test_an_evicting_replica_still_uses_its_node(self) -> None:
        evicting = replica("r", "n1/d1", eviction_requested=True)
        result = find_next(node("n1", zone="a"), node("n2", zone="a"), replicas=[evicting])
        assert places(result) == ["n2/d1"]

    def test_the_node_of_an_evicting_replica_is_the_last_resort(self) -> None:
        evicting = replica("r", "n1/d1", eviction_requested=True)
        result = find_next(node("n1", disk("d1"), disk("d2")), replicas=[evicting])
        assert (places(result), result.tier) == (["n1/d2"], Tier.EVICTING_NODE)

    def test_a_node_where_a_second_replica_stays_is_not_reopened(self) -> None:
        both = [replica("r", "n1/d1", eviction_requested=True), replica("s", "n1/d2")]
        assert places(find_next(node("n1", disk("d1"), disk("d2"), disk("d3")), replicas=both)) == []

    def test_with_hard_zones_the_whole_zone_must_be_evicting(self) -> None:
        nodes = [node("n1", disk("d1"), disk("d2"), zone="a"), node("n2", zone="a")]
        evicting = replica("r", "n1/d1", eviction_requested=True)
        assert places(find_next(*nodes, replicas=[evicting, replica("s", "n2/d1")], settings=ZONE_HARD)) == []
        assert places(find_next(*nodes, replicas=[evicting], settings=ZONE_HARD)) == ["n1/d2"]

    def test_best_effort_balance_ignores_the_zone(self) -> None:
        nodes = [node("n1", disk("d1"), disk("d2"), zone="a"), node("n2", zone="a")]
        replicas = [replica("r", "n1/d1", eviction_requested=True), replica("s", "n2/d1")]
        assert places(find_next(*nodes, replicas=replicas, settings={**ZONE_HARD, **BEST_EFFORT})) == ["n1/d2"]


class TestPressure:
    """Best-effort auto-balance reopens a used node one of whose disks is under pressure."""

    PRESSED = (disk("d1", storage_available=5 * GIB), disk("d2"))

    def test_a_node_with_a_disk_under_pressure_is_reopened(self) -> None:
        """So that a replica can move to the node's other disk."""
        result = find_next(node("n1", *self.PRESSED), replicas=[replica("r", "n1/d1")], settings=BEST_EFFORT)
        assert (places(result), result.tier) == (["n1/d2"], Tier.UNUSED_NODE)

    def test_the_volume_s_own_balance_field_counts(self) -> None:
        result = find_next(
            node("n1", *self.PRESSED),
            replicas=[replica("r", "n1/d1")],
            settings=BEST_EFFORT,
            replica_auto_balance="least-effort",
        )
        assert places(result) == []

    def test_percentage_zero_means_no_pressure(self) -> None:
        settings = {**BEST_EFFORT, "replica-auto-balance-disk-pressure-percentage": "0"}
        assert places(find_next(node("n1", *self.PRESSED), replicas=[replica("r", "n1/d1")], settings=settings)) == []


class TestDisks:
    """Within a tier, disks without a replica of the volume come first."""

    NODE = node("n1", disk("d1"), disk("d2"))

    @pytest.mark.parametrize(
        "entry",
        [
            pytest.param(replica("s", "n1/d1", deleting=True), id="deleting"),
            pytest.param(failed("s", "n1/d1"), id="failed but reusable"),
            pytest.param(replica("s", "n1/d1", eviction_requested=True), id="evicting"),
        ],
    )
    def test_a_replica_holds_its_disk_even_if_it_does_not_use_its_node(self, entry: lh.Replica) -> None:
        assert places(find_next(self.NODE, replicas=[entry], settings=NODE_SOFT)) == ["n1/d2"]

    def test_a_failed_replica_that_cannot_come_back_does_not_hold_its_disk(self) -> None:
        entry = failed("s", "n1/d1", rebuild_retry_count=5)
        assert places(find_next(self.NODE, replicas=[entry])) == ["n1/d1", "n1/d2"]

    def test_soft_disks_take_a_second_replica(self) -> None:
        result = find_next(node("n1"), replicas=[replica("r", "n1/d1")], settings=NODE_SOFT)
        assert places(result) == ["n1/d1"]

    def test_hard_disks_take_no_second_replica(self) -> None:
        result = find_next(node("n1"), replicas=[replica("r", "n1/d1")], settings={**NODE_SOFT, **DISK_HARD})
        assert result == DiskCandidates()

    def test_a_replica_past_the_wait_still_holds_its_disk(self) -> None:
        result = find_next(
            node("n1"),
            replicas=[failed("r", "n1/d1")],
            settings=DISK_HARD,
            robustness="degraded",
            last_degraded_at=LONG_AGO,
        )
        assert places(result) == []
