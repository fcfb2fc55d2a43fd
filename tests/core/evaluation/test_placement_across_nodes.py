"""A pod needs a place for all its replicas together: local ones on its node, the others on any."""

from typing import Any

import pytest

from scheduler_core.decide.decision import FilterOptions, Packing
from scheduler_core.decide.filter import filter_nodes
from scheduler_core.evaluation import placement_across_nodes, replicas_to_place
from scheduler_core.model.verdict import Reason
from scheduler_core.packing import spread
from tests import builders as make
from tests.builders import GI, Object, explained, reasons

CLASSES = [make.storage_class(), make.storage_class("remote", dataLocality="disabled")]
EVERY_REPLICA = make.setting("allow-volume-creation-with-degraded-availability", "false")


def nodes(*sizes: float, **fields: Any) -> list[Object]:
    return [make.longhorn_node(f"n{number}", size, **fields) for number, size in enumerate(sizes, start=1)]


def local_and_remote(local: float, remote: float) -> list[Object]:
    """The claims ``a``, which needs local space, and ``b``, which does not."""
    return [*CLASSES, make.claim("a", local), make.claim("b", remote, storage_class="remote")]


def remote_replicas(count: int, size: float = 60, **parameters: Any) -> list[Object]:
    """The claim ``b`` of a volume with several replicas, all of which need a place."""
    parameters = {"dataLocality": "disabled", **parameters}
    replicas = make.storage_class("many", numberOfReplicas=str(count), **parameters)
    return [replicas, make.claim("b", size, storage_class="many"), EVERY_REPLICA]


def test_a_local_and_a_remote_volume_do_not_share_the_same_bytes() -> None:
    explanation = explained(make.pod("a", "b"), nodes(100), local_and_remote(60, 60))
    assert reasons(explanation) == {"n1": "NOT_TOGETHER_IN_CLUSTER"}
    assert explanation.verdicts[0].detail == (
        "these replicas find no room together: a (60Gi): 1 on node n1; b (60Gi): 1 on any node"
    )


@pytest.mark.parametrize(
    ("sizes", "fields", "fits"),
    [
        pytest.param((100, 100, 60), {}, True, id="three nodes"),
        pytest.param((100, 100, 50), {}, False, id="one of them too small"),
        pytest.param((120, 60), {"replicaSoftAntiAffinity": "enabled"}, True, id="nodes shared"),
        pytest.param((110, 60), {"replicaSoftAntiAffinity": "enabled"}, False, id="nodes shared, too small"),
        pytest.param(
            (180, 60),
            {"replicaSoftAntiAffinity": "enabled", "replicaDiskSoftAntiAffinity": "disabled"},
            False,
            id="nodes shared, disks not",
        ),
    ],
)
def test_every_replica_has_a_place_if_longhorn_waits_for_all(
    sizes: tuple[float, ...], fields: dict[str, Any], fits: bool
) -> None:
    explanation = explained(make.pod("b"), nodes(*sizes), remote_replicas(3, **fields))
    assert set(reasons(explanation).values()) == {"ATTACHABLE" if fits else "NOT_TOGETHER_IN_CLUSTER"}


@pytest.mark.parametrize(
    ("count", "parameters", "detail"),
    [
        pytest.param(
            3,
            {},
            "b needs 3 nodes for its replicas, 2 can take one, and replica-soft-anti-affinity is false; what helps: "
            "numberOfReplicas 2, one more node, soft anti-affinity, or allow-volume-creation-with-degraded-availability true",
            id="nodes",
        ),
        pytest.param(
            2,
            {"replicaZoneSoftAntiAffinity": "disabled"},
            "b needs 2 zones for its replicas, 1 can take one, and the volume's own zone anti-affinity is hard; what helps: "
            "numberOfReplicas 1, one more zone (label nodes with topology.kubernetes.io/zone), soft anti-affinity, or "
            "allow-volume-creation-with-degraded-availability true",
            id="zones",
        ),
    ],
)
@pytest.mark.parametrize("locality", ["disabled", "best-effort"])
def test_too_few_nodes_or_zones_are_not_called_missing_space(
    count: int, parameters: dict[str, Any], detail: str, locality: str
) -> None:
    """Larger disks would not help."""
    objects = remote_replicas(count, dataLocality=locality, **parameters)
    explanation = explained(make.pod("b"), nodes(100, 100), objects)
    assert set(reasons(explanation).values()) == {"TOO_FEW_NODES"}
    assert {verdict.detail for verdict in explanation.verdicts} == {detail}


def test_replicas_are_in_different_zones_if_they_may_not_share_one() -> None:
    objects = remote_replicas(2, replicaZoneSoftAntiAffinity="disabled")
    east = make.longhorn_node("e1", zone="east"), make.longhorn_node("e2", zone="east")
    west = make.longhorn_node("w1", zone="west")
    assert set(reasons(explained(make.pod("b"), east, objects)).values()) == {"TOO_FEW_NODES"}
    assert set(reasons(explained(make.pod("b"), east, west, objects)).values()) == {"ATTACHABLE"}


@pytest.mark.parametrize(
    ("west", "reason"),
    [
        pytest.param(10, "ROOM", id="another zone has room"),
        pytest.param(9, "NOT_TOGETHER_IN_CLUSTER", id="another zone is full"),
    ],
)
def test_the_local_replica_takes_a_zone_that_evicting_replicas_leave_to_others(west: float, reason: str) -> None:
    """Longhorn uses nodes with evicting replicas again only while their zones hold no other replica."""
    volume = make.bound("a", 10, numberOfReplicas=3, replicaZoneSoftAntiAffinity="disabled")
    evicting = make.replica("r1", "vol-a", "old", size=10, evictionRequested=True)
    pending = [make.replica(name, "vol-a", size=10) for name in ("r2", "r3")]
    old, new = (make.longhorn_node(name, 100, zone="east") for name in ("old", "new"))
    other = make.longhorn_node("other", west, zone="west")
    explanation = explained(make.pod("a"), old, new, other, volume, evicting, pending, EVERY_REPLICA)
    assert reasons(explanation)["new"] == reason


def test_a_replica_without_a_place_may_not_join_one_that_has() -> None:
    volume = make.bound("b", 10, locality="disabled", numberOfReplicas=2)
    replicas = [make.replica("r1", "vol-b", "n1", size=10), make.replica("r2", "vol-b", size=10)]
    objects: list[Any] = [volume, replicas, EVERY_REPLICA]
    one_node = explained(make.pod("b"), nodes(100), *objects)
    two_nodes = explained(make.pod("b"), nodes(100, 100), *objects)
    assert set(reasons(one_node).values()) == {"TOO_FEW_NODES"}
    assert set(reasons(two_nodes).values()) == {"ATTACHABLE"}


def test_longhorn_waits_for_no_replica_of_a_volume_that_it_runs() -> None:
    volume = make.bound("b", 10, locality="disabled", numberOfReplicas=2, nodeID="n1")
    replicas = [make.replica("r1", "vol-b", "n1", size=10), make.replica("r2", "vol-b", size=10)]
    assert reasons(explained(make.pod("b"), nodes(100), volume, replicas, EVERY_REPLICA)) == {"n1": "ATTACHABLE"}


def test_a_backing_image_takes_its_space_on_each_disk_that_lacks_it() -> None:
    image = {
        "apiVersion": make.LONGHORN,
        "kind": "BackingImage",
        "metadata": {"name": "bi"},
        "spec": {"diskFileSpecMap": {"n1-disk-1": {}}},
        "status": {"realSize": 20 * GI},
    }
    objects = remote_replicas(2, 60, backingImage="bi")
    assert set(reasons(explained(make.pod("b"), nodes(60, 80), image, objects)).values()) == {"ATTACHABLE"}
    explanation = explained(make.pod("b"), nodes(60, 79), image, objects)
    assert set(reasons(explanation).values()) == {"NOT_TOGETHER_IN_CLUSTER"}


def test_order_unsafe_nodes_are_offered_if_the_safe_ones_have_no_placement() -> None:
    unsafe = make.longhorn_node("n1", {"a": make.disk(50), "b": make.disk(60)})
    claims = [make.claim("x", 50), make.claim("y", 60), make.claim("z", 150, storage_class="remote")]
    alone = explained(make.pod("x", "y"), unsafe, make.longhorn_node("n2", 200), CLASSES, claims)
    assert reasons(alone) == {"n1": "ORDER_UNSAFE", "n2": "ROOM"}
    explanation = explained(make.pod("x", "y", "z"), unsafe, make.longhorn_node("n2", 200), CLASSES, claims)
    assert reasons(explanation) == {"n1": "ROOM", "n2": "NOT_TOGETHER_IN_CLUSTER"}


def test_a_search_that_exceeds_the_budget_refuses_the_node() -> None:
    objects = [*nodes(100, 100, 60), *remote_replicas(3)]
    decision = explained(make.pod("b"), *objects, options=FilterOptions(steps=0)).decision
    assert (list(decision.reasons), decision.gave_up) == ([Reason.UNDECIDED] * 3, 1)
    assert set(reasons(explained(make.pod("b"), *objects)).values()) == {"ATTACHABLE"}


@pytest.mark.parametrize(
    ("locality", "volumes", "size"),
    [
        pytest.param("best-effort", 10, 2500, id="local volumes"),
        pytest.param("best-effort", 20, 5000, id="twice as many"),
        pytest.param("disabled", 35, 2000, id="remote volumes"),
    ],
)
def test_many_replicas_fit_a_nearly_empty_cluster(locality: str, volumes: int, size: float) -> None:
    names = [f"c{number}" for number in range(volumes)]
    claims = [make.claim(name, 100, storage_class="many") for name in names]
    replicas = make.storage_class("many", dataLocality=locality, numberOfReplicas="3")
    explanation = explained(make.pod(*names), nodes(*[size] * 50), replicas, claims, EVERY_REPLICA)
    assert set(reasons(explanation).values()) == {"ROOM" if locality == "best-effort" else "ATTACHABLE"}


def test_searches_go_on_with_the_next_request() -> None:
    """So a budget for the search of one node only decides all of them in the end."""
    many = make.storage_class("many", dataLocality="disabled", numberOfReplicas="2")
    local = make.storage_class(numberOfReplicas="1")
    sizes = {"large": 50, "b": 30, "c": 30}
    # Only the two small disks together can take the large volume, if the others are to fit.
    claims = [make.claim("a", 1), *(make.claim(name, size, storage_class="many") for name, size in sizes.items())]
    state = make.state(nodes(61, 61, 51, 51), local, many, claims, EVERY_REPLICA)
    pod = make.as_pod(make.pod("a", *sizes))
    candidates = ["n1", "n2", "n3", "n4"]
    rooms = []
    for _ in range(4):
        decision = filter_nodes(pod, candidates, state, FilterOptions(steps=200, packing=Packing.EXACT))
        rooms.append(sum(reason.fits for reason in decision.reasons))
    assert rooms == [1, 2, 3, 4]


class TestManyDisks:
    """With too many disks to search, replicas are counted: what has no placement is refused, nothing else."""

    @pytest.fixture(autouse=True)
    def _count(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(placement_across_nodes, "MAX_DISKS", 0)

    def test_there_are_too_few_bytes(self) -> None:
        explanation = explained(make.pod("a", "b"), nodes(100), local_and_remote(60, 60))
        assert reasons(explanation) == {"n1": "NOT_TOGETHER_IN_CLUSTER"}

    def test_there_are_too_few_disks_for_the_large_ones(self) -> None:
        """Two disks hold one volume of 60Gi each, whatever is left on them."""
        claims = [make.claim(name, 60, storage_class="remote") for name in ("a", "b", "c")]
        explanation = explained(make.pod("a", "b", "c"), nodes(100, 100), CLASSES, claims)
        assert set(reasons(explanation).values()) == {"NOT_TOGETHER_IN_CLUSTER"}

    def test_there_are_too_few_nodes_for_the_replicas(self) -> None:
        assert set(reasons(explained(make.pod("b"), nodes(200, 200), remote_replicas(3))).values()) == {"TOO_FEW_NODES"}

    def test_what_may_fit_is_not_refused(self) -> None:
        explanation = explained(make.pod("a", "b"), nodes(100, 60), local_and_remote(50, 80))
        assert reasons(explanation) == {"n1": "ORDER_UNSAFE", "n2": "ROOM"}


def test_equal_volumes_are_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[object] = []
    open_disks = replicas_to_place.open_disks

    def counted_look(*args: Any) -> Any:
        looks.append(args)
        return open_disks(*args)

    monkeypatch.setattr(replicas_to_place, "open_disks", counted_look)
    names = [f"c{number}" for number in range(10)]
    claims = [make.claim(name, 60, storage_class="remote") for name in names]
    assert set(reasons(explained(make.pod(*names), nodes(300, 300), CLASSES, claims)).values()) == {"ATTACHABLE"}
    assert len(looks) == 2


def test_too_many_replicas_for_a_search_are_counted_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placement_across_nodes, "MAX_REPLICAS", 1)
    monkeypatch.setattr(replicas_to_place, "open_disks", None)
    explanation = explained(make.pod("a", "b"), nodes(100, 60), local_and_remote(50, 80))
    assert reasons(explanation) == {"n1": "ORDER_UNSAFE", "n2": "ROOM"}


def test_equal_pods_are_searched_once(monkeypatch: pytest.MonkeyPatch) -> None:
    searches = []
    search = spread.fits_spread

    def counted_search(*args: Any) -> Any:
        searches.append(args)
        return search(*args)

    monkeypatch.setattr(placement_across_nodes, "fits_spread", counted_search)
    other = [make.claim("c", 60), make.claim("d", 60, storage_class="remote")]
    state = make.state(nodes(100, 100), local_and_remote(60, 60), other)
    for pod in (make.pod("a", "b"), make.pod("c", "d", name="other")):
        decision = filter_nodes(make.as_pod(pod), ["n1", "n2"], state, FilterOptions())
        assert list(decision.reasons) == [Reason.ROOM, Reason.ROOM]
    assert len(searches) == 2
