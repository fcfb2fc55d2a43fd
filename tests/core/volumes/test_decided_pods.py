"""Volumes that Longhorn does not list yet on the node of a placed pod, and pods whose node is decided but not bound."""

from typing import Any

import pytest

from scheduler_core.errors import ResolutionError
from scheduler_core.volumes.decided_pods import decided_pods, pods_awaiting_replicas, unlisted_volumes
from tests import builders as make
from tests.builders import Object


def node_listing(name: str, *listed: str) -> Object:
    return make.longhorn_node(name, {"disk-1": make.disk(100, listed=dict.fromkeys(listed, 10))})


def database_pod(node_name: str = "a", **fields: Any) -> Object:
    return make.pod("data", "logs", name="db", node=node_name, **fields)


def bound(name: str, node: str = "a", **fields: Any) -> list[Object]:
    return [*make.bound(name, 10, **fields), make.replica(f"r-{name}", f"vol-{name}", node)]


@pytest.mark.parametrize(
    ("replica_node", "listed", "expected"),
    [
        ("a", ["r-data", "r-logs"], ()),
        ("a", ["r-data"], ("vol-logs",)),
        ("a", [], ("vol-data", "vol-logs")),
        ("b", ["r-data", "r-logs"], ("vol-data", "vol-logs")),
        ("", ["r-data", "r-logs"], ("vol-data", "vol-logs")),
    ],
)
def test_a_volume_is_unlisted_until_its_node_lists_its_replica(
    replica_node: str, listed: list[str], expected: tuple[str, ...]
) -> None:
    objects = [*bound("data", replica_node), *bound("logs", replica_node)]
    view = make.view(make.storage_class(), objects, node_listing("a", *listed), node_listing("b"))
    assert unlisted_volumes(make.as_pod(database_pod()), "a", view) == expected


def test_without_a_longhorn_node_every_volume_is_unlisted() -> None:
    assert unlisted_volumes(make.as_pod(database_pod()), "x", make.view(bound("data"), bound("logs"))) == (
        "vol-data",
        "vol-logs",
    )


def test_best_effort_volumes_do_not_count_if_local_space_is_only_preferred() -> None:
    view = make.view(bound("data", ""), bound("logs", "", locality="strict-local"), node_listing("a"))
    assert unlisted_volumes(make.as_pod(database_pod()), "a", view, require_best_effort=False) == ("vol-logs",)
    pending = make.view(bound("data", ""), bound("logs", ""), node_listing("a"), database_pod())
    assert pods_awaiting_replicas(pending, require_best_effort=False) == ()
    assert [pod.name for pod, _ in pods_awaiting_replicas(pending)] == ["db"]


def test_a_pod_that_names_a_missing_object_is_left_out() -> None:
    view = make.view(make.claim("data", 10), node_listing("a"), database_pod())
    with pytest.raises(ResolutionError):
        unlisted_volumes(make.as_pod(database_pod()), "a", view)
    assert pods_awaiting_replicas(view) == ()


@pytest.mark.parametrize(
    ("fields", "awaits"),
    [
        ({}, True),
        ({"node_name": ""}, False),
        ({"phase": "Running"}, False),
        ({"phase": "Succeeded"}, False),
        ({"deleting": True}, False),
    ],
)
def test_pending_bound_pods_without_listed_replicas_await_them(fields: dict[str, Any], awaits: bool) -> None:
    view = make.view(bound("data", ""), bound("logs", ""), node_listing("a"), database_pod(**fields))
    assert [(pod.name, node) for pod, node in pods_awaiting_replicas(view)] == ([("db", "a")] if awaits else [])


def test_pending_bound_pods_with_listed_replicas_await_none() -> None:
    view = make.view(bound("data"), bound("logs"), node_listing("a", "r-data", "r-logs"), database_pod())
    assert pods_awaiting_replicas(view) == ()


def claim_with_selected_node(name: str, *, bound: bool = False) -> Object:
    raw = make.claim(name, 10, bound=bound)
    raw["metadata"]["annotations"] = {"volume.kubernetes.io/selected-node": "a"}
    return raw


@pytest.mark.parametrize(
    ("claims", "fields", "decided"),
    [
        ([claim_with_selected_node("data"), make.claim("logs", 10)], {}, True),
        (
            [
                claim_with_selected_node("data", bound=True),
                make.persistent_volume("data", uid="uid-data"),
                make.claim("logs", 10),
            ],
            {},
            False,
        ),
        ([claim_with_selected_node("data", bound=True), make.claim("logs", 10)], {}, True),
        ([make.claim("data", 10), make.claim("logs", 10)], {}, False),
        ([claim_with_selected_node("data")], {}, True),
        ([claim_with_selected_node("data")], {"node_name": "a"}, False),
        ([claim_with_selected_node("data")], {"deleting": True}, False),
        ([claim_with_selected_node("data")], {"phase": "Failed"}, False),
    ],
)
def test_a_selected_node_is_a_decision_until_the_pod_is_bound(
    claims: list[Object], fields: dict[str, Any], decided: bool
) -> None:
    view = make.view(claims, database_pod(**{"node_name": "", **fields}))
    assert [(pod.name, node) for pod, node in decided_pods(view)] == ([("db", "a")] if decided else [])


@pytest.mark.parametrize(("declared", "decided"), [("", True), ("no room", False)])
def test_a_nomination_is_a_decision_unless_it_comes_from_preemption(declared: str, decided: bool) -> None:
    raw = database_pod(node_name="")
    raw["status"]["nominatedNodeName"] = "a"
    if declared:
        raw["status"]["conditions"] = [{"type": "PodScheduled", "status": "False", "reason": declared}]
    view = make.view(make.bound("data", 10), make.bound("logs", 10), raw)
    assert [(pod.name, node) for pod, node in decided_pods(view)] == ([("db", "a")] if decided else [])
