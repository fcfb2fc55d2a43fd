"""Growth that a claim requests counts on the disks of its replicas before Longhorn grows the volume."""

from collections.abc import Sequence
from typing import Any

import pytest

from scheduler_core.cluster.view import View
from scheduler_core.volumes.resolve import resolve
from tests import builders as make
from tests.builders import GI, Object
from tests.worlds.disk_schedules import disk_schedule

MIB = 1024**2


def bound(name: str, requested: float | str, *, size: float = 20, capacity: str = "", **fields: Any) -> list[Object]:
    """A volume of `size` Gi whose claim requests something else."""
    volume = make.persistent_volume(name, uid=f"uid-{name}")
    if capacity:
        volume["spec"]["capacity"] = {"storage": capacity}
    claim = make.claim(name, requested, bound=True)
    return [claim, volume, make.volume(f"vol-{name}", size, **fields)]


def replica(name: str, node: str, *, size: float = 20, number: int = 1) -> Object:
    return make.replica(f"r-{name}-{number}", f"vol-{name}", node, size=size)


def node(name: str, *listed: str, size: float = 100, of: float = 20) -> Object:
    """A node with one disk whose status lists replicas of `of` Gi each."""
    disk = make.disk(size, listed=dict.fromkeys(listed, of))
    return make.longhorn_node(name, {"disk-1": disk})


def free(view: View, name: str = "a") -> float:
    """The free Gi of a node's only disk."""
    return view.free_space(name)["disk-1"].free / GI


def view_of(*objects: Object | Sequence[Object]) -> View:
    return make.view(make.storage_class(), *objects)


def test_requested_growth_counts_on_the_disk_of_the_replica() -> None:
    view = view_of(bound("x", 50), replica("x", "a"), node("a", "r-x-1"))
    assert free(view) == 100 - 50
    [disk] = view.snapshot.longhorn_nodes["a"].disks
    assert view.uncounted_bytes("a", disk) == 30 * GI


def test_every_replica_grows() -> None:
    replicas = [replica("x", "a"), replica("x", "b", number=2)]
    view = view_of(bound("x", 50, numberOfReplicas=2), replicas, node("a", "r-x-1"), node("b", "r-x-2"))
    assert (free(view, "a"), free(view, "b")) == (50, 50)


def test_growth_counts_once_while_replicas_grow_one_after_the_other() -> None:
    """A replica that has grown counts with its size, though its status lags behind."""
    replicas = [replica("x", "a", size=50), replica("x", "b", number=2)]
    view = view_of(bound("x", 50, size=50, numberOfReplicas=2), replicas, node("a", "r-x-1"), node("b", "r-x-2"))
    assert (free(view, "a"), free(view, "b")) == (50, 50)


def test_the_size_is_rounded_as_longhorn_rounds_it() -> None:
    view = view_of(bound("x", str(20 * GI + 1)), replica("x", "a"), node("a", "r-x-1"))
    assert view.indexes.growth["a-disk-1"] == 2 * MIB


NO_GROWTH: dict[str, list[Object]] = {
    "a smaller request": bound("x", 10),
    "a static volume that Kubernetes takes for large enough": bound("x", 50, capacity="60Gi"),
    "another volume's claim": [*bound("x", 50)[1:], make.claim("x", 50)],
}


@pytest.mark.parametrize("case", NO_GROWTH)
def test_a_claim_that_requests_no_growth_changes_nothing(case: str) -> None:
    assert free(view_of(NO_GROWTH[case], replica("x", "a"), node("a", "r-x-1"))) == 80


def test_a_claim_that_is_being_deleted_does_not_grow() -> None:
    claim, *others = bound("x", 50)
    claim["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    assert free(view_of(claim, others, replica("x", "a"), node("a", "r-x-1"))) == 80


def test_growth_that_longhorn_refuses_does_not_count() -> None:
    """It grows all replicas or none, and a request larger than a disk would block the disks for ever."""
    replicas = [replica("x", "a"), replica("x", "b", number=2)]
    nodes = [node("a", "r-x-1"), node("b", "r-x-2", size=40)]
    view = view_of(bound("x", 50, numberOfReplicas=2), replicas, nodes)
    assert (free(view, "a"), free(view, "b")) == (80, 20)


def test_of_two_volumes_that_cannot_grow_together_one_counts() -> None:
    objects = [*bound("x", 60), *bound("y", 60), replica("x", "a"), replica("y", "a")]
    assert free(view_of(objects, node("a", "r-x-1", "r-y-1"))) == 20


def test_a_replica_on_a_disk_that_is_gone_keeps_its_volume_from_growing() -> None:
    replicas = [replica("x", "a"), replica("x", "gone", number=2)]
    assert free(view_of(bound("x", 50, numberOfReplicas=2), replicas, node("a", "r-x-1"))) == 80


def test_a_pods_own_volume_counts_with_its_requested_size() -> None:
    pod = make.pod("x")
    view = view_of(bound("x", 50), replica("x", "a"), node("a", "r-x-1"), pod)
    [volume] = resolve(make.as_pod(pod), view).volumes
    assert volume.volume.size == 50 * GI


def test_growth_that_the_volume_shows_counts_while_its_replicas_are_small() -> None:
    view = view_of(bound("x", 20, size=50), replica("x", "a"), node("a", "r-x-1"))
    assert free(view) == 100 - 50


def test_demand_counts_with_the_requested_size() -> None:
    state = make.state(
        make.storage_class(), bound("x", 50), replica("x", "a"), node("a", "r-x-1"), node("b"), make.pod("x", node="b")
    )
    [demand] = state.demand.all
    assert (demand.node, demand.volume.volume.size) == ("b", 50 * GI)


def test_growth_that_a_disk_schedule_holds_counts_once() -> None:
    objects = [*bound("x", 50), replica("x", "a"), node("a", "r-x-1")]
    schedule = disk_schedule("a-disk-1", node="a", replicas={"r-x-1": 50}, answers={"r-x-1": ("scheduled", 20)})
    assert free(view_of(objects, schedule)) == free(view_of(objects)) == 50
