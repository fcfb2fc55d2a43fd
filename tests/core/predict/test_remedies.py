"""Remedies by example: what each kind changes and costs.

The limits of the search are tested, too.
"""

import pytest

from scheduler_core.longhorn.node_controller import ROUNDING
from scheduler_core.predict.remedies import Trials, find_remedies
from scheduler_core.predict.remedy import Cost, Intervention, RemedyKind, Step, exact_bytes
from scheduler_core.structs import replace
from tests.builders import GI, Object, claim, disk, flat, kube_node, longhorn_node, pod, setting, storage_class
from tests.worlds.predicted_clusters import OPTIONS, running, situation
from tests.worlds.remedies import World, cluster_of, waiting


def world(*objects: Object | list[Object], size: float = 40) -> World:
    """A cluster in which a pod waits whose volume has some Gi."""
    return World(flat(*objects, claim("data", size), pod("data", name="db", uid="uid-db")))


def node(name: str, **fields: object) -> list[Object]:
    return [kube_node(name), longhorn_node(name, {"disk-1": disk(100, **fields)})]  # type: ignore[arg-type]


def summary(remedies: tuple[Step, ...]) -> list[tuple[str, str, int]]:
    """Kind, node and bytes of each remedy."""
    return [(remedy.kind.value, remedy.node, remedy.size) for remedy in remedies]


def test_settings_come_before_space_and_space_before_moves() -> None:
    small = node("b", available=70, listed={"app-0-b": 30}, scheduled=40)
    objects = [*node("a", allow=False), *small, *running("app-0", "b", 30, replicas=("b",), locality="disabled")]
    objects += node("c", scheduled=65)
    assert summary(world(*objects).find(9)) == [
        ("allow-disk", "a", 0),
        ("free-scheduled", "c", 5 * GI),
        ("grow-disk", "c", 5 * GI),
        ("free-scheduled", "b", 10 * GI),
        ("grow-disk", "b", 10 * GI),
        ("move-replica", "b", 30 * GI),
    ]


def test_settings_help_where_replicas_have_too_few_nodes() -> None:
    objects = [storage_class("two", numberOfReplicas="2"), claim("data", 10, storage_class="two")]
    objects += [setting("allow-volume-creation-with-degraded-availability", "false"), *node("a")]
    small = World([*objects, pod("data", name="db", uid="uid-db")])
    assert [remedy.text for remedy in small.find(9)] == [
        "set Longhorn's allow-volume-creation-with-degraded-availability to true",
        "set Longhorn's replica-soft-anti-affinity to true",
    ]


@pytest.mark.parametrize(
    ("cheaper", "dearer"),
    [
        pytest.param(Cost(Intervention.SETTING, 0, 2), Cost(Intervention.SPACE, 1, 0), id="intervention"),
        pytest.param(Cost(Intervention.SPACE, 1, 0), Cost(Intervention.SPACE, 2, 0), id="bytes"),
        pytest.param(Cost(Intervention.SETTING, 0, 1), Cost(Intervention.SETTING, 0, 2), id="tags"),
    ],
)
def test_costs_are_compared_field_by_field(cheaper: Cost, dearer: Cost) -> None:
    assert cheaper < dearer


def test_available_bytes_are_freed_as_longhorn_rounds_them() -> None:
    """A disk of a file system needs a multiple of 100Mi.

    It counts above the minimum. Freeing what is scheduled does not help.
    """
    minimum = 25 * GI
    low = minimum - minimum % ROUNDING
    objects = node("a", available=low / GI, pressure=True)
    [remedy] = [each for each in world(objects).find(9) if each.kind is RemedyKind.FREE_AVAILABLE]
    assert remedy.cost.size == ROUNDING
    assert low + remedy.cost.size > minimum


def test_a_disk_whose_condition_is_outdated_gets_no_space() -> None:
    pressed = world(node("a", pressure=True))
    cluster = situation(*pressed.objects).cluster
    assert find_remedies(waiting(cluster), cluster, OPTIONS, 9).remedies == ()
    assert pressed.fits


@pytest.mark.parametrize(("room", "moves"), [(100, ["app-0-a"]), (45, [])])
def test_a_move_is_offered_only_if_every_choice_of_longhorn_helps(room: float, moves: list[str]) -> None:
    objects = node("a", available=60, listed={"app-0-a": 40}, scheduled=60)
    objects += node("b", scheduled=100 - room, tags=("ssd",)) + node("c", scheduled=55)
    for raw in objects:
        if raw["apiVersion"] == "v1" and raw["metadata"]["name"] != "a":
            raw["spec"] = {"unschedulable": True}
    objects += running("app-0", "a", 40, replicas=("a",), locality="disabled")
    objects += [
        setting("disable-scheduling-on-cordoned-node", "false"),
        storage_class("remote", dataLocality="disabled", diskSelector="ssd"),
        claim("remote", 30, storage_class="remote"),
        claim("data", 40),
        pod("data", "remote", name="db", uid="uid-db"),
    ]
    remedies = World(flat(objects)).find(30)
    assert [remedy.move.replica for remedy in remedies if remedy.move is not None] == moves


def test_the_search_ends_after_so_many_decisions() -> None:
    cluster = cluster_of(world(*(entry for name in "abcdef" for entry in node(name, scheduled=80))).objects)
    searches = [find_remedies(waiting(cluster), cluster, OPTIONS, 9, count) for count in (1, 3, 500)]
    assert [search.complete for search in searches] == [False, False, True]
    assert [bool(search.remedies) for search in searches] == [False, True, True]
    assert set(searches[1].remedies) <= set(searches[2].remedies)
    assert len(searches[1].remedies) < len(searches[2].remedies)


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (20 * GI, "20Gi"),
        (3 * GI // 2, "1.5Gi"),
        (GI + 1, "1073741825 bytes (1Gi + 1)"),
        (GI + GI // 3, "1431655765 bytes (1.33Gi)"),
    ],
)
def test_sizes_are_exact(size: int, text: str) -> None:
    """A size that its unit would round is given in bytes."""
    assert exact_bytes(size) == text


def test_the_least_bytes_may_be_few_because_more_make_room_for_another_pod() -> None:
    """With 15Gi more the pod fits, with 20Gi it does not.

    With 20Gi another pod's volume counts too, and then 55Gi are needed.
    """
    other = claim("other", 40)
    other["metadata"]["annotations"] = {"volume.kubernetes.io/selected-node": "a"}
    objects = [*node("a", scheduled=80), other, pod("other", name="other", uid="uid-other")]
    pods = world(*objects, size=35)
    grown = Step(RemedyKind.GROW_DISK, "a", "disk-1", size=15 * GI)
    assert [pods.fits_after(replace(grown, size=size * GI)) for size in (14, 15, 19, 20, 54, 55)] == [
        False, True, True, False, False, True,
    ]  # fmt: skip
    assert [remedy.cost.size for remedy in pods.find(9)] == [15 * GI, 15 * GI]


def test_a_disk_of_a_node_that_kube_scheduler_refuses_may_make_room_elsewhere() -> None:
    raw, longhorn = longhorn_with_closed_disk()
    other = [claim("other", 50), pod("other", name="other", uid="uid-other", node="b")]
    objects = [*node("a", scheduled=40), raw, longhorn, *other, setting("disable-scheduling-on-cordoned-node", "false")]
    remedies = world(objects, size=40).find(1)
    assert [remedy.text for remedy in remedies] == ["allow scheduling on disk b/disk-2"]


def longhorn_with_closed_disk() -> list[Object]:
    """A cordoned node b, one disk of which is full, and the other one closed."""
    raw = kube_node("b")
    raw["spec"] = {
        "unschedulable": True,
        "taints": [{"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}],
    }
    return [raw, longhorn_node("b", {"disk-1": disk(100, scheduled=100), "disk-2": disk(100, allow=False)})]


DECISIONS = 10
CLOSED_NODE = flat([kube_node("a"), longhorn_node("a", {"disk-1": disk(100, allow=False)})])
# No volume is created with fewer replicas than it is to have, so that one waits for a second node.
TWO_REPLICAS = [
    setting("allow-volume-creation-with-degraded-availability", "false"),
    storage_class("elsewhere", numberOfReplicas="2", dataLocality="disabled"),
]
# A pod that is bound to the node, and whose volume has no place there yet.
OTHER_POD = [pod("other", name="other", uid="uid-other", node="a"), claim("other", 10)]


def waiting_pod(storage_class_name: str = "longhorn", *, spread: bool = False) -> list[Object]:
    """A pod with one new volume; `longhorn` has one local replica."""
    raw = pod("data", name="db", uid="uid-db")
    if spread:
        constraint = {"maxSkew": 1, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "DoNotSchedule"}
        raw["spec"]["topologySpreadConstraints"] = [constraint]
    return [claim("data", 40, storage_class=storage_class_name), raw]


@pytest.mark.parametrize(
    ("objects", "share"),
    [
        pytest.param(waiting_pod(), 1 / 7, id="local replica"),
        pytest.param([*TWO_REPLICAS, *waiting_pod("elsewhere")], 1, id="replicas may go elsewhere"),
        pytest.param([*waiting_pod(), *OTHER_POD], 1, id="another pod's volume waits there"),
        pytest.param(waiting_pod(spread=True), 1, id="topology spread"),
    ],
)
def test_only_the_changed_node_is_decided_about_where_no_other_can_change(objects: list[Object], share: float) -> None:
    cluster = cluster_of(flat(CLOSED_NODE, objects))
    trials = Trials(waiting(cluster), cluster, OPTIONS, DECISIONS)
    trials.fits(Step(RemedyKind.ALLOW_DISK, "a", "disk-1"))
    assert trials.decisions_left == pytest.approx(DECISIONS - 1 - share)
