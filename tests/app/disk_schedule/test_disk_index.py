"""What is on each disk and what is left there, after every kind of event."""

from collections.abc import Callable

from scheduler_core.disk_schedule.occupancy import occupancy_by_disk
from scheduler_core.disk_schedule.reconcile import NodeLookup
from scheduler_core.longhorn.cluster import Cluster
from scheduler_core.model.snapshot import Snapshot
from tests import builders
from tests.builders import GI
from tests.e2e.disk_schedule import image
from tests.worlds.controllers import World, put
from tests.worlds.disk_schedules import disk_spaces

UUID = "n-disk-1"


def assert_as_computed_from_all(world: World) -> None:
    """The index equals what the core computes from all objects."""
    caches = world.watches
    volumes = {name: each.volume for name, each in caches.volumes.readable.items()}
    assert caches.disks.volumes == volumes
    occupancy = occupancy_by_disk(
        caches.replicas.readable.values(), volumes, [each.copies for each in caches.images.readable.values()]
    )
    schedules = caches.schedules.readable
    nodes: dict[str, NodeLookup] = {**caches.nodes.readable, **caches.nodes.unreadable}
    assert (
        caches.disks.replicas_by_volume
        == Cluster.of(Snapshot(replicas=caches.replicas.readable), world.context.now()).replicas_by_volume
    )
    assert dict(caches.disks.space()) == disk_spaces(schedules, nodes, occupancy)
    for uuid, expected in occupancy.items():
        assert caches.disks.occupancy(uuid) == expected


def test_the_index_follows_every_event() -> None:
    world = World()
    caches = world.watches
    copied = image("i", 3, disks=[UUID])
    steps: list[Callable[[], None]] = [
        lambda: world.replica("r", "v", size=5, healthy=False),
        lambda: put(caches.volumes, builders.volume("v", 5, backingImage="i")),
        lambda: world.schedule(UUID, spec={"replicas": {"old": 7 * GI}}),
        lambda: put(caches.nodes, builders.longhorn_node("n", 100)),
        lambda: put(caches.images, copied),
        lambda: world.replica("r", "v", size=5),
        lambda: world.replica("r", "v", "m", size=5),
        lambda: world.replica("r", "v", size=5, deleting=True),
        lambda: caches.replicas.change("r", None),
        lambda: world.replica("late", "w", size=0, healthy=False),
        lambda: put(caches.volumes, builders.volume("w", 9)),
        lambda: caches.images.change("i", None),
        lambda: caches.replicas.change("late", None),
        lambda: caches.volumes.change("w", None),
        lambda: caches.nodes.change("n", None),
        lambda: caches.schedules.change(UUID, None),
    ]
    for step in steps:
        step()
        assert_as_computed_from_all(world)


def test_a_replica_that_is_about_to_be_placed_counts_until_the_cache_says_where_it_is() -> None:
    world = World()
    caches = world.watches
    put(caches.nodes, builders.longhorn_node("n", 100))
    world.schedule(UUID)
    world.replica("r", "v", "", size=30)
    before = caches.disks.space()[UUID].free
    caches.disks.assume("r", UUID)
    assert caches.disks.space()[UUID].free == before - 30 * GI
    caches.disks.refresh("r")
    assert caches.disks.space()[UUID].free == before


def test_a_replica_that_cannot_be_read_is_still_known_to_its_volume_and_on_its_disk() -> None:
    world = World()
    world.replica("r", "v", size=5)
    before = world.watches.disks.occupancy(UUID)
    assert before.replicas
    world.unreadable_replica("r", labels={"longhornvolume": "v"})
    assert world.watches.disks.occupancy(UUID) == before
    assert world.watches.disks.replicas_of["v"] == {"r"}
