"""What holds for every cluster: order of input, more space, agreement of the parts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler_core.longhorn.anti_affinity import Tier
from scheduler_core.longhorn.cluster import Cluster
from scheduler_core.longhorn.disk_stage import disk_and_space_refusal
from scheduler_core.longhorn.explain import explain
from scheduler_core.longhorn.new_volume import create_volume
from scheduler_core.longhorn.node_stage import node_refusal
from scheduler_core.longhorn.placement import find_candidates, schedule_replica, uncounted_bytes
from scheduler_core.longhorn.replica_request import ReplicaRequest
from scheduler_core.longhorn.settings import Settings
from scheduler_core.longhorn.space import disk_space, minimal_available, scheduling_limit, space_refusal
from scheduler_core.model import longhorn as lh
from scheduler_core.model.snapshot import Snapshot
from tests.worlds.longhorn import GIB, LONG_AGO, NOW, conditions, disk, node, replica, volume

NAMES = ("n1", "n2", "n3")
SIZES = st.integers(-1, 120).map(lambda size: size * GIB)
FLAGS = st.sampled_from(["true", "true", "false"])
BOOLEANS = (
    "replica-soft-anti-affinity",
    "replica-zone-soft-anti-affinity",
    "replica-disk-soft-anti-affinity",
    "allow-empty-node-selector-volume",
    "allow-empty-disk-selector-volume",
)
MOSTLY = st.sampled_from([True, True, True, False])
TAGS = st.sampled_from([(), (), ("ssd",), ("ssd", "fast")])
EXAMPLES = settings(max_examples=60, deadline=None)


@st.composite
def disks(draw: st.DrawFn, name: str) -> lh.Disk:
    """A disk, usually open."""
    return disk(
        name,
        allow_scheduling=draw(MOSTLY),
        tags=draw(TAGS),
        storage_available=draw(SIZES),
        storage_scheduled=draw(SIZES),
        storage_reserved=draw(st.sampled_from([0, 0, 30 * GIB])),
        conditions=conditions(Schedulable=draw(st.sampled_from(["True", "True", "False"]))),
    )


@st.composite
def nodes(draw: st.DrawFn, name: str) -> lh.Node:
    """A node with one or two disks in one of two zones, usually open."""
    own = [draw(disks(f"d{index}")) for index in range(1, draw(st.integers(1, 2)) + 1)]
    ready = draw(st.sampled_from(["True", "True", "True", "False"]))
    zone = draw(st.sampled_from(["a", "b"]))
    return node(name, *own, zone=zone, tags=draw(TAGS), conditions=conditions(Ready=ready))


@st.composite
def replicas(draw: st.DrawFn, name: str) -> lh.Replica:
    """A placed replica in one of the states that matter."""
    states: list[dict[str, Any]] = [{}, {}, {"failed_at": LONG_AGO}, {"eviction_requested": True}, {"deleting": True}]
    place = f"{draw(st.sampled_from(NAMES))}/d{draw(st.integers(1, 2))}"
    return replica(name, place, **draw(st.sampled_from(states)))


@st.composite
def clusters(draw: st.DrawFn, *, placed: bool = True) -> tuple[Cluster, lh.Volume]:
    """A cluster of up to three nodes and a volume, with some replicas of it if `placed`."""
    entry = volume(
        size=draw(st.integers(1, 60)) * GIB,
        number_of_replicas=draw(st.integers(1, 3)),
        node_selector=draw(TAGS),
        disk_selector=draw(TAGS),
        data_locality=draw(st.sampled_from(["disabled", "best-effort"])),
        node_id=draw(st.sampled_from(["", "n1"])),
    )
    found = [draw(nodes(name)) for name in draw(st.sets(st.sampled_from(NAMES), min_size=1))]
    own = [draw(replicas(f"r{index}")) for index in range(draw(st.integers(0, 3)))] if placed else []
    snapshot = Snapshot(
        longhorn_nodes={each.name: each for each in found},
        volumes={entry.name: entry},
        replicas={each.name: each for each in own},
    )
    values = {name: draw(FLAGS) for name in BOOLEANS}
    values["replica-auto-balance"] = draw(st.sampled_from(["disabled", "best-effort"]))
    return Cluster.of(snapshot, NOW, Settings.read(values)), entry


def turned(cluster: Cluster) -> Cluster:
    """The same objects, listed the other way round."""
    snapshot = cluster.snapshot
    other = replace(
        snapshot,
        longhorn_nodes=dict(reversed(list(snapshot.longhorn_nodes.items()))),
        replicas=dict(reversed(list(snapshot.replicas.items()))),
    )
    return Cluster.of(other, cluster.now, cluster.settings)


def roomier(cluster: Cluster, extra: int) -> Cluster:
    """The same cluster with so many bytes more available and less scheduled on every disk."""
    return cluster.with_nodes(
        replace(
            entry,
            disks=tuple(
                replace(
                    each,
                    storage_available=each.storage_available + extra,
                    storage_scheduled=each.storage_scheduled - extra,
                )
                for each in entry.disks
            ),
        )
        for entry in cluster.nodes.values()
    )


@EXAMPLES
@given(clusters())
def test_the_order_of_the_input_does_not_matter(case: tuple[Cluster, lh.Volume]) -> None:
    """Candidates, choices, outcomes and explanation are equal for shuffled input."""
    cluster, entry = case
    other = turned(cluster)
    own, turned_own = cluster.replicas_of(entry.name), tuple(reversed(other.replicas_of(entry.name)))
    pending = replica("new", size=entry.size)
    assert explain(cluster, ReplicaRequest.for_volume(entry), own) == explain(
        other, ReplicaRequest.for_volume(entry), turned_own
    )
    assert schedule_replica(cluster, entry, pending, own) == schedule_replica(other, entry, pending, turned_own)
    assert create_volume(cluster, entry) == create_volume(other, entry)


@EXAMPLES
@given(clusters(placed=False), st.integers(0, 50))
def test_more_space_never_removes_a_candidate(case: tuple[Cluster, lh.Volume], extra: int) -> None:
    """For a volume without replicas all nodes are alike, so more space only adds disks."""
    cluster, entry = case
    request = ReplicaRequest.for_volume(entry)
    before = {each.disk_uuid for each in find_candidates(cluster, request, ()).disks}
    after = {each.disk_uuid for each in find_candidates(roomier(cluster, extra * GIB), request, ()).disks}
    assert before <= after


@EXAMPLES
@given(clusters())
def test_candidates_pass_every_rule(case: tuple[Cluster, lh.Volume]) -> None:
    """Asked one by one, no rule refuses a candidate, but for the node tags a used node is spared."""
    cluster, entry = case
    request, own = ReplicaRequest.for_volume(entry), cluster.replicas_of(entry.name)
    found = find_candidates(cluster, request, own)
    for each in found.disks:
        pending = uncounted_bytes(each.node, each.disk, own)
        assert disk_and_space_refusal(cluster, request, each.node, each.disk, pending) is None
        assert found.tier is Tier.USED_NODE or node_refusal(cluster, request, each.node) is None


@EXAMPLES
@given(clusters())
def test_the_explanation_agrees_with_the_candidates(case: tuple[Cluster, lh.Volume]) -> None:
    """What it leaves open is exactly what Longhorn may use."""
    cluster, entry = case
    found = explain(cluster, ReplicaRequest.for_volume(entry), cluster.replicas_of(entry.name))
    open_disks = {
        each.disk.uuid
        for each_node in found.nodes
        if each_node.refusal is None
        for each in each_node.disks
        if each.refusal is None
    }
    assert open_disks == {each.disk_uuid for each in found.candidates.disks}


@EXAMPLES
@given(clusters())
def test_choices_are_candidates(case: tuple[Cluster, lh.Volume]) -> None:
    """Something is chosen if and only if there is a candidate; a certain choice is the only one."""
    cluster, entry = case
    own = cluster.replicas_of(entry.name)
    candidates = find_candidates(cluster, ReplicaRequest.for_volume(entry), own).disks
    found = schedule_replica(cluster, entry, replica("new", size=entry.size), own).choices
    assert {choice.candidate.disk_uuid for choice in found} <= {each.disk_uuid for each in candidates}
    assert bool(found) == bool(candidates)
    assert len(found) == 1 or all(choice.reason.chance for choice in found)


@EXAMPLES
@given(clusters(placed=False))
def test_a_new_volume_keeps_to_its_own_rules(case: tuple[Cluster, lh.Volume]) -> None:
    """Every outcome accounts for all replicas, and hard anti-affinity holds in it."""
    cluster, entry = case
    for outcome in create_volume(cluster, entry):
        used = [name for name, _ in outcome.placements]
        assert len(used) + outcome.unscheduled == outcome.replicas
        assert cluster.settings.replica_soft_anti_affinity or len(used) == len(set(used))


@given(
    size=st.integers(0, 2**62),
    required=st.integers(0, 2**62),
    fields=st.fixed_dictionaries(
        {
            "storage_maximum": st.integers(-(2**40), 2**55),
            "storage_available": st.integers(-(2**40), 2**55),
            "storage_scheduled": st.integers(0, 2**56),
            "storage_reserved": st.integers(0, 2**55),
        }
    ),
    over=st.integers(0, 1000),
    minimal=st.integers(0, 100),
)
def test_the_space_rules_are_longhorns(  # one value each
    size: int, required: int, fields: dict[str, Any], over: int, minimal: int
) -> None:
    """The space of a disk says the same as Longhorn's two conditions written out."""
    entry = disk(**fields)
    values = Settings(storage_over_provisioning_percentage=over, storage_minimal_available_percentage=minimal)
    fits = (
        entry.storage_maximum > 0
        and entry.storage_available > 0
        and entry.storage_available - required > minimal_available(entry, values)
        and size + entry.storage_scheduled <= scheduling_limit(entry, values)
    )
    assert (space_refusal(size, required, disk_space(entry, values)) is None) is fits
