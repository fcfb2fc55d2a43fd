"""Volumes and replicas under the real controllers. The API server is in memory."""

from collections.abc import Mapping
from typing import Any

import pytest

from app.kube.resources import (
    LONGHORN_BACKING_IMAGES,
    LONGHORN_REPLICAS,
    LONGHORN_VOLUMES,
    NODES,
    STORAGE_CLASSES,
    VOLUME_ATTACHMENTS,
)
from scheduler_core.model.longhorn import BEST_EFFORT, DISABLED, STRICT_LOCAL
from simulator.objects import DRIVER
from simulator.status import report
from tests.worlds.simulator import GIB, World, reported


async def start_volume(
    *sizes: str,
    gib: int = 10,
    locality: str = BEST_EFFORT,
    replicas: int = 1,
    node: str = "",
    seed: int = 1,
    config: Mapping[str, Any] | None = None,
    **settings: str,
) -> World:
    """Starts a node with one disk for each size, and a volume. The volume `v` is attached on `node`, if one is named.
    Returns when nothing changes any more.
    """
    world = World(seed=seed, **(config or {}))
    await world.start(*sizes, **settings)
    await world.add_volume("v", gib, locality, replicas)
    if node:
        await world.attach("v", node)
    await world.settle()
    return world


async def pass_publish_timeout(world: World) -> None:
    world.seconds += world.controllers.config.publish_timeout
    await world.settle()


async def test_new_volume_without_locality_is_placed_at_creation() -> None:
    world = await start_volume("50Gi", "50Gi", "50Gi", "50Gi", locality=DISABLED, replicas=3)
    assert len(set(world.places("v"))) == 3
    assert not any(each.model.healthy_at for each in world.replicas("v"))
    assert world.volume("v").state == "detached"


async def test_local_volume_waits_for_its_attachment_and_gets_a_local_replica() -> None:
    world = await start_volume("50Gi", "50Gi")
    assert world.places("v") == []
    assert len(world.replicas("v")) == 1
    assert world.condition("v")["status"] == "True"
    await world.settle(world.attach("v", "b"))
    assert world.places("v") == ["b"]
    assert world.attachment("v")["attached"] is True
    assert world.volume("v").robustness == "healthy"
    assert world.disk("b").storage_scheduled == 10 * GIB


async def test_best_effort_replica_goes_elsewhere_from_a_full_node() -> None:
    world = await start_volume("10Gi", "50Gi", gib=20, node="a")
    assert world.places("v") == ["b"]
    assert world.attachment("v")["attached"] is True
    waiting = [each.model.hard_node_affinity for each in world.replicas("v") if not each.model.node_id]
    assert waiting == ["a"]
    assert world.controllers.runner.counters["misplacements"] == 1


@pytest.mark.parametrize("seed", range(6))
async def test_a_replica_elsewhere_of_a_volume_with_a_local_one_is_no_misplacement(seed: int) -> None:
    world = await start_volume("50Gi", "50Gi", "50Gi", replicas=2, node="a", seed=seed)
    assert "a" in world.places("v")
    assert len(set(world.places("v"))) == 2
    assert world.controllers.runner.counters["misplacements"] == 0


async def test_freed_room_gets_a_local_replica_in_place_of_the_distant_one() -> None:
    world = await start_volume("10Gi", "50Gi", gib=20, node="a")
    await world.settle(world.annotate_node("a", disks='[{"size": "60Gi"}]'))
    assert world.places("v") == ["a"]
    assert world.disk("b").storage_scheduled == 0


async def test_strict_local_without_room_is_refused_with_longhorns_reason() -> None:
    world = await start_volume("10Gi", "50Gi", gib=20, locality=STRICT_LOCAL, node="a")
    assert world.places("v") == []
    assert world.replicas("v")[0].model.hard_node_affinity == "a"
    assert world.volume("v").state == "detached"
    condition = world.condition("v")
    assert (condition["status"], condition["reason"]) == ("False", "LocalReplicaSchedulingFailure")
    assert condition["message"] == "insufficient storage"
    await pass_publish_timeout(world)
    await pass_publish_timeout(world)
    assert world.attachment("v")["attachError"]["message"] == (
        "rpc error: code = Aborted desc = volume v is not ready for workloads: "
        "volume is currently in detached state with some un-schedulable replicas"
    )


async def test_volume_too_large_for_every_disk_gets_no_replica_objects() -> None:
    world = await start_volume("10Gi", gib=20, locality=DISABLED, replicas=2, node="a")
    assert world.replicas("v") == []
    assert (world.attachment("v")["attached"], world.volume("v").node_id) == (False, "")
    message = world.condition("v")["message"]
    assert message == "precheck new replica failed: insufficient storage"


async def test_volume_with_fewer_replicas_than_wanted_is_degraded() -> None:
    world = await start_volume("50Gi", "50Gi", locality=DISABLED, replicas=3, node="a")
    assert world.places("v") == ["a", "b"]
    assert world.volume("v").robustness == "degraded"


async def test_second_attachment_on_another_node_is_refused() -> None:
    world = await start_volume("50Gi", "50Gi", node="a")
    await world.settle(world.attach("v", "b"))
    second = world.store.attachments.objects["v-b"].status
    assert second["attachError"]["message"] == "volume v is already attached to node a, cannot attach it to node b"


async def test_detached_volume_keeps_a_stopped_replica_until_it_is_deleted() -> None:
    world = await start_volume("50Gi", "50Gi", node="a")
    await world.settle(world.detach("v"))
    assert world.store.attachments_by_volume.get("v") == []
    assert (world.volume("v").state, world.volume("v").current_node_id) == ("detached", "")
    assert [each.model.current_state for each in world.replicas("v")] == ["stopped"]
    await world.settle(world.delete_volume("v"))
    assert [each["metadata"]["name"] for each in world.api.freed if "volumeName" in each.get("spec", {})]
    assert world.store.volumes.objects == {}
    assert world.disk("a").storage_scheduled == 0


async def test_lost_replica_is_replaced_after_the_replenishment_wait() -> None:
    world = await start_volume(
        "50Gi", "50Gi", "50Gi", locality=DISABLED, replicas=2, node="a", replica_replenishment_wait_interval="0"
    )
    lost = next(node for node in world.places("v") if node != "a")
    await world.settle(world.annotate_node(lost, down="true"))
    working = [each.model.node_id for each in world.replicas("v") if not each.model.failed_at]
    assert len(working) == 2
    assert lost not in working
    assert world.volume("v").robustness == "healthy"


async def test_degraded_volume_waits_for_the_failed_replica() -> None:
    """With Longhorn's default wait, the failed replica is rebuilt, none is added."""
    world = await start_volume("50Gi", "50Gi", "50Gi", locality=DISABLED, replicas=2, node="a")
    before = [each.name for each in world.replicas("v")]
    lost = next(node for node in world.places("v") if node != "a")
    await world.settle(world.annotate_node(lost, down="true"))
    assert world.volume("v").robustness == "degraded"
    await world.settle(world.annotate_node(lost, down=None))
    assert world.volume("v").robustness == "healthy"
    assert [each.name for each in world.replicas("v")] == before


async def test_volume_without_working_replicas_is_faulted_and_then_salvaged() -> None:
    world = await start_volume("50Gi", "50Gi", node="a")
    await world.settle(world.annotate_node("a", down="true"))
    assert world.volume("v").robustness == "faulted"
    assert world.replicas("v")[0].model.failed_at
    await world.settle(world.annotate_node("a", down=None))
    assert (world.volume("v").robustness, world.places("v")) == ("healthy", ["a"])


async def test_evicted_disk_is_emptied() -> None:
    world = await start_volume("50Gi", "50Gi", "50Gi", locality=DISABLED, replicas=2, node="a")
    leaving = world.places("v")[0]
    await world.settle(world.patch_disk(leaving, allowScheduling=False, evictionRequested=True))
    assert leaving not in world.places("v")
    assert len(world.places("v")) == 2
    assert world.disk(leaving).storage_scheduled == 0


async def test_detached_volume_is_attached_for_its_eviction_only() -> None:
    world = await start_volume("50Gi", "50Gi", "50Gi", locality=DISABLED)
    [leaving] = world.places("v")
    await world.settle(world.patch_disk(leaving, allowScheduling=False, evictionRequested=True))
    assert len(world.places("v")) == 1
    assert leaving not in world.places("v")
    assert world.volume("v").state == "detached"


async def test_disabled_placement_leaves_replicas_unplaced() -> None:
    world = await start_volume("50Gi", "50Gi", node="a", config={"placement": False})
    [replica] = world.replicas("v")
    assert replica.model.node_id == ""
    place = {"nodeID": "a", "diskID": world.disk("a").uuid}
    await world.settle(world.patch(LONGHORN_REPLICAS, replica.name, spec=place))
    assert world.attachment("v")["attached"] is True


async def test_replica_waits_for_its_backing_image() -> None:
    world = await start_volume("50Gi", "50Gi")
    image = {"name": "image", "namespace": "longhorn-system", "annotations": {"simulator/real-size": "3Gi"}}
    await world.create(LONGHORN_BACKING_IMAGES, {"metadata": image})
    await world.patch(LONGHORN_VOLUMES, "v", spec={"backingImage": "image"})
    await world.settle(world.attach("v", "b"))
    assert world.places("v") == ["b"]
    assert world.disk("b").storage_scheduled == 13 * GIB
    assert world.disk("b").storage_available == reported(47)


async def test_written_data_stays_within_the_volume() -> None:
    world = await start_volume("50Gi", "50Gi")
    await world.settle(world.write("v", 12), world.attach("v", "a"))
    assert world.volume("v").actual_size == 10 * GIB
    assert world.disk("a").storage_available == reported(40)


async def test_space_is_taken_until_the_replica_object_is_gone() -> None:
    world = await start_volume("50Gi", "50Gi", node="a", config={"delete_seconds": (3600.0, 3600.0)})
    await world.settle(world.delete_volume("v"))
    assert [each.model.deleting for each in world.replicas("v")] == [True]
    assert world.disk("a").storage_scheduled == 10 * GIB


@pytest.mark.parametrize(
    ("locality", "auto_balance", "left"),
    [(DISABLED, "disabled", 3), (DISABLED, "least-effort", 2), (BEST_EFFORT, "disabled", 2)],
)
async def test_an_extra_replica_stays_unless_locality_or_auto_balance_removes_it(
    locality: str, auto_balance: str, left: int
) -> None:
    """Longhorn does not remove one because fewer are wanted (cleanupExtraHealthyReplicas)."""
    world = await start_volume("50Gi", "50Gi", "50Gi", locality=DISABLED, replicas=3, node="a")
    changes = {"numberOfReplicas": 2, "dataLocality": locality, "replicaAutoBalance": auto_balance}
    await world.settle(world.patch(LONGHORN_VOLUMES, "v", spec=changes))
    assert len(world.places("v")) == left


async def test_shared_volume_is_attached_on_every_node() -> None:
    world = await start_volume("50Gi", "50Gi", locality=DISABLED)
    await world.patch(LONGHORN_VOLUMES, "v", spec={"accessMode": "rwx"})
    await world.settle(world.attach("v", "a"), world.attach("v", "b"))
    assert [each.status["attached"] for each in world.store.attachments_by_volume.get("v")] == [True, True]
    await world.settle(world.api.delete(VOLUME_ATTACHMENTS.path(name="v-a")))
    assert [each.name for each in world.store.attachments_by_volume.get("v")] == ["v-b"]
    assert world.volume("v").state == "attached"


@pytest.mark.parametrize(("policy", "moves"), [("block-if-contains-last-replica", False), ("block-for-eviction", True)])
async def test_cordon_evicts_only_if_the_policy_says_so(policy: str, moves: bool) -> None:
    world = await start_volume("50Gi", "50Gi", "50Gi", locality=DISABLED, node="a", node_drain_policy=policy)
    [home] = world.places("v")
    await world.settle(world.patch(NODES, home, spec={"unschedulable": True}))
    assert (world.places("v") != [home]) is moves
    assert len(world.places("v")) == 1


@pytest.mark.parametrize(("replicas", "copies"), [(1, 1), (2, 0)])
async def test_cordon_copies_the_last_replica_if_the_policy_says_so(replicas: int, copies: int) -> None:
    policy = "block-for-eviction-if-contains-last-replica"
    disks = ("50Gi", "50Gi", "50Gi")
    world = await start_volume(*disks, locality=DISABLED, replicas=replicas, node="a", node_drain_policy=policy)
    home, *_ = world.places("v")
    await world.settle(world.patch(NODES, home, spec={"unschedulable": True}))
    assert len(world.places("v")) == replicas + copies


async def test_storage_capacity_follows_the_nodes_status() -> None:
    world = await start_volume("50Gi", node="a")
    body = {"metadata": {"name": "local"}, "provisioner": DRIVER, "volumeBindingMode": "WaitForFirstConsumer"}
    await world.create(STORAGE_CLASSES, body)
    await world.controllers.report_capacity()
    [capacity] = world.store.capacities.objects.values()
    assert (capacity.raw["storageClassName"], capacity.raw["capacity"]) == ("local", str(40 * GIB))
    assert capacity.raw["nodeTopology"] == {"matchLabels": {"kubernetes.io/hostname": "a"}}


async def test_volume_of_a_deleted_claim_is_deleted_unless_it_has_a_persistent_volume() -> None:
    """A claim may be deleted in the middle of provisioning."""
    world = World()
    await world.start("50Gi")
    for name, status in (("orphan", {}), ("provisioned", {"kubernetesStatus": {"pvName": "provisioned"}})):
        metadata = {
            "name": name,
            "namespace": "longhorn-system",
            "annotations": {"simulator/claim": f"shop/data/{name}"},
            "finalizers": ["longhorn.io"],
        }
        spec = {"size": str(GIB), "numberOfReplicas": 1, "dataLocality": "disabled"}
        await world.create(LONGHORN_VOLUMES, {"metadata": metadata, "spec": spec, "status": status})
    await world.settle()
    assert list(world.store.volumes.models) == ["provisioned"]


async def test_overbooked_disks_are_reported() -> None:
    """Two volumes are placed before the status counts the first."""
    world = World()
    await world.start("10Gi")
    for name in ("u", "v"):
        await world.add_volume(name, 6)
        await world.attach(name, "a")
    for _ in range(5):
        for name in ("u-a", "v-a"):
            await world.controllers.reconcile_attachment(name)
        for name in ("u", "v"):
            await world.controllers.reconcile_volume(name)
    await world.settle()
    [entry] = report(world.controllers, ready=True)["overbooked"]
    assert (entry["node"], entry["scheduled"], entry["limit"]) == ("a", 12 * GIB, 10 * GIB)
