"""Two processes review the placements of one node in turn, each on watches that lag by themselves.

The volumes fill the disks exactly, so one placement against the plan leaves a later volume without a disk.
"""

import functools
import operator
from random import Random

import pytest
from structlog.testing import capture_logs

from app.evaluator import Evaluator
from app.extender.guard import GuardContext, PlacementGuard
from app.extender.metrics import Metrics
from scheduler_core.convert.admission import admission_request
from scheduler_core.decide.decision import Contenders, FilterOptions
from scheduler_core.decide.extender_settings import ExtenderSettings, GuardMode
from scheduler_core.model.longhorn import Placement, Replica
from tests import builders as make
from tests.builders import GI, Object
from tests.worlds.placements import NODE, node_with_disks, path_of, placement, placement_review, waiting_volume
from tests.worlds.state_source import FakeStateSource
from tests.worlds.virtual_time import run, virtual_loop


class Process:
    """A process that does not lead."""

    def __init__(self, objects: list[Object], written: list[Placement]) -> None:
        self.cache = FakeStateSource(objects)
        self.unseen: list[Placement] = []  # the replicas that its watch has not delivered yet
        self._written = written
        context = GuardContext(
            lambda: ExtenderSettings(placement_guard=GuardMode.ENFORCE),
            lambda: False,
            self._contenders,
            self._recorded,
            self._replicas,
            lambda: "",
        )
        clock = virtual_loop().time
        self.guard = PlacementGuard(self.cache, Evaluator(self.cache, FilterOptions()), context, Metrics(), clock)
        self.cache.subscribe("replicas", self.guard.note_delivery)

    def _contenders(self) -> Contenders:
        return make.competing(self.cache.state())

    async def _recorded(self, _node: str) -> Contenders:
        return self._contenders()

    async def _replicas(self, _node: str) -> list[Replica]:
        return [
            Replica(place.replica, place.volume, place.size, place.node, place.disk, place.disk_path)
            for place in self._written
        ]

    def deliver(self) -> None:
        """The watch shows the oldest replica that it has not shown."""
        place = self.unseen.pop(0)
        size = place.size / GI
        raw = make.replica(place.replica, place.volume, NODE, size=size, healthy=False, diskID=place.disk)
        raw["spec"]["diskPath"] = place.disk_path
        self.cache.put(raw)


def _filled_disks(random: Random) -> tuple[dict[str, int], list[int]]:
    disks = {name: random.randint(4, 12) for name in "abc"}
    sizes: list[int] = []
    for size in disks.values():
        first = random.randint(1, size - 1)
        sizes += [first, size - first]
    random.shuffle(sizes)
    return disks, sizes


async def _place_all(random: Random) -> None:
    disks, sizes = _filled_disks(random)
    volumes = [waiting_volume(f"v{number}", size, number) for number, size in enumerate(sizes)]
    objects = [
        *node_with_disks({name: make.disk(size) for name, size in disks.items()}),
        *functools.reduce(operator.iadd, volumes, []),
    ]
    written: list[Placement] = []
    processes = [Process(objects, written) for _ in range(2)]
    free = dict(disks)
    for number in random.sample(range(len(sizes)), len(sizes)):
        process = random.choice(processes)
        # Longhorn's figures lag as well.
        wanted = placement(f"v{number}", sizes[number], random.choice(list(disks)))
        patch = await process.guard.review(admission_request(placement_review(wanted)))
        values = {change["path"]: change["value"] for change in patch if change["op"] == "replace"}
        disk = values.get("/spec/diskID", wanted.disk).removeprefix(f"{NODE}-")
        free[disk] -= sizes[number]
        assert free[disk] >= 0, (disks, sizes, written, wanted)
        place = placement(f"v{number}", sizes[number], disk)
        assert place.disk_path == path_of(disk)
        written.append(place)
        for each in processes:
            each.unseen.append(place)
            while each.unseen and random.random() < 0.3:
                each.deliver()
    assert set(free.values()) == {0}


@pytest.mark.parametrize("seed", range(100))
def test_two_processes_keep_one_plan_whatever_their_watches_have_shown(seed: int) -> None:
    """The later reads what the earlier wrote."""
    with capture_logs():
        run(_place_all(Random(seed)))  # noqa: S311 # for examples
