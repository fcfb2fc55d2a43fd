"""POST /preempt: nodes without free space are left out, victims stay as they are."""

import json
from typing import Any

import pytest

from tests.builders import Object, pod
from tests.worlds.service import db_pod, small_service

VICTIMS = {
    "node-4": {"Pods": [pod(name="a", uid="uid-a")], "NumPDBViolations": 0},
    "node-3": {"Pods": [pod(name="b", uid="uid-b"), pod(name="c", uid="uid-c")], "NumPDBViolations": 2},
    "node-1": {"Pods": [pod(name="d", uid="uid-d")], "NumPDBViolations": 0},
    "gone": {"Pods": [pod(name="e", uid="uid-e")], "NumPDBViolations": 0},
}
META_VICTIMS = {
    name: {
        "Pods": [{"UID": entry["metadata"]["uid"]} for entry in victims["Pods"]],  # type: ignore[attr-defined]
        "NumPDBViolations": victims["NumPDBViolations"],
    }
    for name, victims in VICTIMS.items()
}
REMAINING = {name: META_VICTIMS[name] for name in ("node-3", "node-1")}


async def _preempt(request: Object) -> Any:
    async with small_service() as client:
        response = await client.post("/preempt", content=json.dumps(request).encode())
    assert response.status_code == 200
    return response.json()


@pytest.mark.parametrize(
    "victims",
    [
        pytest.param({"NodeNameToVictims": VICTIMS, "NodeNameToMetaVictims": None}, id="pods"),
        pytest.param({"NodeNameToVictims": None, "NodeNameToMetaVictims": META_VICTIMS}, id="UIDs"),
        pytest.param({"nodeNameToVictims": VICTIMS}, id="camelCase"),
        pytest.param({"nodenametometavictims": META_VICTIMS}, id="lower-case"),
    ],
)
async def test_nodes_with_free_space_keep_their_victims(victims: Object) -> None:
    """Full nodes are left out, because evicting pods frees no Longhorn space."""
    assert await _preempt({"Pod": db_pod(), **victims}) == {"NodeNameToMetaVictims": REMAINING}


async def test_lower_case_victims_are_read() -> None:
    victims = {"node-1": {"pods": [{"uid": "uid-a"}], "numPDBViolations": 3}}
    assert await _preempt({"Pod": db_pod(), "NodeNameToMetaVictims": victims}) == {
        "NodeNameToMetaVictims": {"node-1": {"Pods": [{"UID": "uid-a"}], "NumPDBViolations": 3}}
    }


async def test_a_pod_without_longhorn_volumes_may_preempt_anywhere() -> None:
    answer = await _preempt({"Pod": pod(), "NodeNameToMetaVictims": META_VICTIMS})
    assert answer == {"NodeNameToMetaVictims": META_VICTIMS}


async def test_no_pod_is_evicted_for_a_pod_that_cannot_be_decided_about() -> None:
    answer = await _preempt({"Pod": pod("gone"), "NodeNameToMetaVictims": META_VICTIMS})
    assert answer == {"NodeNameToMetaVictims": {}}


async def test_an_empty_map_is_answered_with_an_empty_map() -> None:
    assert await _preempt({"Pod": db_pod(), "NodeNameToVictims": {}}) == {"NodeNameToMetaVictims": {}}


@pytest.mark.parametrize(
    ("request_body", "problem"),
    [
        pytest.param({"NodeNameToVictims": {}}, "Pod is missing or null", id="no pod"),
        pytest.param({"Pod": db_pod()}, "got neither", id="neither form"),
        pytest.param(
            {"Pod": db_pod(), "NodeNameToVictims": VICTIMS, "NodeNameToMetaVictims": META_VICTIMS},
            "got both",
            id="both",
        ),
        pytest.param(
            {"Pod": db_pod(), "NodeNameToVictims": {"node-1": None}},
            "NodeNameToVictims[...]: Expected `object`, got `null`",
            id="victims null",
        ),
        pytest.param(
            {"Pod": db_pod(), "NodeNameToVictims": {"node-1": {"Pods": [None]}}},
            "NodeNameToVictims[...].Pods[0]: Expected `object`, got `null`",
            id="victim null",
        ),
        pytest.param(
            {"Pod": db_pod(), "NodeNameToVictims": {"node-1": {"NumPDBViolations": 1.5}}},
            "NodeNameToVictims[...].NumPDBViolations: Expected `int`, got `float`",
            id="violations a fraction",
        ),
    ],
)
async def test_a_malformed_request_is_refused_with_the_reason(request_body: Object, problem: str) -> None:
    async with small_service() as client:
        response = await client.post("/preempt", content=json.dumps(request_body).encode())
    assert response.status_code == 400
    assert problem in response.json()["error"]
