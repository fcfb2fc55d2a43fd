"""What is awaited after a pod was placed, and what a predecessor was waiting for."""

from __future__ import annotations

from typing import Any

import pytest

from scheduler_core.errors import ResolutionError
from scheduler_core.volumes.pending_replicas import arriving_pods, awaited_volumes, chosen_pods
from tests import builders as make
from tests.builders import Object


def node(name: str, *listed: str) -> Object:
    """A Longhorn node that lists some replicas."""
    return make.longhorn_node(name, {"disk-1": make.disk(100, listed=dict.fromkeys(listed, 10))})


def db(node_name: str = "a", **fields: Any) -> Object:
    """The pod that mounts data and logs."""
    return make.pod("data", "logs", name="db", node=node_name, **fields)


def awaited(*objects: Object | list[Object], on: str = "a", **options: Any) -> tuple[str, ...]:
    """The volumes that are awaited."""
    view = make.view(make.storage_class(), make.claim("data", 10), make.claim("logs", 10), *objects)
    return awaited_volumes(make.as_pod(db()), on, view, **options)


def test_an_unbound_claim_is_awaited() -> None:
    """By its name, as long as it has no volume."""
    assert awaited(node("a")) == ("data", "logs")


def bound(name: str, on: str = "a", **fields: Any) -> list[Object]:
    """A claim whose replica is on a node."""
    return [*make.bound(name, 10, **fields), make.replica(f"r-{name}", f"vol-{name}", on)]


@pytest.mark.parametrize(
    ("placed", "listed", "expected"),
    [
        ("a", ["r-data", "r-logs"], ()),
        ("a", ["r-data"], ("vol-logs",)),
        ("a", [], ("vol-data", "vol-logs")),
        ("b", ["r-data", "r-logs"], ("vol-data", "vol-logs")),
        ("", ["r-data", "r-logs"], ("vol-data", "vol-logs")),
    ],
)
def test_a_volume_is_awaited_until_its_node_lists_its_replica(
    placed: str, listed: list[str], expected: tuple[str, ...]
) -> None:
    """Both are needed: the replica says that it is there, and the node says so too."""
    objects = [*bound("data", placed), *bound("logs", placed)]
    view = make.view(make.storage_class(), objects, node("a", *listed), node("b"))
    assert awaited_volumes(make.as_pod(db()), "a", view) == expected


def test_it_may_be_listed_on_any_disk() -> None:
    """Longhorn chooses."""
    disks = {"one": make.disk(100, listed={"r-data": 10}), "two": make.disk(100, listed={"r-logs": 10})}
    view = make.view(bound("data"), bound("logs"), make.longhorn_node("a", disks))
    assert awaited_volumes(make.as_pod(db()), "a", view) == ()


def test_where_there_is_no_longhorn_node_everything_is_awaited() -> None:
    """Until the time-out."""
    assert awaited_volumes(make.as_pod(db()), "x", make.view(bound("data"), bound("logs"))) == ("vol-data", "vol-logs")


@pytest.mark.parametrize("fields", [{"locality": "disabled"}, {"access": "ReadWriteMany", "accessMode": "rwx"}])
def test_a_volume_that_needs_no_local_room_is_not_awaited(fields: dict[str, Any]) -> None:
    """Its replicas may be anywhere."""
    view = make.view(bound("data", "", **fields), bound("logs", "", **fields), node("a"))
    assert awaited_volumes(make.as_pod(db()), "a", view) == ()


def test_where_best_effort_is_only_preferred_it_is_not_awaited() -> None:
    """A strict-local one is."""
    view = make.view(bound("data", ""), bound("logs", "", locality="strict-local"), node("a"))
    assert awaited_volumes(make.as_pod(db()), "a", view, require_best_effort=False) == ("vol-logs",)
    pending = make.view(bound("data", ""), bound("logs", ""), node("a"), db())
    assert arriving_pods(pending, require_best_effort=False) == ()
    assert [pod.name for pod, _ in arriving_pods(pending)] == ["db"]


def test_a_pod_that_names_what_is_not_there_cannot_be_told_about() -> None:
    """And is not adopted."""
    view = make.view(make.claim("data", 10), node("a"), db())
    with pytest.raises(ResolutionError):
        awaited_volumes(make.as_pod(db()), "a", view)
    assert arriving_pods(view) == ()


@pytest.mark.parametrize(
    ("fields", "arrives"),
    [
        ({}, True),
        ({"node_name": ""}, False),
        ({"phase": "Running"}, False),
        ({"phase": "Succeeded"}, False),
        ({"deleting": True}, False),
    ],
)
def test_bound_pods_that_await_replicas_arrive(fields: dict[str, Any], arrives: bool) -> None:
    """Those that run have them."""
    view = make.view(bound("data", ""), bound("logs", ""), node("a"), db(**fields))
    assert [(pod.name, where) for pod, where in arriving_pods(view)] == ([("db", "a")] if arrives else [])


def test_bound_pods_that_await_nothing_do_not_arrive() -> None:
    """Their replicas are listed."""
    view = make.view(bound("data"), bound("logs"), node("a", "r-data", "r-logs"), db())
    assert arriving_pods(view) == ()


def chosen(name: str, *, bound: bool = False) -> Object:
    """A claim for which kube-scheduler has chosen a node."""
    raw = make.claim(name, 10, bound=bound)
    raw["metadata"]["annotations"] = {"volume.kubernetes.io/selected-node": "a"}
    return raw


@pytest.mark.parametrize(
    ("claims", "fields", "undecided"),
    [
        ([chosen("data"), make.claim("logs", 10)], {}, True),
        (
            [chosen("data", bound=True), make.persistent_volume("data", uid="uid-data"), make.claim("logs", 10)],
            {},
            False,
        ),
        ([chosen("data", bound=True), make.claim("logs", 10)], {}, True),
        ([make.claim("data", 10), make.claim("logs", 10)], {}, False),
        ([chosen("data")], {}, True),
        ([chosen("data")], {"node_name": "a"}, False),
        ([chosen("data")], {"deleting": True}, False),
        ([chosen("data")], {"phase": "Failed"}, False),
    ],
)
def test_pods_with_a_chosen_node_are_undecided_until_they_are_bound(
    claims: list[Object], fields: dict[str, Any], undecided: bool
) -> None:
    """By any of their claims that is not bound yet, or bound to what nobody has heard of yet."""
    view = make.view(claims, db(**{"node_name": "", **fields}))
    assert [(pod.name, node) for pod, node in chosen_pods(view)] == ([("db", "a")] if undecided else [])


@pytest.mark.parametrize(("declared", "undecided"), [("", True), ("no room", False)])
def test_a_nomination_is_a_choice_unless_it_comes_from_preemption(declared: str, undecided: bool) -> None:
    """Preemption nominates beside PodScheduled=False; claims that are all bound bear no other sign."""
    raw = db(node_name="")
    raw["status"]["nominatedNodeName"] = "a"
    if declared:
        raw["status"]["conditions"] = [{"type": "PodScheduled", "status": "False", "reason": declared}]
    view = make.view(make.bound("data", 10), make.bound("logs", 10), raw)
    assert [(pod.name, node) for pod, node in chosen_pods(view)] == ([("db", "a")] if undecided else [])
