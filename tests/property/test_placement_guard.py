"""The guard of placements, compared with trying every assignment of volumes to disks, and with Longhorn's own rules."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hypothesis import given, strategies as st

from scheduler_core.evaluation.cluster_state import ClusterState
from scheduler_core.guard.placement_guard import GuardOutcome
from scheduler_core.model.longhorn import Placement
from tests import builders as make
from tests.examples import examples
from tests.property.test_packing import brute_force
from tests.worlds.placements import decide, node_with_disks, placement, state_of, waiting_volume


@dataclass(frozen=True)
class World:
    """A node, and the volumes that are to come to it, oldest first."""

    disks: Sequence[tuple[int, bool]]  # bytes in Gi, and whether the disk is fast
    volumes: Sequence[tuple[int, bool]]  # bytes in Gi, and whether the volume needs a fast disk

    def state(self, placed: Mapping[int, int] | None = None) -> ClusterState:
        """The cluster; of some volumes, the watches show the disks that they were placed on."""
        disks = {
            f"d{index}": make.disk(size, tags=["fast"] if fast else []) for index, (size, fast) in enumerate(self.disks)
        }
        objects = node_with_disks(disks)
        for index, (size, fast) in enumerate(self.volumes):
            selector: dict[str, Any] = {"diskSelector": ["fast"]} if fast else {}
            *volume, replica = waiting_volume(f"v{index}", size, index, **selector)
            disk = (placed or {}).get(index)
            if disk is not None:
                replica = make.replica(f"r-v{index}", f"vol-v{index}", "n", size=size, disk=f"d{disk}", healthy=False)
            objects += [*volume, replica]
        return state_of(objects)

    def placement(self, volume: int, disk: int) -> Placement:
        return placement(f"v{volume}", self.volumes[volume][0], f"d{disk}")

    def is_open(self, volume: int, disk: int) -> bool:
        """Whether Longhorn may choose the disk while its status shows none of the placements."""
        size, needs_fast = self.volumes[volume]
        free, fast = self.disks[disk]
        return size <= free and (fast or not needs_fast)

    def packs(self, volumes: Sequence[int], placed: Mapping[int, int]) -> bool:
        """Whether the volumes fit together with those that are placed."""
        free = [size for size, _ in self.disks]
        for volume, disk in placed.items():
            free[disk] -= self.volumes[volume][0]
        waiting = [self.volumes[volume] for volume in volumes if volume not in placed]
        fast_disks = sum(1 << disk for disk, (_, fast) in enumerate(self.disks) if fast)
        masks = [fast_disks if needs_fast else -1 for _, needs_fast in waiting]
        return min(free) >= 0 and brute_force([size for size, _ in waiting], free, masks)

    def fitting(self) -> list[int]:
        """The volumes that are not hopeless: older before younger."""
        fitting: list[int] = []
        for volume in range(len(self.volumes)):
            if self.packs([*fitting, volume], {}):
                fitting.append(volume)
        return fitting


def disk_of(placed: Placement) -> int:
    return int(placed.disk.removeprefix("n-d"))


fast_or_not = st.sampled_from((False, False, True))
small_worlds = st.builds(
    World,
    st.lists(st.tuples(st.integers(4, 12), st.booleans()), min_size=1, max_size=3),
    st.lists(st.tuples(st.integers(1, 8), fast_or_not), min_size=1, max_size=4),
)


@examples(200)
@given(small_worlds, st.integers(0, 3), st.integers(0, 2))
def test_longhorns_choice_stays_whenever_the_rest_still_fits(world: World, volume: int, disk: int) -> None:
    volume %= len(world.volumes)
    disk %= len(world.disks)
    if not world.is_open(volume, disk):
        return
    decision = decide(world.state(), world.placement(volume, disk))
    written = disk_of(decision.allowance)
    fitting = world.fitting()
    if volume not in fitting:
        assert (decision.outcome, written) == (GuardOutcome.NO_PLAN, disk)
    elif world.packs(fitting, {volume: disk}):
        assert (decision.outcome, written) == (GuardOutcome.LEFT, disk)
    else:
        assert decision.outcome is GuardOutcome.CHANGED
        assert world.packs(fitting, {volume: written})


@st.composite
def full_worlds(draw: st.DrawFn, max_volumes: int) -> World:
    """A node whose volumes fit, with little or no space left on some disks."""
    disks = [[0, draw(fast_or_not)] for _ in range(draw(st.integers(2, 4)))]
    volumes = []
    for _ in range(draw(st.integers(2, max_volumes))):
        disk = draw(st.sampled_from(disks))
        size = draw(st.integers(1, 9))
        disk[0] += size
        volumes.append((size, bool(disk[1]) and draw(st.booleans())))
    spare = draw(st.sampled_from((0, 0, 1, 3)))
    return World([(disk[0] + spare, bool(disk[1])) for disk in disks], draw(st.permutations(volumes)))


def _finished(world: World, state: ClusterState, allowed: Mapping[int, Placement]) -> Iterator[dict[int, int]]:
    """Yields the places of all volumes, for every order and every choice that stale status allows."""
    waiting = [volume for volume in range(len(world.volumes)) if volume not in allowed]
    if not waiting:
        yield {volume: disk_of(place) for volume, place in allowed.items()}
    for volume in waiting:
        for disk in range(len(world.disks)):
            if world.is_open(volume, disk):
                decision = decide(state, world.placement(volume, disk), allowed.values())
                yield from _finished(world, state, {**allowed, volume: decision.allowance})


@examples(60)
@given(full_worlds(3))
def test_every_order_and_every_choice_of_longhorns_ends_with_all_volumes_placed(world: World) -> None:
    """On status that never follows, with 0 bytes overbooked: exhaustively."""
    ends = list(_finished(world, world.state(), {}))
    assert ends
    assert all(world.packs((), places) for places in ends)


@dataclass
class Burst:
    """Placements of all volumes one after the other, which the watches show late and Longhorn's status never."""

    world: World
    state: ClusterState  # what the watches have shown
    allowed: dict[int, Placement] = field(default_factory=dict[int, Placement])  # the guard's decisions by volume

    def show(self, volumes: Iterable[int]) -> None:
        self.state = self.world.state({volume: disk_of(self.allowed[volume]) for volume in volumes})

    def place(self, volume: int, disk: int) -> GuardOutcome:
        """Places a volume; what a watch has shown is sometimes still an allowance."""
        decision = decide(self.state, self.world.placement(volume, disk), self.allowed.values())
        self.allowed[volume] = decision.allowance
        return decision.outcome


@examples(75)
@given(full_worlds(9), st.data())
def test_any_order_and_any_choice_of_longhorns_ends_with_all_volumes_placed(world: World, data: st.DataObject) -> None:
    """Whatever the watches have shown of it, and also if a placement is written twice."""
    burst = Burst(world, world.state())
    for volume in data.draw(st.permutations(range(len(world.volumes)))):
        disks = [disk for disk in range(len(world.disks)) if world.is_open(volume, disk)]
        for disk in data.draw(st.lists(st.sampled_from(disks), min_size=1, max_size=2)):
            outcome = burst.place(volume, disk)
            assert outcome in (GuardOutcome.LEFT, GuardOutcome.CHANGED)
        burst.show(data.draw(st.lists(st.sampled_from(sorted(burst.allowed)), unique=True)))
        assert world.packs(range(len(world.volumes)), {key: disk_of(place) for key, place in burst.allowed.items()})
