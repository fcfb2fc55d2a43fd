"""Replica moves: which are offered, their targets and their commands."""

import json
from typing import Any

import pytest

from scheduler_core.convert.kubectl import replica_move_commands
from scheduler_core.model import longhorn
from scheduler_core.predict.predicted_cluster import PredictedCluster, WhatIfError
from scheduler_core.predict.predicted_replicas import DiskPlace, apply_move
from tests.builders import GI, LONGHORN, Object, disk, longhorn_node, setting, volume
from tests.worlds.predicted_clusters import every_move, gibibytes, node, replica_name, running, situation


def cluster_of(*objects: Any) -> PredictedCluster:
    return situation(*objects).cluster


def one_replica(locality: str = "disabled") -> list[Object]:
    """A running pod with one replica on the node a.

    The replica has 30 of 100 Gi, and the node b is empty.
    """
    return [*node("a", listed={replica_name("db-0", "a"): 30}), *node("b"), *running("db-0", "a", locality=locality)]


def backing_image(*disks: str) -> Object:
    """The backing image `debian`, with copies on some disks."""
    return {
        "apiVersion": LONGHORN,
        "kind": "BackingImage",
        "metadata": {"name": "debian", "namespace": "longhorn-system"},
        "spec": {"diskFileSpecMap": {disk: {} for disk in disks}},
    }


def replace_fields(objects: list[Object], kind: str, **fields: Any) -> list[Object]:
    """The objects with fields of one kind replaced, in spec and status."""
    for entry in objects:
        if entry["kind"] == kind and entry["apiVersion"] == LONGHORN:
            for part in ("spec", "status"):
                entry[part] = {**entry.get(part, {}), **fields.get(part, {})}
    return objects


def test_a_replica_moves_to_another_node() -> None:
    cluster = cluster_of(one_replica())
    (move,) = every_move(cluster)
    assert (move.volume, move.replica) == ("vol-data-db-0", "db-0-a")
    assert (move.origin, move.targets) == (DiskPlace("a", "disk-1"), (DiskPlace("b", "disk-1"),))
    assert (move.size, move.copied_bytes) == (30 * GI, 30 * GI)
    after = apply_move(cluster, move, move.targets[0])
    disks = {name: entry.disks[0] for name, entry in after.state.view.cluster.nodes.items()}
    assert {name: entry.storage_scheduled for name, entry in disks.items()} == {"a": 0, "b": 30 * GI}
    assert disks["a"].storage_available == gibibytes(100)
    assert disks["b"].storage_available <= gibibytes(70)
    assert [each.node_id for each in after.state.view.replicas_of(move.volume)] == ["b"]
    assert after.snapshot.volumes == cluster.snapshot.volumes


def test_the_old_replica_counts_while_longhorn_chooses() -> None:
    """So another disk of its node is no target without soft anti-affinity."""
    disks = {"disk-1": disk(100, listed={"db-0-a": 30}, available=70), "disk-2": disk(100)}
    alone = [longhorn_node("a", disks), *running("db-0", "a", locality="disabled")]
    assert every_move(cluster_of(alone)) == []
    (move,) = every_move(cluster_of(alone, setting("replica-soft-anti-affinity", "true")))
    assert move.targets == (DiskPlace("a", "disk-2"),)


def test_a_local_replica_stays_and_another_one_moves() -> None:
    nodes = [*node("a", listed={"db-0-a": 30}), *node("b", listed={"db-0-b": 30}), *node("c")]
    cluster = cluster_of(nodes, running("db-0", "a", replicas=["a", "b"]))
    assert [(move.replica, move.targets) for move in every_move(cluster)] == [("db-0-b", (DiskPlace("c", "disk-1"),))]


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        pytest.param("Volume", {"status": {"robustness": "degraded"}}, id="degraded"),
        pytest.param("Volume", {"status": {"state": "detached"}}, id="detached"),
        pytest.param("Volume", {"status": {"currentNodeID": "b"}}, id="being-attached"),
        pytest.param("Volume", {"status": {"restoreRequired": True}}, id="being-restored"),
        pytest.param("Volume", {"spec": {"dataSource": "vol://other"}}, id="being-cloned"),
        pytest.param("Volume", {"spec": {"dataEngine": "v2"}}, id="data-engine-v2"),
        pytest.param("Volume", {"spec": {"dataLocality": "strict-local"}}, id="strict-local"),
        pytest.param("Volume", {"spec": {"numberOfReplicas": 2}}, id="a-replica-is-missing"),
        pytest.param("Volume", {"spec": {"nodeSelector": ["fast"]}}, id="no-other-node-has-the-tag"),
        pytest.param("Volume", {"spec": {"size": str(200 * GI)}}, id="no-disk-has-the-space"),
        pytest.param("Replica", {"spec": {"evictionRequested": True}}, id="evicted"),
        pytest.param("Replica", {"spec": {"failedAt": "2025-12-31T00:00:00Z"}}, id="failed"),
        pytest.param("Replica", {"spec": {"active": False}}, id="inactive"),
    ],
)
def test_only_steady_volumes_are_moved(kind: str, fields: dict[str, Any]) -> None:
    """Longhorn would refuse the additional replica, or do something else first."""
    assert len(every_move(cluster_of(one_replica()))) == 1
    assert every_move(cluster_of(replace_fields(one_replica(), kind, **fields))) == []


def test_no_move_where_longhorn_rebuilds_nothing() -> None:
    limit = setting("concurrent-replica-rebuild-per-node-limit", "0")
    assert every_move(cluster_of(one_replica(), limit)) == []


def test_the_source_of_a_linked_clone_stays() -> None:
    clone = volume("clone", locality="disabled", cloneMode="linked-clone", dataSource="snap://vol-data-db-0/s1")
    assert every_move(cluster_of(one_replica(), clone)) == []


def test_a_volume_with_a_backing_image_moves_only_where_its_image_is() -> None:
    """A copy of the image would take space, too."""
    objects = replace_fields(one_replica(), "Volume", spec={"backingImage": "debian"})
    assert every_move(cluster_of(objects, backing_image("a-disk-1"))) == []
    copied = backing_image("a-disk-1", "b-disk-1")
    assert len(every_move(cluster_of(objects, copied))) == 1


def test_a_move_that_auto_balance_would_undo_is_not_offered() -> None:
    nodes = [
        *node("a", 100, zone="east", listed={"db-0-a": 30}),
        *node("b", 100, zone="west", listed={"db-0-b": 30}),
        *node("c", 200, zone="west"),
    ]
    pod = running("db-0", "a", replicas=["a", "b"], locality="disabled")
    replace_fields(pod, "Replica", status={"currentState": "running"})
    replicas = {move.replica for move in every_move(cluster_of(nodes, pod))}
    assert replicas == {"db-0-a", "db-0-b"}
    balanced = cluster_of(nodes, pod, setting("replica-auto-balance", "least-effort"))
    assert {move.replica for move in every_move(balanced)} == {"db-0-b"}


def test_a_move_to_a_disk_that_does_not_exist_is_refused() -> None:
    cluster = cluster_of(one_replica())
    (move,) = every_move(cluster)
    with pytest.raises(WhatIfError, match="db-0-a of volume vol-data-db-0 cannot be moved to b/disk-9"):
        apply_move(cluster, move, DiskPlace("b", "disk-9"))


def test_the_commands_of_a_move() -> None:
    commands = replica_move_commands(
        longhorn.Volume("vol-1", number_of_replicas=2), "vol-1-r-b", "longhorn-system", auto_balanced=False
    )
    assert [command[3] for command in commands] == ["patch", "wait", "wait", "patch", "delete"]
    assert [json.loads(command[-1]) for command in commands if command[3] == "patch"] == [
        {"spec": {"numberOfReplicas": 3}},
        {"spec": {"numberOfReplicas": 2}},
    ]
    assert commands[2] == (
        *("kubectl", "-n", "longhorn-system", "wait", "volumes.longhorn.io/vol-1"),
        *("--for=jsonpath={.status.robustness}=healthy", "--timeout=24h"),
    )
    assert commands[4] == ("kubectl", "-n", "longhorn-system", "delete", "replicas.longhorn.io", "vol-1-r-b")


def test_data_locality_and_auto_balance_are_off_during_a_move() -> None:
    """Otherwise Longhorn would choose which extra replica it deletes."""
    local = longhorn.Volume("vol-1", number_of_replicas=1, data_locality="best-effort", replica_auto_balance="")
    commands = replica_move_commands(local, "vol-1-r-b", "storage", auto_balanced=True)
    patches = [json.loads(command[-1])["spec"] for command in commands if command[3] == "patch"]
    assert patches == [
        {"numberOfReplicas": 2, "dataLocality": "disabled", "replicaAutoBalance": "disabled"},
        {"numberOfReplicas": 1},
        {"dataLocality": "best-effort", "replicaAutoBalance": "ignored"},
    ]
    assert [command[3] for command in commands][-2:] == ["delete", "patch"]
    assert {command[2] for command in commands} == {"storage"}
