"""POST /prioritize: a score from 0 to 10 for every node asked, in order, and no trace of the question."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest
from fastapi import FastAPI

from app.api.dependencies import AppState
from app.bootstrap import application as assembled
from app.decisions.evaluator import Scheduling
from app.extender.metrics import Metrics
from app.extender.offers import Offers
from app.extender.verbs import Verbs
from app.kube.cluster_cache import ClusterCache
from app.policy.in_force import PolicyInForce, PolicyVerbs
from app.settings import Enforcement, Settings
from scheduler_core.extender.filter import Options, Packing
from scheduler_core.extender.settings import ExtenderSettings
from tests.app.extender.test_node_reservation import NODES as TWO
from tests.app.extender.test_node_reservation import cluster, db
from tests.builders import (
    Object,
    bound,
    claim,
    disk,
    flat,
    kube_node,
    longhorn_node,
    pod,
    replica,
    setting,
    storage_class,
)
from tests.worlds.service import NODES, application, asking, by_names, by_nodes, db_pod, small_service
from tests.worlds.state_source import FakeCache
from tests.worlds.virtual_time import run

RECORDED = Path(__file__).parents[2] / "golden" / "recorded"
pytestmark = pytest.mark.anyio


async def asked(question: Any, *objects: Any, settings: Settings | None = None) -> Any:
    """The answer of /prioritize."""
    async with asking(application(*objects, settings=settings)) as client:
        response = await client.post("/prioritize", content=json.dumps(question).encode())
        assert response.status_code == 200
        return response.json()


def scores(answer: Any) -> dict[str, int]:
    """By node."""
    return {entry["Host"]: entry["Score"] for entry in answer}


@pytest.mark.parametrize("form", [by_names, by_nodes], ids=["names", "whole nodes"])
async def test_every_node_asked_has_a_score_in_the_order_asked(form: Any) -> None:
    """Nothing is kept anywhere, every order is safe (4 times 10 of 100) and single disks are even (2 times 10): 6; no room: 0."""
    names = ("node-4", "node-1", "nobody", "node-3", "node-2")
    assert await asked(form(db_pod(), names)) == [
        {"Host": "node-4", "Score": 0},
        {"Host": "node-1", "Score": 6},
        {"Host": "nobody", "Score": 0},
        {"Host": "node-3", "Score": 6},
        {"Host": "node-2", "Score": 0},
    ]


@pytest.mark.parametrize("name", ["prioritize-node-names.json", "prioritize-nodes.json"])
async def test_the_requests_of_a_real_kube_scheduler_are_answered(name: str) -> None:
    """As recorded, in both forms; with keys in another case the same."""
    body = (RECORDED / name).read_bytes()
    lower = (
        body.replace(b'{"Pod":', b'{"pod":')
        .replace(b',"Nodes":', b',"nodes":')
        .replace(b',"NodeNames"', b',"nodenames"')
    )
    async with small_service() as client:
        answers = [(await client.post("/prioritize", content=text)).json() for text in (body, lower)]
    asked_about = json.loads(body)
    known = asked_about["NodeNames"] or [node["metadata"]["name"] for node in asked_about["Nodes"]["items"]]
    right = {"node-1": 6, "node-2": 0, "node-3": 6, "node-4": 0}
    assert answers == [[{"Host": node, "Score": right[node]} for node in known]] * 2


async def test_no_nodes_get_no_scores() -> None:
    """An empty list is a list."""
    assert await asked(by_names(db_pod(), ())) == []


def mixed() -> list[Object]:
    """Pods of x and y, 30Gi each: `home` has x; on `tight` both fit in a lucky order only; `uneven` is left with one full disk."""
    return flat(
        storage_class(),
        setting("storage-over-provisioning-percentage", "100"),
        [kube_node(name) for name in ("even", "home", "tight", "uneven")],
        longhorn_node("even", {"disk-1": disk(300), "disk-2": disk(300)}),
        longhorn_node("home", {"disk-1": disk(300), "disk-2": disk(300)}),
        longhorn_node("tight", {"disk-1": disk(60), "disk-2": disk(30)}),
        longhorn_node("uneven", {"disk-1": disk(300), "disk-2": disk(300, scheduled=300)}),
        bound("x", 30),
        replica("r", "vol-x", "home", size=30),
        claim("y", 30),
        claim("z", 60),
    )


async def test_data_and_safety_weigh_more_than_even_disks() -> None:
    """Data: 4 times 5; safe: 4 times 10; even disks: 2 times 10, 9 or 0; all of it by ten, cut off."""
    options = Settings(options=Options(packing=Packing.EXACT))
    found = scores(await asked(by_names(pod("x", "y"), ("home", "even", "uneven")), mixed(), settings=options))
    assert found == {"home": 8, "even": 6, "uneven": 4}


async def test_an_unsafe_order_costs_its_share() -> None:
    """Volume y may take what z needs on `tight`, whose disks are evenly full then; those of `even` differ."""
    options = Settings(options=Options(packing=Packing.EXACT))
    found = scores(await asked(by_names(pod("y", "z"), ("even", "tight")), mixed(), settings=options))
    assert found == {"even": 5, "tight": 2}


async def test_a_pod_without_volumes_finds_all_nodes_equal() -> None:
    """Whatever Longhorn thinks of them; also those it does not know."""
    assert set(scores(await asked(by_names(pod(), (*NODES, "nobody")))).values()) == {10}


async def test_a_pod_that_cannot_be_decided_about_finds_all_nodes_equal() -> None:
    """The claim does not exist; /filter says so, and here nobody would read it."""
    answer = await asked(by_names(pod("missing"), NODES))
    assert answer == [{"Host": name, "Score": 0} for name in NODES]


async def test_while_refusals_are_only_observed_no_node_is_preferred() -> None:
    """Observing changes nothing about where pods go."""
    observing = Settings(enforcement=Enforcement.OBSERVE)
    assert set(scores(await asked(by_names(db_pod()), settings=observing)).values()) == {0}


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        pytest.param(b"", "the body is empty, expected JSON", id="empty"),
        pytest.param(b'{"NodeNames":["node-1"]}', "Pod is missing or null", id="no pod"),
        pytest.param(
            b'{"Pod":{"metadata":{"name":"p"}}}', "expected one of Nodes and NodeNames, got neither", id="no form"
        ),
        pytest.param(
            b'{"Pod":{"metadata":{"name":"p"}},"NodeNames":["a","a"]}', "node 'a' is asked about twice", id="twice"
        ),
    ],
)
async def test_a_malformed_question_is_refused_as_by_filter(body: bytes, problem: str) -> None:
    """With the field's name."""
    async with small_service() as client:
        for route in ("/prioritize", "/filter"):
            response = await client.post(route, content=body)
            assert (response.status_code, response.json()) == (400, {"error": problem})


@dataclass
class Beside:
    """A cluster that changes, and offers; questions are refused for the reason in `why`."""

    cache: FakeCache
    why: str = ""
    offers: Offers = field(init=False)
    app: FastAPI = field(init=False)

    def __post_init__(self) -> None:
        scheduling, metrics = Scheduling(self.cache, Options()), Metrics()
        cache = cast("ClusterCache", self.cache)
        self.offers = Offers(cache, scheduling, ExtenderSettings, metrics, lambda: 0.0)
        verbs = Verbs(scheduling, lambda: self.why, self.offers)
        policy = PolicyVerbs(verbs, scheduling, PolicyInForce())
        self.app = assembled(AppState(scheduling, verbs, metrics, 1 << 20, policy))

    async def ask(self, route: str, question: Any) -> Any:
        """Status and answer."""
        async with asking(self.app) as client:
            response = await client.post(route, content=json.dumps(question).encode())
            return response.status_code, response.json()


def test_who_does_not_lead_says_so() -> None:
    """As for the other verbs."""

    async def scenario() -> None:
        beside = Beside(FakeCache(cluster(), claim("data-0", 60)), why="not the leader, somebody is")
        assert await beside.ask("/prioritize", by_names(db(0), TWO)) == (503, {"error": "not the leader, somebody is"})

    run(scenario())


def test_nothing_is_offered_and_nothing_is_lost() -> None:
    """A question before /filter's offers nothing; one after it leaves the offer as it is, and does not count it against its own pod."""

    async def scenario() -> None:
        beside = Beside(FakeCache(cluster(), claim("data-0", 60)))
        first = await beside.ask("/prioritize", by_names(db(0), TWO))
        assert scores(first[1]) == {"a": 6, "b": 6}
        assert beside.offers.ledger.outstanding == 0
        await beside.ask("/filter", by_names(db(0), TWO))
        offer = beside.offers.ledger.of("uid-0")
        assert offer is not None
        assert await beside.ask("/prioritize", by_names(db(0), TWO)) == first
        assert beside.offers.ledger.of("uid-0") == offer
        beside.offers.clear()

    run(scenario())


def test_what_others_were_offered_counts() -> None:
    """An equal pod was offered both nodes, whose one disk has no room for two."""

    async def scenario() -> None:
        beside = Beside(FakeCache(cluster(), claim("data-0", 60), claim("data-1", 60)))
        await beside.ask("/filter", by_names(db(0), TWO))
        _, answer = await beside.ask("/prioritize", by_names(db(1), TWO))
        assert scores(answer) == {"a": 0, "b": 0}
        beside.offers.clear()

    run(scenario())
