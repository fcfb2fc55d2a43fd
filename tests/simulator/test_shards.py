"""Sharded volumes under the real controllers: shards on distinct nodes at creation, attachment once all of them are placed."""

import pytest

from scheduler_core.longhorn.csi_driver import shard_size
from scheduler_core.model.longhorn import BLOCK, DISABLED, V2, DataLayout
from tests.worlds.simulator import GIB, World

LAYOUT = {"type": "sharded", "mode": "erasureCoding", "dataChunks": 2, "parityChunks": 1, "stripSizeKB": 64}
SHARD = shard_size(10 * GIB, DataLayout(2, 1, 64))


async def start_volume(nodes: str, seed: int = 1) -> World:
    """Nodes with one v2 disk each, one with a file system, and the sharded volume `v` of 10Gi."""
    world = World(seed=seed)
    await world.start()
    for name in nodes:
        await world.add_node(name, "50Gi", kind=BLOCK)
    await world.settle(world.add_node("f", "50Gi"))
    await world.settle(world.add_volume("v", 10, DISABLED, dataEngine=V2, dataLayout=LAYOUT))
    return world


def shard_nodes(world: World) -> list[str]:
    return [shard.spec["nodeID"] for shard in world.store.shards_by_volume.get("v")]


async def test_shards_are_placed_on_distinct_nodes_at_creation() -> None:
    world = await start_volume("abcd")
    nodes = shard_nodes(world)
    assert (len(nodes), len(set(nodes)), "f" in nodes) == (3, 3, False)
    assert [world.disk(name).storage_scheduled for name in nodes] == [SHARD] * 3
    assert [dict(world.disk(name).scheduled_replicas) for name in nodes] == [{}] * 3
    assert (world.replicas("v"), world.volume("v").state) == ([], "detached")


async def test_any_node_may_be_chosen() -> None:
    """Longhorn takes the first one that it comes upon."""
    left_out = {frozenset("abcd") - set(shard_nodes(await start_volume("abcd", seed))) for seed in range(20)}
    assert left_out == {frozenset(name) for name in "abcd"}


@pytest.mark.parametrize("node", ["d", "f"])
async def test_it_is_attached_to_any_node_that_runs_v2(node: str) -> None:
    world = await start_volume("abcd")
    await world.settle(world.attach("v", node))
    runs = node != "f"
    volume = world.volume("v")
    assert (volume.current_node_id, volume.state) == ((node, "attached") if runs else ("", "attaching"))
    assert volume.robustness == ("healthy" if runs else "unknown")
    await world.settle(world.detach("v"))
    assert (world.volume("v").state, len(shard_nodes(world))) == ("detached", 3)


async def test_it_waits_for_its_last_shard() -> None:
    world = await start_volume("ab")
    await world.settle(world.attach("v", "a"))
    assert (sorted(shard_nodes(world)), world.volume("v").current_node_id) == (["a", "b"], "")
    await world.settle(world.add_node("c", "50Gi", kind=BLOCK))
    assert (sorted(shard_nodes(world)), world.volume("v").current_node_id) == (["a", "b", "c"], "a")


async def test_deletion_frees_the_disks() -> None:
    world = await start_volume("abc")
    await world.settle(world.delete_volume("v"))
    assert ("v" in world.store.volumes.models, world.store.shards.objects) == (False, {})
    assert [world.disk(name).storage_scheduled for name in "abc"] == [0, 0, 0]
