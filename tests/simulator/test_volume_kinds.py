"""Clones and zonal volumes under the simulator's controllers; the API server is in memory."""

import pytest

from scheduler_core.model.longhorn import BEST_EFFORT, DISABLED, STRICT_LOCAL
from tests.worlds.simulator import World


async def cloned_world(locality: str, *, seed: int = 1) -> World:
    """Three nodes, and a volume `copy` that is cloned from the volume `source`."""
    world = World(seed=seed)
    await world.settle(world.start("50Gi", "50Gi", "50Gi"), world.add_volume("source", 10, DISABLED))
    await world.add_volume("copy", 10, locality, dataSource="vol://source")
    return world


@pytest.mark.parametrize("locality", [DISABLED, BEST_EFFORT, STRICT_LOCAL])
async def test_a_clone_has_its_data_before_a_workload_attaches_it(locality: str) -> None:
    world = await cloned_world(locality)
    await world.settle()
    copy = world.volume("copy")
    assert (copy.clone_state, copy.state, copy.node_id) == ("copy-completed-awaiting-healthy", "detached", "")
    assert all(replica.model.healthy_at for replica in world.replicas("copy"))
    await world.settle(world.attach("copy", world.places("copy")[0]))
    assert world.volume("copy").state == "attached"


async def test_a_strict_local_clone_stays_where_longhorn_copied_it() -> None:
    """Whichever node its pod is on: the copy comes first, on a node that Longhorn chooses."""
    places = set()
    for seed in range(8):
        world = await cloned_world(STRICT_LOCAL, seed=seed)
        await world.settle()
        places.update(world.places("copy"))
    assert len(places) > 1


async def test_a_workload_waits_for_the_copy() -> None:
    """Longhorn's CSI driver refuses a clone that does not have its data."""
    world = await cloned_world(DISABLED)
    await world.attach("copy", "a")
    await world.controllers.reconcile_volume("copy")
    await world.controllers.reconcile_attachment("copy-a")
    assert not world.volume("copy").node_id
    await world.settle()
    assert world.volume("copy").clone_state == "copy-completed-awaiting-healthy"


@pytest.mark.parametrize("seed", range(4))
async def test_a_zonal_volume_has_its_replicas_in_its_zone(seed: int) -> None:
    world = World(seed=seed)
    await world.start("50Gi", "50Gi", "50Gi")
    await world.add_volume(
        "zonal", 10, DISABLED, topologyRequirement=[{"zone": "zone-b"}], replicaZoneSoftAntiAffinity="enabled"
    )
    await world.settle()
    assert world.places("zonal") == ["b"]
