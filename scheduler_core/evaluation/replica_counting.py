"""Whether counting excludes a placement of a pod's replicas in the whole cluster, whichever node the pod runs on.

This is for pods and clusters that are too large for a search (`whole_pod.py`). It refuses only what has no placement.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Sequence
from itertools import accumulate

from scheduler_core.evaluation.replica_needs import (
    ReplicaNeed,
    domain_of,
    has_disk_for,
    nodes_in_tiers,
    one_of_each_kind,
)
from scheduler_core.evaluation.state import ClusterState
from scheduler_core.packing.spread import SHARED
from scheduler_core.volumes.requirements import VolumeClasses


def counting_allows(state: ClusterState, needs: Sequence[ReplicaNeed]) -> bool:
    """Whether counting does not exclude a placement, whichever node the pod runs on. Each volume needs enough nodes or
    zones, and the volumes of one class need enough bytes, and enough disks for each size.
    """
    sizes_by_class: dict[VolumeClasses, list[int]] = defaultdict(list)
    for need in needs:
        # A local volume with a replica may need none on the pod's node.
        fewest = need.count - (need.placed and need.volume.local)
        sizes_by_class[need.required.classes] += [need.volume.volume.size] * fewest
    spreading = [need for need in needs if need.elsewhere]
    for need in one_of_each_kind(spreading):
        if not _has_domains(state, need):
            return False
    for classes in {need.required.classes: None for need in spreading}:
        table = state.profiles.table(classes)
        free: list[int] = []
        for profile in table.profiles.values():
            free += profile.free
        if counting_refuses(sizes_by_class[classes], free):
            return False
    return True


def _has_domains(state: ClusterState, need: ReplicaNeed) -> bool:
    cluster = state.view.cluster
    table = state.profiles.table(need.required.classes)
    tiers = nodes_in_tiers(cluster, need)
    wanted = need.count - need.volume.local
    volume = need.volume.volume
    domains: set[object] = set()
    for name, profile in table.profiles.items():
        if (tiers is None or name in tiers) and has_disk_for(profile, volume.size, volume.actual_size):
            domain = domain_of(cluster, need, cluster.nodes[name], "")
            if domain in (SHARED, ("disk", "")):
                return True
            domains.add(domain)
            if len(domains) >= wanted:
                return True
    return wanted == 0


def counting_refuses(sizes: Sequence[int], free: Sequence[int]) -> bool:
    """Whether replicas of these sizes cannot fit the disks together. For each size, the replicas that are at least as
    large need a disk's room of that size each.
    """
    descending = sorted(sizes, reverse=True)
    rooms = sorted(free, reverse=True)
    bytes_needed = list(accumulate(descending, initial=0))
    bytes_free = list(accumulate(rooms, initial=0))
    for smallest in sorted(set(sizes) - {0}):
        large = bisect_right(descending, -smallest, key=int.__neg__)
        roomy = bisect_right(rooms, -smallest, key=int.__neg__)
        if bytes_needed[large] > bytes_free[roomy]:
            return True
        places = 0
        for room in rooms[:roomy]:
            if places >= large:
                break
            places += room // smallest
        if places < large:
            return True
    return False
