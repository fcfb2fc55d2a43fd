"""Volumes and replicas through the real controllers on an API server in memory, without delays."""

from __future__ import annotations

import msgspec

from scheduler_core.model.longhorn import BEST_EFFORT, DISABLED, STRICT_LOCAL
from simulator.config import Config
from simulator.status import report
from tests.worlds.simulator import GIB, QUICK, World


def _config(**changes: object) -> Config:
    return msgspec.structs.replace(QUICK, **changes)


async def test_new_volume_without_locality_is_placed_at_creation() -> None:
    """One replica on each of three nodes, not yet with data."""
    world = World()
    await world.start("50Gi", "50Gi", "50Gi", "50Gi")
    await world.add_volume("v", 10, DISABLED, replicas=3)
    await world.settle()
    assert len(set(world.places("v"))) == 3
    assert not any(each.model.healthy_at for each in world.replicas("v"))
    assert world.volume("v").state == "detached"


async def test_local_volume_waits_for_its_attachment() -> None:
    """A replica object without a place, and yet the volume counts as scheduled."""
    world = World()
    await world.start("50Gi", "50Gi")
    await world.add_volume("v", 10)
    await world.settle()
    assert world.places("v") == []
    assert len(world.replicas("v")) == 1
    assert world.store.volumes.objects["v"].status["conditions"][0]["status"] == "True"


async def test_attached_local_volume_gets_its_replica_there() -> None:
    """Placed on the node of the attachment, healthy, counted in its node's status."""
    world = World()
    await world.start("50Gi", "50Gi")
    await world.add_volume("v", 10)
    await world.attach("v", "b")
    await world.settle()
    assert world.places("v") == ["b"]
    assert world.attachment("v")["attached"] is True
    assert world.volume("v").robustness == "healthy"
    assert world.disk("b").storage_scheduled == 10 * GIB


async def test_best_effort_goes_elsewhere_when_the_node_is_full() -> None:
    """The only replica is on the other node, and one more waits for room here."""
    world = World()
    await world.start("10Gi", "50Gi")
    await world.add_volume("v", 20)
    await world.attach("v", "a")
    await world.settle()
    assert world.places("v") == ["b"]
    assert world.attachment("v")["attached"] is True
    waiting = [each.model.hard_node_affinity for each in world.replicas("v") if not each.model.node_id]
    assert waiting == ["a"]
    assert world.controllers.runner.counters["misplacements"] == 1


async def test_local_replica_appears_when_room_does_and_the_other_goes() -> None:
    """Rebuilt on the node of the attachment; only then the distant one is deleted."""
    world = World()
    await world.start("10Gi", "50Gi")
    await world.add_volume("v", 20)
    await world.attach("v", "a")
    await world.settle()
    await world.annotate_node("a", disks='[{"size": "60Gi"}]')
    await world.settle()
    assert world.places("v") == ["a"]
    assert world.disk("b").storage_scheduled == 0


async def test_strict_local_without_room_is_refused_with_longhorns_reason() -> None:
    """Pinned to the node, not placed, not attached."""
    world = World()
    await world.start("10Gi", "50Gi")
    await world.add_volume("v", 20, STRICT_LOCAL)
    await world.attach("v", "a")
    await world.settle()
    assert world.places("v") == []
    assert world.replicas("v")[0].model.hard_node_affinity == "a"
    assert "insufficient storage" in world.attachment("v")["attachError"]["message"]
    condition = world.store.volumes.objects["v"].status["conditions"][0]
    assert (condition["status"], condition["reason"]) == ("False", "LocalReplicaSchedulingFailure")


async def test_volume_no_disk_can_take_gets_no_replica_objects() -> None:
    """The check before their creation fails, and says so."""
    world = World()
    await world.start("10Gi")
    await world.add_volume("v", 20, DISABLED, replicas=2)
    await world.settle()
    assert world.replicas("v") == []
    message = world.store.volumes.objects["v"].status["conditions"][0]["message"]
    assert message == "precheck new replica failed: insufficient storage"


async def test_unplaceable_volume_is_not_attached() -> None:
    """No replica has a place, so the attachment is refused before Longhorn's volume hears of it."""
    world = World()
    await world.start("10Gi")
    await world.add_volume("v", 20, DISABLED)
    await world.attach("v", "a")
    await world.settle()
    assert world.attachment("v")["attached"] is False
    assert world.volume("v").node_id == ""


async def test_volume_with_fewer_replicas_than_wanted_is_degraded() -> None:
    """Two nodes for three replicas: it is attached all the same."""
    world = World()
    await world.start("50Gi", "50Gi")
    await world.add_volume("v", 10, DISABLED, replicas=3)
    await world.attach("v", "a")
    await world.settle()
    assert world.places("v") == ["a", "b"]
    assert world.volume("v").robustness == "degraded"


async def test_attachment_elsewhere_is_refused_while_attached() -> None:
    """A volume that is not shared has one node at a time."""
    world = World()
    await world.start("50Gi", "50Gi")
    await world.add_volume("v", 10)
    await world.attach("v", "a")
    await world.settle()
    await world.attach("v", "b")
    await world.settle()
    second = world.store.attachments.objects["v-b"].status
    assert second["attachError"]["message"] == "volume v is already attached to node a, cannot attach it to node b"


async def test_detached_volume_keeps_its_replica_and_runs_nothing() -> None:
    """The attachment's object goes when the volume is detached."""
    world = World()
    await world.start("50Gi", "50Gi")
    await world.add_volume("v", 10)
    await world.attach("v", "a")
    await world.settle()
    await world.detach("v")
    await world.settle()
    assert world.store.attachments_by_volume.get("v") == []
    assert (world.volume("v").state, world.volume("v").current_node_id) == ("detached", "")
    assert [each.model.current_state for each in world.replicas("v")] == ["stopped"]


async def test_lost_replica_is_replaced_when_the_wait_is_over() -> None:
    """With no wait for the failed one, a new one is made on another node."""
    world = World()
    await world.start("50Gi", "50Gi", "50Gi", replica_replenishment_wait_interval="0")
    await world.add_volume("v", 10, DISABLED, replicas=2)
    await world.attach("v", "a")
    await world.settle()
    lost = next(node for node in world.places("v") if node != "a")
    await world.annotate_node(lost, down="true")
    await world.settle()
    working = [each.model.node_id for each in world.replicas("v") if not each.model.failed_at]
    assert len(working) == 2
    assert lost not in working
    assert world.volume("v").robustness == "healthy"


async def test_degraded_volume_waits_for_the_failed_replica() -> None:
    """With Longhorn's default wait nothing is replaced; the failed one is rebuilt when its node is back."""
    world = World()
    await world.start("50Gi", "50Gi", "50Gi")
    await world.add_volume("v", 10, DISABLED, replicas=2)
    await world.attach("v", "a")
    await world.settle()
    before = [each.name for each in world.replicas("v")]
    lost = next(node for node in world.places("v") if node != "a")
    await world.annotate_node(lost, down="true")
    await world.settle()
    assert world.volume("v").robustness == "degraded"
    await world.annotate_node(lost, down=None)
    await world.settle()
    assert world.volume("v").robustness == "healthy"
    assert [each.name for each in world.replicas("v")] == before


async def test_volume_is_faulted_without_replicas_and_salvaged_after() -> None:
    """All replicas lost: faulted; their node back: attached with the same replica."""
    world = World()
    await world.start("50Gi", "50Gi")
    await world.add_volume("v", 10)
    await world.attach("v", "a")
    await world.settle()
    await world.annotate_node("a", down="true")
    await world.settle()
    assert world.volume("v").robustness == "faulted"
    assert world.replicas("v")[0].model.failed_at
    await world.annotate_node("a", down=None)
    await world.settle()
    assert (world.volume("v").robustness, world.places("v")) == ("healthy", ["a"])


async def test_evicted_disk_is_emptied() -> None:
    """Another replica is made first; the evicted one goes when that is healthy."""
    world = World()
    await world.start("50Gi", "50Gi", "50Gi")
    await world.add_volume("v", 10, DISABLED, replicas=2)
    await world.attach("v", "a")
    await world.settle()
    leaving = world.places("v")[0]
    await world.patch_disk(leaving, allowScheduling=False, evictionRequested=True)
    await world.settle()
    assert leaving not in world.places("v")
    assert len(world.places("v")) == 2
    assert world.disk(leaving).storage_scheduled == 0


async def test_detached_volume_is_attached_for_its_eviction_only() -> None:
    """Nobody uses it, before and after."""
    world = World()
    await world.start("50Gi", "50Gi", "50Gi")
    await world.add_volume("v", 10, DISABLED)
    await world.settle()
    [leaving] = world.places("v")
    await world.patch_disk(leaving, allowScheduling=False, evictionRequested=True)
    await world.settle()
    assert len(world.places("v")) == 1
    assert leaving not in world.places("v")
    assert world.volume("v").state == "detached"


async def test_switched_off_placement_leaves_replicas_to_others() -> None:
    """The replica object exists; once somebody gives it a place, the volume is attached."""
    world = World(_config(placement=False))
    await world.start("50Gi", "50Gi")
    await world.add_volume("v", 10)
    await world.attach("v", "a")
    await world.settle()
    [replica] = world.replicas("v")
    assert replica.model.node_id == ""
    path = f"/apis/longhorn.io/v1beta2/namespaces/longhorn-system/replicas/{replica.name}"
    await world.api.patch(path, {"metadata": {}, "spec": {"nodeID": "a", "diskID": world.disk("a").uuid}})
    await world.settle()
    assert world.attachment("v")["attached"] is True


async def test_replica_waits_for_its_backing_image() -> None:
    """The image is listed for the disk at once, and its size counts there."""
    world = World()
    await world.start("50Gi", "50Gi")
    image = {"name": "image", "namespace": "longhorn-system", "annotations": {"simulator/real-size": "3Gi"}}
    await world.api.create("/apis/longhorn.io/v1beta2/namespaces/longhorn-system/backingimages", {"metadata": image})
    await world.add_volume("v", 10)
    path = "/apis/longhorn.io/v1beta2/namespaces/longhorn-system/volumes/v"
    await world.api.patch(path, {"metadata": {}, "spec": {"backingImage": "image"}})
    await world.attach("v", "b")
    await world.settle()
    assert world.places("v") == ["b"]
    assert world.disk("b").storage_scheduled == 13 * GIB
    assert world.disk("b").storage_available == 47 * GIB // (100 * 2**20) * (100 * 2**20)


async def test_written_data_stays_within_the_volume() -> None:
    """More than its size cannot be written."""
    world = World()
    await world.start("50Gi", "50Gi")
    await world.add_volume("v", 10)
    path = "/apis/longhorn.io/v1beta2/namespaces/longhorn-system/volumes/v"
    await world.api.patch(path, {"metadata": {"annotations": {"simulator/write": "12Gi"}}})
    await world.attach("v", "a")
    await world.settle()
    assert world.volume("v").actual_size == 10 * GIB
    assert world.disk("a").storage_available == 40 * GIB // (100 * 2**20) * (100 * 2**20)


async def test_deleted_volume_takes_its_replicas_along() -> None:
    """Replicas first, the volume last, the space after that."""
    world = World()
    await world.start("50Gi", "50Gi")
    await world.add_volume("v", 10)
    await world.attach("v", "a")
    await world.settle()
    await world.detach("v")
    await world.settle()
    await world.delete_volume("v")
    await world.settle()
    assert [each["metadata"]["name"] for each in world.api.freed if "volumeName" in each.get("spec", {})]
    assert world.store.volumes.objects == {}
    assert world.disk("a").storage_scheduled == 0


async def test_space_is_taken_until_the_replica_object_is_gone() -> None:
    """A replica that is being deleted counts in full."""
    world = World(_config(delete_seconds=(3600.0, 3600.0)))
    await world.start("50Gi", "50Gi")
    await world.add_volume("v", 10)
    await world.attach("v", "a")
    await world.settle()
    await world.delete_volume("v")
    await world.settle()
    assert [each.model.deleting for each in world.replicas("v")] == [True]
    assert world.disk("a").storage_scheduled == 10 * GIB


async def test_best_effort_is_preferred_local_only_within_the_tier() -> None:
    """Two replicas of a best-effort volume: one here, one elsewhere."""
    world = World()
    await world.start("50Gi", "50Gi", "50Gi")
    await world.add_volume("v", 10, BEST_EFFORT, replicas=2)
    await world.attach("v", "c")
    await world.settle()
    assert "c" in world.places("v")
    assert len(set(world.places("v"))) == 2


async def test_shared_volume_is_attached_on_every_node() -> None:
    """Longhorn attaches it once and serves it over the network; it stays as long as somebody uses it."""
    world = World()
    await world.start("50Gi", "50Gi")
    await world.add_volume("v", 10, DISABLED)
    path = "/apis/longhorn.io/v1beta2/namespaces/longhorn-system/volumes/v"
    await world.api.patch(path, {"metadata": {}, "spec": {"accessMode": "rwx"}})
    await world.attach("v", "a")
    await world.attach("v", "b")
    await world.settle()
    assert [each.status["attached"] for each in world.store.attachments_by_volume.get("v")] == [True, True]
    await world.api.delete("/apis/storage.k8s.io/v1/volumeattachments/v-a")
    await world.settle()
    assert [each.name for each in world.store.attachments_by_volume.get("v")] == ["v-b"]
    assert world.volume("v").state == "attached"


async def test_cordon_evicts_by_the_policy_only() -> None:
    """With Longhorn's default nothing moves; with block-for-eviction everything does."""
    for policy, leaves in (("block-if-contains-last-replica", False), ("block-for-eviction", True)):
        world = World()
        await world.start("50Gi", "50Gi", "50Gi", node_drain_policy=policy)
        await world.add_volume("v", 10, DISABLED)
        await world.attach("v", "a")
        await world.settle()
        [home] = world.places("v")
        await world.api.patch(f"/api/v1/nodes/{home}", {"metadata": {}, "spec": {"unschedulable": True}})
        await world.settle()
        assert (world.places("v") != [home]) is leaves
        assert len(world.places("v")) == 1


async def test_capacity_tells_what_the_nodes_status_says() -> None:
    """One object for each node and class that waits for a consumer, older than the replicas."""
    world = World()
    await world.start("50Gi")
    body = {
        "metadata": {"name": "local"},
        "provisioner": "driver.longhorn.io",
        "volumeBindingMode": "WaitForFirstConsumer",
    }
    await world.api.create("/apis/storage.k8s.io/v1/storageclasses", body)
    await world.add_volume("v", 10)
    await world.attach("v", "a")
    await world.settle()
    await world.controllers._report_capacity()
    [capacity] = world.store.capacities.objects.values()
    assert (capacity.raw["storageClassName"], capacity.raw["capacity"]) == ("local", str(40 * GIB))
    assert capacity.raw["nodeTopology"] == {"matchLabels": {"kubernetes.io/hostname": "a"}}


async def test_claim_without_pv_that_is_gone_takes_its_volume_along() -> None:
    """Deleted in the middle of provisioning: nothing is left behind; a volume that had its PersistentVolume stays."""
    world = World()
    await world.start("50Gi")
    path = "/apis/longhorn.io/v1beta2/namespaces/longhorn-system/volumes"
    for name, status in (("orphan", {}), ("kept", {"kubernetesStatus": {"pvName": "kept"}})):
        metadata = {
            "name": name,
            "namespace": "longhorn-system",
            "annotations": {"simulator/claim": f"shop/data/{name}"},
            "finalizers": ["longhorn.io"],
        }
        spec = {"size": str(GIB), "numberOfReplicas": 1, "dataLocality": "disabled"}
        await world.api.create(path, {"metadata": metadata, "spec": spec, "status": status})
    await world.settle()
    assert list(world.store.volumes.models) == ["kept"]


async def test_overbooked_disks_are_reported() -> None:
    """Two volumes placed before the status tells of the first."""
    world = World()
    await world.start("10Gi")
    for name in ("u", "v"):
        await world.add_volume(name, 6)
        await world.attach(name, "a")
    for _ in range(5):
        for name in ("u-a", "v-a"):
            await world.controllers._reconcile_attachment(name)
        for name in ("u", "v"):
            await world.controllers._reconcile_volume(name)
    await world.settle()
    [entry] = report(world.controllers, ready=True)["overbooked"]
    assert (entry["node"], entry["scheduled"], entry["limit"]) == ("a", 12 * GIB, 10 * GIB)
