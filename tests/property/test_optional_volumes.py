"""A pod's own volumes without data locality, compared with every way in which Longhorn may place all volumes in a whole cluster."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

from hypothesis import given, strategies as st

from scheduler_core.decide.decision import FilterOptions, Packing
from scheduler_core.decide.explain import explain_nodes
from scheduler_core.decide.filter import filter_nodes
from scheduler_core.model.verdict import Reason
from tests import builders as make
from tests.examples import examples

OPTIONS = FilterOptions(packing=Packing.STALE_SAFE)
FIELDS = ("replicaSoftAntiAffinity", "replicaZoneSoftAntiAffinity", "replicaDiskSoftAntiAffinity")
SETTINGS = ("replica-soft-anti-affinity", "replica-zone-soft-anti-affinity", "replica-disk-soft-anti-affinity")
OVERRIDES = {"enabled": True, "disabled": False}

Place = tuple[str, int]
"""A node's name and the number of a disk."""
Waiting = tuple[int, ...]
Places = tuple[tuple[Place, ...], ...]


@dataclass(frozen=True)
class Remote:
    """A volume without data locality: replicas that are not placed, and where the others are."""

    size: int
    unplaced: int
    placed: tuple[Place, ...]
    soft: tuple[bool, bool, bool]  # whether its replicas may share nodes, zones and disks
    overrides: tuple[str, str, str]  # of the settings for these


@dataclass(frozen=True)
class Cluster:
    """Free Gi by disk, the nodes' zones, the settings and the pod's volumes."""

    free: tuple[tuple[Place, int], ...]
    zones: tuple[tuple[str, str], ...]
    settings: tuple[bool, bool, bool]
    local: tuple[int, ...]
    remotes: tuple[Remote, ...]

    def objects(self) -> list[make.Object]:
        """The same as Kubernetes objects."""
        objects = [
            make.setting(name, "true" if soft else "false") for name, soft in zip(SETTINGS, self.settings, strict=True)
        ]
        objects.append(make.storage_class())
        objects += [make.claim(f"local-{index}", size) for index, size in enumerate(self.local)]
        listed: dict[Place, dict[str, float]] = {place: {} for place, _ in self.free}
        for index, remote in enumerate(self.remotes):
            fields = dict(zip(FIELDS, remote.overrides, strict=True))
            count = remote.unplaced + len(remote.placed)
            name = f"remote-{index}"
            objects += make.bound(name, remote.size, locality="disabled", numberOfReplicas=count, **fields)
            for number, (node, disk) in enumerate(remote.placed):
                replica = f"{name}-{number}"
                listed[node, disk][replica] = remote.size
                objects.append(make.replica(replica, f"vol-{name}", node, size=remote.size, disk=f"d{disk}"))
        for node, zone in self.zones:
            disks = {
                f"d{disk}": make.disk(size + sum(listed[name, disk].values()), listed=listed[name, disk])
                for (name, disk), size in self.free
                if name == node
            }
            objects.append(make.longhorn_node(node, disks, zone=zone))
        return objects

    def candidates(
        self, remote: Remote, placed: tuple[Place, ...], free: tuple[int, ...], *, in_tiers: bool
    ) -> list[int]:
        """The disks for one more replica (getDiskCandidates). Without tiers, whatever other pods may leave no room for:
        every disk that anti-affinity does not forbid.
        """
        node_soft, zone_soft, disk_soft = remote.soft
        zones = dict(self.zones)
        used_nodes = {node for node, _ in placed}
        used_zones = {zones[node] for node in used_nodes}
        tiers = [{node for node in zones if zones[node] not in used_zones}]
        if zone_soft:
            tiers.append(zones.keys() - used_nodes)
            tiers += [used_nodes] if node_soft else []
        if not in_tiers:
            tiers = [set().union(*tiers)]
        for nodes in tiers:
            eligible = [
                index for index, ((node, _), _) in enumerate(self.free) if node in nodes and free[index] >= remote.size
            ]
            empty = [index for index in eligible if self.free[index][0] not in placed]
            chosen = eligible if disk_soft and not (in_tiers and empty) else empty
            if chosen:
                return chosen
        return []


def never_fails(cluster: Cluster, name: str, *, in_tiers: bool) -> bool:
    """Whether each local volume finds a disk on a node in every order, whatever disks are picked."""
    on_node = [index for index, ((node, _), _) in enumerate(cluster.free) if node == name]

    def successors(
        local: Waiting, waiting: Waiting, placed: Places, free: tuple[int, ...]
    ) -> Iterator[tuple[Waiting, Waiting, Places, tuple[int, ...]]]:
        for index in range(len(local)):
            for disk in on_node:
                if free[disk] >= local[index]:
                    yield local[:index] + local[index + 1 :], waiting, placed, _take(free, disk, local[index])
        for index, remote in enumerate(cluster.remotes):
            if waiting[index]:
                for disk in cluster.candidates(remote, placed[index], free, in_tiers=in_tiers):
                    places = tuple(sorted((*placed[index], cluster.free[disk][0])))
                    yield (
                        local,
                        (*waiting[:index], waiting[index] - 1, *waiting[index + 1 :]),
                        (*placed[:index], places, *placed[index + 1 :]),
                        _take(free, disk, remote.size),
                    )

    @cache
    def succeeds(local: Waiting, waiting: Waiting, placed: Places, free: tuple[int, ...]) -> bool:
        if any(all(free[disk] < size for disk in on_node) for size in local):
            return False
        return not local or all(succeeds(*state) for state in successors(local, waiting, placed, free))

    return succeeds(
        cluster.local,
        tuple(remote.unplaced for remote in cluster.remotes),
        tuple(remote.placed for remote in cluster.remotes),
        tuple(size for _, size in cluster.free),
    )


def _take(free: tuple[int, ...], disk: int, size: int) -> tuple[int, ...]:
    return (*free[:disk], free[disk] - size, *free[disk + 1 :])


@st.composite
def clusters(draw: st.DrawFn) -> Cluster:
    """Up to three nodes in two zones, with one or two disks each, and up to two local and two other volumes."""
    names = [f"n{index}" for index in range(draw(st.integers(1, 3)))]
    places = [(name, disk) for name in names for disk in range(draw(st.integers(1, 2)))]
    flags = st.tuples(st.booleans(), st.booleans(), st.booleans())
    override = st.sampled_from(["ignored", "ignored", *OVERRIDES])
    soft = draw(flags)
    remotes = []
    for _ in range(draw(st.integers(1, 2))):
        overrides = draw(st.tuples(override, override, override))
        effective = tuple(OVERRIDES.get(value, default) for value, default in zip(overrides, soft, strict=True))
        placed = draw(st.lists(st.sampled_from(places), max_size=1))
        unplaced = draw(st.integers(0 if placed else 1, 2))
        size = draw(st.integers(1, 5))
        remotes.append(Remote(size, unplaced, tuple(placed), (effective[0], effective[1], effective[2]), overrides))
    return Cluster(
        free=tuple((place, draw(st.integers(1, 9))) for place in places),
        zones=tuple((name, draw(st.sampled_from("ab"))) for name in names),
        settings=soft,
        local=tuple(draw(st.lists(st.integers(1, 5), min_size=1, max_size=2))),
        remotes=tuple(remotes),
    )


@examples(125)
@given(clusters())
def test_order_safety_agrees_with_every_placement_in_the_cluster(cluster: Cluster) -> None:
    """Exact where other pods may fill any disk; sound, and exact for new volumes with hard anti-affinity, where they do not."""
    current = make.state(cluster.objects())
    claims = [f"local-{index}" for index in range(len(cluster.local))]
    claims += [f"remote-{index}" for index in range(len(cluster.remotes))]
    wanted = make.as_pod(make.pod(*claims))
    names = [name for name, _ in cluster.zones]
    explanation = explain_nodes(wanted, names, current, OPTIONS)
    competing = filter_nodes(wanted, names, current, OPTIONS, make.competing(current))
    assert competing.reasons == explanation.decision.reasons
    hard = all(not remote.placed and not (remote.soft[0] and remote.soft[1]) for remote in cluster.remotes)
    for name, verdict in zip(names, explanation.verdicts, strict=True):
        if not verdict.reason.fits and verdict.reason is not Reason.NEVER_SAFE:
            continue
        assert (verdict.reason is Reason.ROOM) == verdict.stale_safe
        assert verdict.order_safe == never_fails(cluster, name, in_tiers=False)
        in_tiers = never_fails(cluster, name, in_tiers=True)
        assert in_tiers or not verdict.order_safe
        if hard:
            assert in_tiers == verdict.order_safe
