"""Decisions about pods with sharded volumes, compared with trying every place of every shard, replica and local volume."""

from functools import cache
from typing import Any

from hypothesis import given, strategies as st

from scheduler_core.decide.decision import FilterOptions, Packing
from scheduler_core.longhorn.csi_driver import shard_size
from scheduler_core.model.longhorn import DataLayout
from tests import builders as make
from tests.builders import GI, Object, explained
from tests.examples import examples

EXACT = FilterOptions(packing=Packing.EXACT)
STRIP_KB = 64
Disk = tuple[str, int, bool]
"""A node's name, free bytes, and whether it is a v2 disk."""
Sharded = tuple[int, int, int]
"""Gi, data and parity chunks."""


def shard(volume: Sharded) -> int:
    gib, data, parity = volume
    return shard_size(gib * GI, DataLayout(data, parity, STRIP_KB))


sharded_volumes = st.lists(st.tuples(st.integers(2, 12), st.integers(1, 2), st.integers(1, 2)), min_size=1, max_size=2)
sizes = st.lists(st.integers(1, 9), max_size=1)


@st.composite
def clusters(draw: st.DrawFn, volumes: list[Sharded], others: list[int]) -> list[Disk]:
    """Disks whose free bytes are those of some volumes together, give or take a byte, so that few clusters are roomy."""
    parts = [*map(shard, volumes), *(size * GI for size in others)]
    rooms = st.builds(
        lambda chosen, change: sum(chosen) + change,
        st.lists(st.sampled_from(parts), min_size=1, max_size=2),
        st.sampled_from((0, 0, 0, -1, GI)),
    )
    nodes = [f"n{number}" for number in range(1, draw(st.integers(2, 5)) + 1)]
    return [
        (name, draw(rooms), draw(st.sampled_from((True, True, True, True, False))))
        for name in nodes
        for _ in range(draw(st.sampled_from((1, 1, 2))))
    ]


def objects(disks: list[Disk], volumes: list[Sharded], local: list[int], remote: list[int]) -> list[Object]:
    """The cluster with the pod's claims s0, s1, l0 and r0."""
    found = [make.storage_class("local", dataEngine="v2")]
    found += [make.storage_class("remote", dataEngine="v2", dataLocality="disabled")]
    for number, (gib, data, parity) in enumerate(volumes):
        layout = {"type": "sharded", "dataChunks": str(data), "parityChunks": str(parity), "stripSizeKB": str(STRIP_KB)}
        parameters: dict[str, Any] = {f"dataLayout.{key}": value for key, value in layout.items()}
        found.append(make.storage_class(f"ec{number}", dataEngine="v2", **parameters))
        found.append(make.claim(f"s{number}", gib, storage_class=f"ec{number}"))
    found += [make.claim(f"l{number}", size, storage_class="local") for number, size in enumerate(local)]
    found += [make.claim(f"r{number}", size, storage_class="remote") for number, size in enumerate(remote)]
    for name in dict.fromkeys(name for name, _, _ in disks):
        on_node = [(free, is_block) for node, free, is_block in disks if node == name]
        entries = {
            f"d{index}": make.disk(free / GI, kind="block" if is_block else "filesystem")
            for index, (free, is_block) in enumerate(on_node)
        }
        found += [make.kube_node(name), make.longhorn_node(name, entries)]
    return found


def has_placement(disks: list[Disk], volumes: list[Sharded], local: list[int], remote: list[int], node: str) -> bool:
    """Whether the shards find distinct nodes while the local volumes are on `node` and the others anywhere."""
    items: list[tuple[int, str]] = [(size * GI, "local") for size in local]
    items += [(size * GI, "remote") for size in remote]
    for number, volume in enumerate(volumes):
        items += [(shard(volume), f"shard {number}")] * (volume[1] + volume[2])

    @cache
    def place(index: int, free: tuple[int, ...], used: frozenset[tuple[str, str]]) -> bool:
        if index == len(items):
            return True
        size, kind = items[index]
        for number, (name, _, is_block) in enumerate(disks):
            key = (kind, name)
            barred = kind == "local" and name != node
            if not is_block or barred or free[number] < size or key in used:
                continue
            left = (*free[:number], free[number] - size, *free[number + 1 :])
            if place(index + 1, left, used | {key} if kind.startswith("shard") else used):
                return True
        return False

    return place(0, tuple(free for _, free, _ in disks), frozenset())


@examples(150)
@given(st.data())
def test_a_pod_fits_where_all_its_volumes_have_a_placement(data: st.DataObject) -> None:
    """Sharded, local and other volumes together, on every node."""
    volumes, local, remote = data.draw(sharded_volumes), data.draw(sizes), data.draw(sizes)
    disks = data.draw(clusters(volumes, local + remote))
    claims = [f"s{number}" for number in range(len(volumes))] + ["l0"] * len(local) + ["r0"] * len(remote)
    explanation = explained(make.pod(*claims), objects(disks, volumes, local, remote), options=EXACT)
    decision = explanation.decision
    for name, reason in zip(decision.candidates, decision.reasons, strict=True):
        assert reason.fits is has_placement(disks, volumes, local, remote, name), (name, reason)
