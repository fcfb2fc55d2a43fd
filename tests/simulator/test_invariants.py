"""Invariants of the simulated Longhorn hold after any sequence of events."""

import asyncio

from hypothesis import HealthCheck, given, settings, strategies as st

from scheduler_core.model.longhorn import BEST_EFFORT, DISABLED, STRICT_LOCAL
from simulator.volumes.observation import is_working
from tests.worlds.simulator import World

Kind = tuple[str, int, int]
Event = tuple[str, str, object]

NODES = "abcd"
VOLUMES = ("u", "v", "w")
LOCALITIES = (DISABLED, BEST_EFFORT, STRICT_LOCAL)

_kind = st.tuples(st.sampled_from(LOCALITIES), st.integers(1, 30), st.integers(1, 3))
_volume = st.sampled_from(VOLUMES)
_node = st.sampled_from(NODES)
_event = st.one_of(
    st.tuples(st.just("add"), _volume, _kind),
    st.tuples(st.just("attach"), _volume, _node),
    st.tuples(st.just("detach"), _volume, st.none()),
    st.tuples(st.just("delete"), _volume, st.none()),
    st.tuples(st.just("down"), _node, st.none()),
    st.tuples(st.just("up"), _node, st.none()),
    st.tuples(st.just("evict"), _node, st.none()),
    st.tuples(st.just("keep"), _node, st.none()),
    st.tuples(st.just("write"), _volume, st.integers(1, 40)),
)


@given(
    kinds=st.tuples(*[_kind] * len(VOLUMES)),
    homes=st.tuples(*[_node] * len(VOLUMES)),
    events=st.lists(_event, min_size=1, max_size=8),
    seed=st.integers(0, 9),
    size=st.sampled_from(["20Gi", "40Gi", "90Gi"]),
)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_invariants_hold_after_every_event(
    kinds: tuple[Kind, ...], homes: tuple[str, ...], events: list[Event], seed: int, size: str
) -> None:
    initial: list[Event] = [("add", name, kind) for name, kind in zip(VOLUMES, kinds, strict=True)]
    initial += [("attach", name, home) for name, home in zip(VOLUMES, homes, strict=True)]
    world = asyncio.run(_apply_events([*initial, *events], seed, size))
    assert all(freed["metadata"].get("deletionTimestamp") for freed in world.api.freed)


async def _apply_events(events: list[Event], seed: int, size: str) -> World:
    world = World(seed=seed)
    await world.start(*[size] * len(NODES), replica_replenishment_wait_interval="0")
    for event in events:
        await world.settle(_apply_event(world, *event))
        _assert_invariants(world)
    return world


async def _apply_event(world: World, what: str, name: str, detail: object) -> None:  # one branch per event
    exists = name in world.store.volumes.models
    match what, detail:
        case "add", (str(locality), int(gib), int(replicas)) if not exists:
            if name not in world.store.persistent_volumes.models:
                await world.add_volume(name, gib, locality, 1 if locality == STRICT_LOCAL else replicas)
        case "attach", str(node) if exists and f"{name}-{node}" not in world.store.attachments.models:
            await world.attach(name, node)
        case "detach", _ if exists:
            await world.detach(name)
        case "delete", _ if exists:
            await world.detach(name)
            await world.delete_volume(name)
        case "down", _:
            await world.annotate_node(name, down="true")
        case "up", _:
            await world.annotate_node(name, down=None)
        case "evict", _:
            await world.patch_disk(name, allowScheduling=False, evictionRequested=True)
        case "keep", _:
            await world.patch_disk(name, allowScheduling=True, evictionRequested=False)
        case "write", int(gib) if exists:
            await world.write(name, gib)
        case _:
            pass


def _assert_invariants(world: World) -> None:
    models = world.store.replicas.models.values()
    for node in world.store.longhorn_nodes.models.values():
        for disk in node.disks:
            if disk.ready:
                assert disk.storage_scheduled == sum(replica.size for replica in models if replica.disk_id == disk.uuid)
            assert disk.ready is node.ready
            assert 0 <= disk.storage_available <= disk.storage_maximum
    for name, volume in world.store.volumes.models.items():
        replicas = world.replicas(name)
        if volume.state == "attached":
            assert any(is_working(replica) for replica in replicas)
            assert volume.node_id == volume.current_node_id != ""
        if volume.state == "detached":
            assert not any(replica.model.current_state == "running" for replica in replicas)
        if volume.data_locality == STRICT_LOCAL and volume.current_node_id:
            assert world.places(name) == [volume.current_node_id]
        if volume.robustness == "healthy":
            assert sum(1 for replica in replicas if is_working(replica)) >= volume.number_of_replicas
        assert len(replicas) <= volume.number_of_replicas + len(NODES) + 1
