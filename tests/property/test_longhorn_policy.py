"""Longhorn's placement holds to these rules on every cluster."""

from typing import Any

from hypothesis import given, strategies as st

from scheduler_core.longhorn.anti_affinity import Tier
from scheduler_core.longhorn.cluster import Cluster
from scheduler_core.longhorn.new_volume_placement import create_volume, explain
from scheduler_core.longhorn.placement import find_candidates, schedule_replica, uncounted_bytes
from scheduler_core.longhorn.replica_request import ReplicaRequest
from scheduler_core.longhorn.settings import Settings
from scheduler_core.longhorn.space import disk_space, minimal_available, scheduling_limit, space_refusal
from scheduler_core.longhorn.stages import disk_and_space_refusal, node_refusal
from scheduler_core.model import longhorn as lh
from scheduler_core.model.snapshot import Snapshot
from scheduler_core.structs import replace
from tests.examples import examples
from tests.worlds.longhorn import GIB, LONG_AGO, NOW, conditions, disk, node, replica, volume

NODE_NAMES = ("n1", "n2", "n3")
sizes = st.integers(-1, 120).map(lambda size: size * GIB)
booleans = st.sampled_from(["true", "true", "false"])
BOOLEANS = (
    "replica-soft-anti-affinity",
    "replica-zone-soft-anti-affinity",
    "replica-disk-soft-anti-affinity",
    "allow-empty-node-selector-volume",
    "allow-empty-disk-selector-volume",
)
mostly_true = st.sampled_from([True, True, True, False])
tag_sets = st.sampled_from([(), (), ("ssd",), ("ssd", "fast")])
EXAMPLES = examples(60)


@st.composite
def disks(draw: st.DrawFn, name: str) -> lh.Disk:
    """A disk that is usually open."""
    return disk(
        name,
        allow_scheduling=draw(mostly_true),
        tags=draw(tag_sets),
        storage_available=draw(sizes),
        storage_scheduled=draw(sizes),
        storage_reserved=draw(st.sampled_from([0, 0, 30 * GIB])),
        conditions=conditions(Schedulable=draw(st.sampled_from(["True", "True", "False"]))),
    )


@st.composite
def nodes(draw: st.DrawFn, name: str) -> lh.Node:
    node_disks = [draw(disks(f"d{index}")) for index in range(1, draw(st.integers(1, 2)) + 1)]
    ready = draw(st.sampled_from(["True", "True", "True", "False"]))
    zone = draw(st.sampled_from(["a", "b"]))
    return node(name, *node_disks, zone=zone, tags=draw(tag_sets), conditions=conditions(Ready=ready))


@st.composite
def replicas(draw: st.DrawFn, name: str) -> lh.Replica:
    states: list[dict[str, Any]] = [{}, {}, {"failed_at": LONG_AGO}, {"eviction_requested": True}, {"deleting": True}]
    place = f"{draw(st.sampled_from(NODE_NAMES))}/d{draw(st.integers(1, 2))}"
    return replica(name, place, **draw(st.sampled_from(states)))


@st.composite
def clusters(draw: st.DrawFn, *, with_replicas: bool = True) -> tuple[Cluster, lh.Volume]:
    """A cluster of up to three nodes, and a volume with or without replicas."""
    entry = volume(
        size=draw(st.integers(1, 60)) * GIB,
        number_of_replicas=draw(st.integers(1, 3)),
        node_selector=draw(tag_sets),
        disk_selector=draw(tag_sets),
        data_locality=draw(st.sampled_from(["disabled", "best-effort"])),
        node_id=draw(st.sampled_from(["", "n1"])),
    )
    longhorn_nodes = [draw(nodes(name)) for name in draw(st.sets(st.sampled_from(NODE_NAMES), min_size=1))]
    own_replicas = [draw(replicas(f"r{index}")) for index in range(draw(st.integers(0, 3)))] if with_replicas else []
    snapshot = Snapshot(
        longhorn_nodes={each.name: each for each in longhorn_nodes},
        volumes={entry.name: entry},
        replicas={each.name: each for each in own_replicas},
    )
    values = {name: draw(booleans) for name in BOOLEANS}
    values["replica-auto-balance"] = draw(st.sampled_from(["disabled", "best-effort"]))
    return Cluster.of(snapshot, NOW, Settings.read(values)), entry


def reverse(cluster: Cluster) -> Cluster:
    """The same objects, listed in reverse order."""
    snapshot = cluster.snapshot
    reversed_snapshot = replace(
        snapshot,
        longhorn_nodes=dict(reversed(list(snapshot.longhorn_nodes.items()))),
        replicas=dict(reversed(list(snapshot.replicas.items()))),
    )
    return Cluster.of(reversed_snapshot, cluster.now, cluster.settings)


def with_more_space(cluster: Cluster, extra: int) -> Cluster:
    """The same cluster with so many bytes more available, and fewer scheduled, on every disk."""
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
    """Candidates, choices, outcomes and explanation are equal for reversed input."""
    cluster, entry = case
    reversed_cluster = reverse(cluster)
    own_replicas = cluster.replicas_of(entry.name)
    reversed_replicas = tuple(reversed(reversed_cluster.replicas_of(entry.name)))
    pending = replica("new", size=entry.size)
    assert explain(cluster, ReplicaRequest.for_volume(entry), own_replicas) == explain(
        reversed_cluster, ReplicaRequest.for_volume(entry), reversed_replicas
    )
    assert schedule_replica(cluster, entry, pending, own_replicas) == schedule_replica(
        reversed_cluster, entry, pending, reversed_replicas
    )
    assert create_volume(cluster, entry) == create_volume(reversed_cluster, entry)


@EXAMPLES
@given(clusters(with_replicas=False), st.integers(0, 50))
def test_more_space_never_removes_a_candidate(case: tuple[Cluster, lh.Volume], extra: int) -> None:
    """Without replicas of the volume all nodes are in one tier."""
    cluster, entry = case
    request = ReplicaRequest.for_volume(entry)
    before = {each.disk_uuid for each in find_candidates(cluster, request, ()).disks}
    after = {each.disk_uuid for each in find_candidates(with_more_space(cluster, extra * GIB), request, ()).disks}
    assert before <= after


@EXAMPLES
@given(clusters(), clusters())
def test_what_is_known_of_nodes_changes_no_answer(
    case: tuple[Cluster, lh.Volume], later: tuple[Cluster, lh.Volume]
) -> None:
    """Volumes, nodes and settings differ from one placement to the next."""
    versions = [case[0], replace(later[0], known_nodes=case[0].known_nodes)]
    for cluster in (*versions, *versions):
        for entry in (case[1], later[1]):
            own_replicas = cluster.replicas_of(entry.name)
            request = ReplicaRequest.for_volume(entry)
            alone = replace(cluster, known_nodes={})
            assert find_candidates(cluster, request, own_replicas) == find_candidates(alone, request, own_replicas)


@EXAMPLES
@given(clusters())
def test_candidates_pass_every_rule_and_are_what_is_explained_and_chosen(case: tuple[Cluster, lh.Volume]) -> None:
    """Except the node tags on a node that is used already."""
    cluster, entry = case
    request = ReplicaRequest.for_volume(entry)
    own_replicas = cluster.replicas_of(entry.name)
    candidates = find_candidates(cluster, request, own_replicas)
    for each in candidates.disks:
        pending = uncounted_bytes(each.node, each.disk, own_replicas)
        assert disk_and_space_refusal(cluster, request, each.disk, pending) is None
        assert candidates.tier is Tier.USED_NODE or node_refusal(cluster, request, each.node) is None
    explanation = explain(cluster, request, own_replicas)
    open_nodes = [each for each in explanation.nodes if each.refusal is None]
    uuids = {each.disk_uuid for each in candidates.disks}
    assert uuids == {each.disk_uuid for each in explanation.candidates.disks}
    assert uuids == {each.disk.uuid for node in open_nodes for each in node.disks if each.refusal is None}
    choices = schedule_replica(cluster, entry, replica("new", size=entry.size), own_replicas).choices
    assert {choice.candidate.disk_uuid for choice in choices} <= uuids
    assert bool(choices) == bool(uuids)
    assert len(choices) == 1 or all(choice.reason.chance for choice in choices)


@EXAMPLES
@given(clusters(with_replicas=False))
def test_a_new_volume_keeps_hard_anti_affinity(case: tuple[Cluster, lh.Volume]) -> None:
    """Every outcome accounts for all replicas."""
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
def test_the_space_rules_are_longhorn_s_two_conditions(  # one value each
    size: int, required: int, fields: dict[str, Any], over: int, minimal: int
) -> None:
    """They are written out here."""
    entry = disk(**fields)
    values = Settings(storage_over_provisioning_percentage=over, storage_minimal_available_percentage=minimal)
    fits = (
        entry.storage_maximum > 0
        and entry.storage_available > 0
        and entry.storage_available - required > minimal_available(entry, values)
        and size + entry.storage_scheduled <= scheduling_limit(entry, values)
    )
    assert (space_refusal(size, required, disk_space(entry, values)) is None) is fits
