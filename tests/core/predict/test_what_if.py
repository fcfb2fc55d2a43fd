"""What-if: what becomes of pods, replicas and disks after each change."""

import random
from functools import partial
from typing import Any

import pytest

from scheduler_core.decide.decision import FilterOptions
from scheduler_core.errors import CoreError
from scheduler_core.longhorn.node_controller import ROUNDING
from scheduler_core.model import kube
from scheduler_core.predict.cluster_additions import add_disk, add_nodes, apply_objects, scale
from scheduler_core.predict.cluster_changes import drain, expand, lose_disk, lose_nodes, lose_zone, set_setting
from scheduler_core.predict.prediction import Certainty
from scheduler_core.predict.prediction_input import Change
from scheduler_core.predict.timeline import run_order
from tests.builders import (
    GI,
    Object,
    csi_node,
    disk,
    ephemeral_spec,
    kube_node,
    longhorn_node,
    replica,
    setting,
    storage_class,
    volume,
)
from tests.worlds.predicted_clusters import (
    after,
    gibibytes,
    node,
    outcome_of,
    owned_pod,
    play,
    prediction,
    running,
    situation,
    workload,
)

POLICY = "node-drain-policy"


def test_a_drained_pod_moves_with_its_replica() -> None:
    cluster = situation(node("a", listed={"db-0-a": 30}), node("b"), running("db-0", "a"))
    result = prediction(cluster, partial(drain, nodes=("a",)))
    assert outcome_of(result, "db-0").nodes == {"b": 10}
    assert [(entry.node, entry.before, entry.most) for entry in result.disks] == [
        ("a", gibibytes(30), 0),
        ("b", 0, gibibytes(30)),
    ]
    assert result.copied_bytes == (gibibytes(30), gibibytes(30))
    # A local replica is rebuilt without a wait.
    assert (result.succeeds, result.rebuild_wait) == (True, 0)
    (end,) = play(after(cluster, partial(drain, nodes=("a",))), 1)
    nodes = end.cluster.state.view.cluster.nodes
    available = {name: nodes[name].disks[0].storage_available for name in nodes}
    assert available == {"a": gibibytes(100), "b": gibibytes(70) - gibibytes(70) % ROUNDING}


def test_a_pod_without_room_waits_and_holds_up_the_drain() -> None:
    cluster = situation(node("a", listed={"db-0-a": 30}), node("b", 20), running("db-0", "a"))
    result = prediction(cluster, partial(drain, nodes=("a",)))
    assert outcome_of(result, "db-0").outcome is Certainty.NEVER
    assert list(outcome_of(result, "db-0").reasons) == [
        "Longhorn disks have too little available space (1 node), node is unschedulable (1 node)"
    ]
    (drained,) = result.drains
    assert drained.outcome is Certainty.NEVER
    assert list(drained.blockers) == ["a holds the last healthy replica of volume vol-data-db-0"]


def test_the_order_decides_who_waits() -> None:
    objects = (running("db-0", "a"), running("cache-0", "a"))
    listed = {"db-0-a": 30.0, "cache-0-a": 30.0}
    result = prediction(
        situation(node("a", listed=listed), node("b", 50), *objects), partial(drain, nodes=("a",)), orders=20
    )
    outcomes = [outcome_of(result, name) for name in ("db-0", "cache-0")]
    assert [outcome.outcome for outcome in outcomes] == [Certainty.USUALLY, Certainty.USUALLY]
    assert sum(outcome.placed for outcome in outcomes) == 20
    assert outcomes[0].unlucky_order == (("default/cache-0", "b"),)


@pytest.mark.parametrize(
    ("policy", "finishes"),
    [
        ("block-if-contains-last-replica", False),
        ("allow-if-replica-is-stopped", True),
        ("always-allow", True),
        ("block-for-eviction", True),
        ("block-for-eviction-if-contains-last-replica", True),
    ],
)
def test_the_drain_policy_decides_about_the_last_replica(policy: str, finishes: bool) -> None:
    objects = running("db-0", "a", locality="disabled")
    for entry in objects:
        if entry["kind"] == "Volume":
            entry["spec"]["nodeID"] = ""
            entry["status"] |= {"state": "detached", "currentNodeID": ""}
    detached = [entry for entry in objects if entry["kind"] != "Pod"]
    cluster = situation(node("a", listed={"db-0-a": 30}), node("b"), detached, setting(POLICY, policy))
    result = prediction(cluster, partial(drain, nodes=("a",)))
    assert (result.drains[0].outcome is Certainty.ALWAYS) is finishes
    moved = policy.startswith("block-for-eviction")
    assert result.copied_bytes[0] == (gibibytes(30) if moved else 0)


@pytest.mark.parametrize(
    ("settings", "seconds"),
    [
        pytest.param([], 601, id="by default"),
        pytest.param([setting("replica-replenishment-wait-interval", "30")], 31, id="as set"),
        pytest.param([setting("replica-replenishment-wait-interval", "0")], 0, id="no wait"),
    ],
)
def test_a_second_replica_lets_the_drain_finish_and_is_rebuilt_when_the_wait_has_run_out(
    settings: list[Object], seconds: int
) -> None:
    replicas = running("db-0", "b", replicas=["a", "b"], locality="disabled")
    nodes = (node("a", listed={"db-0-a": 30.0}), node("b", listed={"db-0-b": 30.0}), node("c"))
    result = prediction(situation(*nodes, replicas, settings), partial(drain, nodes=("a",)))
    assert result.drains[0].outcome is Certainty.ALWAYS
    assert [(entry.least_healthy, entry.incomplete, entry.rebuild_after_seconds) for entry in result.volumes] == [
        (1, 0, seconds)
    ]
    assert result.rebuild_wait == seconds
    assert [(entry.node, entry.most) for entry in result.disks] == [("c", gibibytes(30))]


def test_replicas_that_are_rebuilt_at_once_may_overfill_a_disk() -> None:
    cluster = situation(
        node("a", listed={"db-0-a": 30.0, "db-1-a": 30.0}),
        node("b", 200, listed={"db-0-b": 30.0, "db-1-b": 30.0}),
        node("c", 50),
        running("db-0", "b", replicas=["b", "a"], locality="disabled"),
        running("db-1", "b", replicas=["b", "a"], locality="disabled"),
    )
    result = prediction(cluster, partial(drain, nodes=("a",)), orders=30)
    assert [(entry.node, entry.least, entry.most) for entry in result.disks] == [("c", gibibytes(30), gibibytes(60))]


def test_a_pod_waits_for_its_volumes_where_longhorns_csi_driver_is_not_registered() -> None:
    cluster = situation(
        node("a"), node("b"), csi_node("a", "driver.longhorn.io"), running("db-0", "a"), running("db-1", "b")
    )
    outcome = outcome_of(prediction(cluster, partial(drain, nodes=("a",))), "db-0")
    assert (outcome.outcome, dict(outcome.nodes)) == (Certainty.NEVER, {"b": 10})
    assert list(outcome.reasons) == ["Longhorn's CSI driver is not registered on the node (b)"]
    assert outcome_of(prediction(cluster, partial(drain, nodes=("b",))), "db-1").outcome is Certainty.ALWAYS
    added = prediction(cluster, partial(add_nodes, like="a"), partial(drain, nodes=("a", "b")))
    assert {outcome_of(added, name).outcome for name in ("db-0", "db-1")} == {Certainty.ALWAYS}


def test_where_no_csi_node_is_known_one_that_is_applied_changes_nothing() -> None:
    cluster = situation(node("a"), node("b"), running("db-0", "a"))
    apply = partial(apply_objects, objects={("csi_nodes", "a"): frozenset({"driver.longhorn.io"})})
    assert outcome_of(prediction(cluster, apply, partial(drain, nodes=("a",))), "db-0").outcome is Certainty.ALWAYS


@pytest.mark.parametrize("change", [partial(drain, nodes=("a",)), partial(lose_nodes, nodes=("a",))])
def test_a_generic_ephemeral_volume_goes_with_its_pod(change: Change) -> None:
    objects = [entry for entry in running("db-0", "a", locality="strict-local") if entry["kind"] != "Pod"]
    # Its claim is called data-db-0, after the pod and the pod's volume.
    user = owned_pod(name="data", node="a", owner="ReplicaSet", ephemeral={"db-0": ephemeral_spec(30)})
    result = prediction(situation(node("a", listed={"db-0-a": 30}), node("b"), objects, user), change)
    assert outcome_of(result, "data").nodes == {"b": 10}
    assert (result.succeeds, result.copied_bytes, result.volumes) == (True, (0, 0), ())
    assert ("b", gibibytes(30)) in [(entry.node, entry.most) for entry in result.disks]


def test_scaling_down_deletes_generic_ephemeral_volumes() -> None:
    objects = [entry for entry in running("web-0-db-0", "a") if entry["kind"] != "Pod"]
    user = owned_pod(name="data-web-0", node="a", ephemeral={"db-0": ephemeral_spec(30)})
    start = situation(node("a", listed={"web-0-db-0-a": 30}), objects, user)
    snapshot = after(start, partial(scale, workload=workload(30, name="data-web"), count=0)).cluster.snapshot
    assert not {*snapshot.claims, *snapshot.persistent_volumes, *snapshot.volumes, *snapshot.replicas}
    assert snapshot.longhorn_nodes["a"].disks[0].storage_scheduled == 0


@pytest.mark.parametrize("change", [partial(drain, nodes=("a",)), partial(lose_nodes, nodes=("a",))])
def test_pods_leave_a_node_that_only_longhorn_knows(change: Change) -> None:
    nodes = [longhorn_node(name, {"disk-1": disk(100)}) for name in ("a", "b")]
    result = prediction(situation(nodes, owned_pod(name="web-0", node="a")), change)
    assert outcome_of(result, "web-0").nodes == {"b": 10}


def test_no_pod_is_placed_once_every_node_is_lost() -> None:
    result = prediction(situation(node("a"), owned_pod(name="web-0", node="a")), partial(lose_nodes, nodes=("a",)))
    assert outcome_of(result, "web-0").outcome is Certainty.NEVER


@pytest.mark.parametrize("owner", ["DaemonSet", "Node", "InstanceManager"])
def test_pods_that_belong_to_a_node_stay_there(owner: str) -> None:
    cluster = situation(node("a"), node("b"), owned_pod(name="agent-1", node="a", owner=owner))
    result = prediction(cluster, partial(drain, nodes=("a",)))
    assert result.pods == ()
    assert result.succeeds


@pytest.mark.parametrize("change", [partial(lose_nodes, nodes=("a",)), partial(lose_zone, zone="z1")])
def test_a_volume_is_lost_with_its_only_replica(change: Change) -> None:
    cluster = situation(node("a", zone="z1", listed={"db-0-a": 30}), node("b", zone="z2"), running("db-0", "a"))
    result = prediction(cluster, change)
    outcome = outcome_of(result, "db-0")
    assert (outcome.outcome, dict(outcome.nodes)) == (Certainty.NEVER, {})
    assert list(outcome.reasons) == ["volume vol-data-db-0 is faulted and has no replica to salvage"]
    assert [(entry.name, entry.incomplete, entry.problem) for entry in result.volumes] == [
        ("vol-data-db-0", 10, "no replica with its data is left")
    ]


def test_lost_replicas_are_rebuilt_after_the_wait() -> None:
    cluster = situation(
        node("a", listed={"db-0-a": 30}),
        node("b", listed={"db-0-b": 30}),
        node("c"),
        running("db-0", "a", replicas=["a", "b"], locality="disabled"),
    )
    result = prediction(cluster, partial(lose_nodes, nodes=("a",)))
    assert result.succeeds
    assert result.copied_bytes == (gibibytes(30), gibibytes(30))
    assert [entry.least_healthy for entry in result.volumes] == [1]
    # The status of the lost node stays as it was.
    assert [(entry.node, entry.least) for entry in result.disks] == [("c", gibibytes(30))]


def test_a_detached_volume_that_lost_a_replica_is_incomplete() -> None:
    nodes = [*node("a", listed={"db-0-a": 30}), *node("b", listed={"db-0-b": 30}), *node("c")]
    objects = running("db-0", "a", replicas=["a", "b"], locality="disabled")
    result = prediction(
        situation(nodes, objects),
        partial(scale, workload=workload(30, name="db"), count=0),
        partial(lose_nodes, nodes=("b",)),
    )
    assert [(entry.least_healthy, entry.incomplete, entry.problem) for entry in result.volumes] == [
        (1, 10, "it is detached: Longhorn rebuilds it once it is attached")
    ]
    assert not result.succeeds


def test_a_volume_that_was_never_attached_has_no_data_to_lose() -> None:
    nodes = [*node("a", listed={"r-a": 30}), *node("b", listed={"r-b": 30}), *node("c")]
    replicas = [replica(f"r-{name}", "vol", name, size=30, healthy=False) for name in ("a", "b")]
    result = prediction(
        situation(nodes, volume("vol", 30, numberOfReplicas=2), replicas), partial(lose_nodes, nodes=("a",))
    )
    assert [entry.problem for entry in result.volumes] == ["it is detached: Longhorn rebuilds it once it is attached"]


def test_a_lost_disk_leaves_the_node() -> None:
    two_disks = {"disk-1": disk(100, available=70, listed={"db-0-a": 30}), "disk-2": disk(100)}
    cluster = situation(
        kube_node("a"),
        longhorn_node("a", two_disks),
        node("b", listed={"db-0-b": 30}),
        running("db-0", "a", replicas=["a", "b"], locality="disabled"),
    )
    result = prediction(cluster, partial(lose_disk, node_name="a", disk_name="disk-1"))
    assert result.pods == ()
    assert ("a", "disk-2", gibibytes(30)) in [(entry.node, entry.disk, entry.most) for entry in result.disks]
    assert result.succeeds


def test_scaling_up_fills_the_disks() -> None:
    """Three of four pods of 40Gi fit, the last one always waits.

    The disks have 100Gi and 50Gi.
    """
    result = prediction(
        situation(node("a"), node("b", 50)), partial(scale, workload=workload(40, in_order=True), count=4)
    )
    assert [outcome.placed for outcome in result.pods] == [10, 10, 10, 0]
    assert {entry.most for entry in result.disks} == {gibibytes(80), gibibytes(40)}


@pytest.mark.parametrize(("topology", "nodes"), [("zonal", {"a"}), ("any", {"a", "b"})])
def test_a_new_zonal_volume_needs_room_in_the_zone_of_its_pod(topology: str, nodes: set[str]) -> None:
    values: dict[str, Any] = {"dataLocality": "disabled", "volumeTopology": topology}
    keys = setting("csi-allowed-topology-keys", "topology.kubernetes.io/zone")
    start = situation(node("a", 50, zone="z1"), node("b", 10, zone="z2"), storage_class("tied", **values), keys)
    result = prediction(start, partial(scale, workload=workload(40, storage_class="tied"), count=1))
    assert outcome_of(result, "web-0").nodes.keys() == nodes


@pytest.mark.parametrize("zone", ["", "z1"])
def test_a_zonal_volume_keeps_its_pod_in_its_zone(zone: str) -> None:
    objects = running("db-0", "a", replicas=["a"], locality="disabled")
    (volume,) = (entry for entry in objects if entry["kind"] == "Volume")
    volume["spec"]["topologyRequirement"] = [{"zone": zone}] if zone else []
    start = situation(node("a", listed={"db-0-a": 30}, zone="z1"), node("b", zone="z2"), objects)
    result = prediction(start, partial(drain, nodes=("a",)))
    assert outcome_of(result, "db-0").placed == (0 if zone else 10)


@pytest.mark.parametrize(
    ("in_order", "reasons"),
    [(True, {"web-1": "the pod before it does not run", "web-2": "the pod before it does not run"}), (False, {})],
)
def test_pods_of_a_stateful_set_move_in_order(in_order: bool, reasons: dict[str, str]) -> None:
    """Without its pod 0, it does not create pod 1 again.

    The lost pod 0 has no data. No new pod 2 is created either, unless the StatefulSet creates its pods at once.
    """
    nodes = [*node("a", listed={"web-0-a": 30}), *node("b", listed={"web-1-b": 30}), *node("c")]
    start = situation(nodes, running("web-0", "a"), running("web-1", "b"))
    grown = partial(scale, workload=workload(30, in_order=in_order), count=3)
    result = prediction(start, partial(lose_nodes, nodes=("a",)), partial(drain, nodes=("b",)), grown)
    waiting = [outcome for outcome in result.pods if outcome.pod != "default/web-0" and not outcome.placed]
    assert {outcome.pod.partition("/")[2]: next(iter(outcome.reasons)) for outcome in waiting} == reasons


def test_scaling_down_frees_no_claims() -> None:
    cluster = situation(node("a", listed={"web-0-a": 30, "web-1-a": 30}), running("web-0", "a"), running("web-1", "a"))
    changed = after(cluster, partial(scale, workload=workload(30), count=1))
    assert sorted(changed.cluster.snapshot.pods) == [("default", "web-0")]
    assert sorted(changed.cluster.snapshot.claims) == [("default", "data-web-0"), ("default", "data-web-1")]


@pytest.mark.parametrize(
    ("changes", "placed"),
    [
        ((), 0),
        ((partial(add_nodes, like="a", count=1),), 10),
        ((partial(add_nodes, like="a", count=1, disks=(GI,)),), 0),
        ((partial(add_disk, node_name="a", size=60 * GI),), 10),
        ((partial(add_disk, node_name="a", size=10 * GI),), 0),
        ((partial(set_setting, name="storage-over-provisioning-percentage", value="200"),), 10),
    ],
)
def test_more_room_places_a_waiting_pod(changes: tuple[Change, ...], placed: int) -> None:
    """One pod of 40Gi fills a disk, and a second one waits.

    The disk has 50Gi.
    """
    waiting = partial(scale, workload=workload(40), count=1)
    cluster = situation(node("a", 50, listed={"db-0-a": 40}), running("db-0", "a", 40))
    available = partial(set_setting, name="storage-minimal-available-percentage", value="0")
    result = prediction(cluster, available, *changes, waiting)
    assert outcome_of(result, "web-0").placed == placed


@pytest.mark.parametrize(("size", "refusals"), [(60, 0), (90, 1)])
def test_an_expansion_must_fit_the_disk(size: int, refusals: int) -> None:
    """The disk has 100Gi, of which a quarter must stay available."""
    cluster = situation(node("a", listed={"db-0-a": 30}), running("db-0", "a"))
    result = prediction(cluster, partial(expand, key=("default", "data-db-0"), size=size * GI))
    assert [len(entry.refusals) for entry in result.expansions] == [refusals]
    assert [entry.most for entry in result.disks] == ([] if refusals else [gibibytes(size)])


def test_longhorns_webhook_compares_requests() -> None:
    objects = running("db-0", "a")
    next(entry for entry in objects if entry["kind"] == "PersistentVolumeClaim")["spec"]["resources"]["requests"][
        "storage"
    ] = "80Gi"
    cluster = situation(node("a", listed={"db-0-a": 30}), objects)
    (expansion,) = prediction(cluster, partial(expand, key=("default", "data-db-0"), size=90 * GI)).expansions
    assert expansion.refusals == ()


def test_a_storage_class_may_refuse_an_expansion() -> None:
    cluster = situation(node("a", listed={"db-0-a": 30}), running("db-0", "a"))
    fixed = partial(
        apply_objects, objects={("storage_classes", "longhorn"): kube.StorageClass("longhorn", "driver.longhorn.io")}
    )
    result = prediction(cluster, fixed, partial(expand, key=("default", "data-db-0"), size=60 * GI))
    assert [entry.refusals for entry in result.expansions] == [
        ("StorageClass longhorn does not set allowVolumeExpansion",)
    ]
    assert [entry.refused_by for entry in result.expansions] == ["PersistentVolumeClaimResize"]
    assert result.disks == ()


@pytest.mark.parametrize(
    "change",
    [
        partial(drain, nodes=("x",)),
        partial(lose_nodes, nodes=("x",)),
        partial(lose_zone, zone="x"),
        partial(lose_disk, node_name="a", disk_name="x"),
        partial(set_setting, name="x", value="1"),
        partial(set_setting, name="storage-over-provisioning-percentage", value="x"),
        partial(expand, key=("default", "x"), size=GI),
        partial(expand, key=("default", "data-db-0"), size=GI),
        partial(add_nodes, like="x"),
        partial(add_disk, node_name="x", size=GI),
    ],
)
def test_changes_of_what_does_not_exist_are_refused(change: Change) -> None:
    cluster = situation(node("a", listed={"db-0-a": 30}), running("db-0", "a"))
    with pytest.raises(CoreError):
        change(cluster)


def test_a_share_manager_takes_its_volume_along() -> None:
    objects = running("db-0", "a", locality="disabled", replicas=["b", "c"])
    for entry in objects:
        if entry["kind"] == "Volume":
            entry["spec"]["accessMode"] = "rwx"
    share_manager = owned_pod(name="share-manager-vol-data-db-0", node="a", owner="ShareManager")
    nodes = [*node("a"), *node("b", listed={"db-0-b": 30}), *node("c", listed={"db-0-c": 30})]
    result = prediction(situation(nodes, objects, share_manager), partial(drain, nodes=("a",)))
    assert result.drains[0].outcome is Certainty.ALWAYS


@pytest.mark.parametrize(("changes", "incomplete"), [((), 10), ((partial(add_nodes, like="a"),), 0)])
def test_a_volume_that_lacks_a_replica_gets_it_when_there_is_a_node(
    changes: tuple[Change, ...], incomplete: int
) -> None:
    objects = running("db-0", "a", replicas=["a"])
    for entry in objects:
        if entry["kind"] == "Volume":
            entry["spec"]["numberOfReplicas"] = 2
    cluster = situation(node("a", listed={"db-0-a": 30}), objects, replica("db-0-new", "vol-data-db-0", size=30))
    result = prediction(cluster, *changes)
    assert [entry.incomplete for entry in result.volumes] == ([incomplete] if incomplete else [])


@pytest.mark.parametrize("waits", [False, True])
def test_a_remote_replica_counts_only_for_pods_that_are_placed(waits: bool) -> None:
    objects = running("db-0", "a", replicas=["b"])
    for entry in objects:
        if entry["kind"] == "Pod" and waits:
            entry["spec"] |= {"nodeName": "", "nodeSelector": {"place": "a"}}
            entry["status"]["phase"] = "Pending"
        if entry["kind"] == "Replica" and not waits:
            entry["spec"]["evictionRequested"] = True
    full = longhorn_node("a", {"disk-1": disk(100, scheduled=90)})
    others = [*node("b", listed={"db-0-b": 30}), *node("c")]
    start = situation(kube_node("a", place="a"), full, others, objects)
    end = run_order(start, FilterOptions(require_best_effort=False), random.Random(1).randrange)  # noqa: S311
    assert list(end.incomplete) == (["vol-data-db-0"] if waits else [])
