"""GET /decisions: what /filter and /preempt decided, over a served application."""

import json
from typing import Any

import pytest
from httpx import AsyncClient

from app.settings import Settings
from scheduler_core.decide.extender_settings import Enforcement
from tests.builders import Object, pod
from tests.worlds.service import NODES, REFUSED, application, by_names, by_nodes, db_pod, http_client, small_service


async def ask(client: AsyncClient, path: str, request: Object) -> Any:
    response = await client.post(path, content=json.dumps(request).encode())
    assert response.status_code == 200
    return (await client.get("/decisions")).json()["items"][0]


async def test_nothing_is_decided_at_first() -> None:
    async with small_service() as client:
        answer = (await client.get("/decisions")).json()
    assert answer == {
        "apiVersion": "longhorn-extender/v1",
        "kind": "DecisionList",
        "recorded": 0,
        "nextBefore": None,
        "items": [],
    }


@pytest.mark.parametrize("form", [by_names, by_nodes])
async def test_a_filter_that_offers_nodes(form: Any) -> None:
    async with small_service() as client:
        entry = await ask(client, "/filter", form(db_pod()))
    assert entry.pop("number") > 1_700_000_000_000_000
    assert entry.pop("time").endswith("Z")
    assert entry.pop("milliseconds") > 0
    assert entry == {
        "verb": "filter",
        "pod": "default/db-0",
        "uid": "uid-db-0",
        "outcome": "fits",
        "observed": False,
        "nodes": 4,
        "fits": 2,
        "offered": ["node-1", "node-3"],
        "refused": {REFUSED: 2},
        "error": "",
    }


async def test_a_filter_that_refuses_every_node() -> None:
    async with small_service() as client:
        entry = await ask(client, "/filter", by_names(db_pod(), ["node-2", "node-4"]))
    assert (entry["outcome"], entry["offered"], entry["refused"]) == ("refused", [], {REFUSED: 2})


async def test_a_pod_that_contradicts_the_cluster() -> None:
    async with small_service() as client:
        entry = await ask(client, "/filter", by_names(pod("no-such-claim", name="db-1")))
        answer = await client.post("/filter", json=by_names(pod("no-such-claim", name="db-1")))
    assert entry["outcome"] == "error"
    assert entry["error"] == answer.json()["Error"]
    assert "no-such-claim" in entry["error"]


async def test_refusals_that_are_only_observed() -> None:
    """The outcome is what enforcement would have made of it."""
    settings = Settings(enforcement=Enforcement.OBSERVE)
    async with http_client(application(settings=settings)) as client:
        refused = await ask(client, "/filter", by_names(db_pod(), ["node-2", "node-4"]))
        error = await ask(client, "/filter", by_names(pod("no-such-claim", name="db-1")))
        preempted = await ask(client, "/preempt", {"Pod": db_pod(), "NodeNameToMetaVictims": {"node-2": {"Pods": []}}})
    assert [(entry["outcome"], entry["observed"]) for entry in (refused, error, preempted)] == [
        ("refused", True),
        ("error", True),
        ("refused", True),
    ]


async def test_a_preemption() -> None:
    victims = {name: {"Pods": [], "NumPDBViolations": 0} for name in NODES}
    async with small_service() as client:
        entry = await ask(client, "/preempt", {"Pod": db_pod(), "NodeNameToMetaVictims": victims})
        error = await ask(client, "/preempt", {"Pod": pod("no-such-claim"), "NodeNameToMetaVictims": victims})
    assert (entry["verb"], entry["nodes"], entry["offered"]) == ("preempt", 4, ["node-1", "node-3"])
    assert (error["verb"], error["outcome"]) == ("preempt", "error")


async def test_scores_and_explanations_are_no_decisions() -> None:
    async with small_service() as client:
        for path in ("/prioritize", "/explain"):
            assert (await client.post(path, json=by_names(db_pod()))).status_code == 200
        assert (await client.get("/decisions")).json()["recorded"] == 0


async def test_pages_are_read_to_the_end() -> None:
    async with small_service() as client:
        for number in range(5):
            await ask(client, "/filter", by_names(db_pod(uid=f"uid-{number}")))
        uids: list[str] = []
        query = ""
        while True:
            page = (await client.get(f"/decisions?limit=2{query}")).json()
            uids += [entry["uid"] for entry in page["items"]]
            if page["nextBefore"] is None:
                break
            query = f"&before={page['nextBefore']}"
    assert uids == [f"uid-{number}" for number in (4, 3, 2, 1, 0)]


@pytest.mark.parametrize(
    ("query", "count"),
    [
        ("pod=db-0", 2),
        ("pod=db", 0),
        ("namespace=default&pod=db-0", 2),
        ("namespace=other", 0),
        ("outcome=fits", 1),
        ("outcome=refused", 1),
        ("outcome=error", 1),
    ],
)
async def test_entries_are_selected(query: str, count: int) -> None:
    async with small_service() as client:
        await ask(client, "/filter", by_names(db_pod()))
        await ask(client, "/filter", by_names(db_pod(), ["node-2"]))
        await ask(client, "/filter", by_names(pod("no-such-claim", name="db-1")))
        answer = (await client.get(f"/decisions?{query}")).json()
    assert len(answer["items"]) == count


@pytest.mark.parametrize(
    ("query", "problem"),
    [
        ("limit=0", "limit: expected at least 1"),
        ("limit=1001", "limit: expected at most 1000"),
        ("limit=x", "limit: expected a whole number"),
        ("before=-1", "before: expected at least 0"),
        ("outcome=x", "outcome: expected 'fits', 'refused' or 'error'"),
        ("pods=x", "pods: there is no such parameter"),
    ],
)
async def test_a_parameter_that_cannot_be_read(query: str, problem: str) -> None:
    async with small_service() as client:
        response = await client.get(f"/decisions?{query}")
    assert response.status_code == 422
    assert response.json() == {"error": problem}


async def test_hostile_names_come_back_as_they_are() -> None:
    names = ["\x1b[2J", "</script><b>", "\u202etxt", "\x00", "\U0001f600", "n" * 100_000]
    async with small_service() as client:
        for name in names:
            entry = await ask(client, "/filter", by_names(pod(name=name, namespace=name), [name]))
            assert entry["pod"] == f"{name[:253]}/{name[:253]}"
            assert entry["offered"] == [name[:253]]
