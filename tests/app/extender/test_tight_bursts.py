"""Bursts on random tight clusters, from kube-scheduler's question to Longhorn's placements, with and without the placement guard."""

from functools import cache

import pytest

from scheduler_core.decide.decision import Packing
from scheduler_core.structs import replace
from tests.e2e import tight_nodes
from tests.e2e.tight_nodes import EXACT, GUARD, ORDER_SAFE, STALE_SAFE, WAYS, Tally
from tests.worlds.placement_bursts import BurstOutcome, Way, run_burst
from tests.worlds.tight_clusters import TightCluster

# In 74 the extender is asked about a pod between an answer of the guard and its watch. In 50 and 63 slow watches let volumes count twice.
SEEDS = (1, 2, 3, 50, 63, 74)
GUARDED = Way(Packing.EXACT, guard=True)
FINE = {name: Tally(clusters=1, usable_nodes=5, placed=10) for name in WAYS} | {EXACT: Tally(1, 5, 1, 10, misplaced=2)}


@cache
def outcome_of(seed: int, way: Way) -> BurstOutcome:
    return run_burst(TightCluster.draw(seed), way)


@pytest.mark.parametrize("watch_seconds", [0.1, 1.0])
@pytest.mark.parametrize("seed", SEEDS)
def test_with_the_guard_nothing_goes_wrong(seed: int, watch_seconds: float) -> None:
    """No volume is misplaced, no pod is stuck, no disk is overbooked, and every placement is confirmed, however far behind watches are."""
    outcome = outcome_of(seed, replace(GUARDED, watch_seconds=watch_seconds))
    assert (outcome.misplaced, outcome.stuck, outcome.overbooked_disks, outcome.overbooked_gi) == (0, 0, 0, 0)
    assert outcome.proven
    assert outcome.changed


@pytest.mark.parametrize("seed", SEEDS)
def test_with_the_guard_more_nodes_are_usable_than_order_safe_ones(seed: int) -> None:
    guarded = outcome_of(seed, GUARDED)
    order_safe = outcome_of(seed, Way(Packing.ORDER_SAFE))
    assert guarded.placed >= order_safe.placed
    assert guarded.usable_nodes >= order_safe.usable_nodes
    assert guarded.usable_nodes == outcome_of(seed, Way(Packing.EXACT)).usable_nodes


def test_auto_is_exact_while_the_guard_is_proven() -> None:
    assert outcome_of(1, Way(Packing.AUTO, guard=True)) == outcome_of(1, GUARDED)


def test_without_the_guard_disks_are_overbooked() -> None:
    """Otherwise these bursts would prove nothing."""
    assert outcome_of(1, Way(Packing.EXACT)).overbooked_gi
    assert outcome_of(1, Way(Packing.ORDER_SAFE)).overbooked_gi
    assert not outcome_of(1, Way(Packing.STALE_SAFE)).wrong


def test_a_burst_is_the_same_each_time() -> None:
    assert run_burst(TightCluster.draw(2), GUARDED) == outcome_of(2, GUARDED)


@pytest.mark.parametrize("seed", SEEDS)
def test_pods_need_more_than_a_tight_cluster_has(seed: int) -> None:
    cluster = TightCluster.draw(seed)
    disks = [disk for node in cluster.nodes.values() for disk in node]
    assert 8 <= len(cluster.nodes) <= 12
    assert all(0.59 <= disk.booked / disk.size <= 0.96 for disk in disks)
    assert sum(claim.size for pod in cluster.pods.values() for claim in pod) >= sum(disk.free for disk in disks)


def test_the_report_accepts_what_is_expected() -> None:
    assert tight_nodes.failures(FINE) == []


@pytest.mark.parametrize(
    ("way", "tally"),
    [
        (GUARD, Tally(1, 5, 1, 10, overbooked_disks=1)),
        (GUARD, Tally(1, 5, 1, 10, unproven=1)),
        (GUARD, Tally(1, 5, 1, 9)),
        (STALE_SAFE, Tally(1, 5, 1, 10, stuck=1)),
        (ORDER_SAFE, Tally(1, 5, 1, 11)),
        (EXACT, Tally(1, 5, 1, 10)),
    ],
)
def test_the_report_fails_if_something_else_happens(way: str, tally: Tally) -> None:
    assert tight_nodes.failures(FINE | {way: tally})
