"""POST /prioritize: a score from 0 to 10 for every node of the request, in order, and no offer."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI

from app.api.app_state import AppState
from app.bootstrap import application as live_application
from app.evaluator import Evaluator
from app.extender.metrics import Metrics
from app.extender.offers import Offers
from app.extender.verbs import Verbs
from app.memory_budget import MemoryBudget
from app.policy import PolicyInForce
from app.runtime.probes import SwitchedOff
from app.settings import Settings
from scheduler_core.decide.decision import FilterOptions, Packing
from scheduler_core.decide.extender_settings import Enforcement, ExtenderSettings
from tests import builders as make
from tests.worlds.service import NODES, application, by_names, by_nodes, db_pod, http_client, small_service
from tests.worlds.state_source import FakeStateSource
from tests.worlds.two_nodes import NODES as TWO_NODES, database_pod, two_nodes
from tests.worlds.virtual_time import virtually

RECORDED = Path(__file__).parents[2] / "golden" / "recorded"


async def prioritize(request: Any, *objects: Any, settings: Settings | None = None) -> Any:
    """Sends /prioritize; returns the answer."""
    async with http_client(application(*objects, settings=settings)) as client:
        response = await client.post("/prioritize", content=json.dumps(request).encode())
        assert response.status_code == 200
        return response.json()


def scores(answer: Any) -> dict[str, int]:
    return {entry["Host"]: entry["Score"] for entry in answer}


@pytest.mark.parametrize("form", [by_names, by_nodes], ids=["names", "whole nodes"])
async def test_every_node_of_the_request_has_a_score_in_the_order_of_the_request(form: Any) -> None:
    names = ("node-4", "node-1", "unknown", "node-3", "node-2")
    assert await prioritize(form(db_pod(), names)) == [
        {"Host": "node-4", "Score": 0},
        {"Host": "node-1", "Score": 5},
        {"Host": "unknown", "Score": 0},
        {"Host": "node-3", "Score": 5},
        {"Host": "node-2", "Score": 0},
    ]


@pytest.mark.parametrize("name", ["prioritize-node-names.json", "prioritize-nodes.json"])
async def test_the_requests_of_a_real_kube_scheduler_are_answered(name: str) -> None:
    body = (RECORDED / name).read_bytes()
    lower = (
        body.replace(b'{"Pod":', b'{"pod":')
        .replace(b',"Nodes":', b',"nodes":')
        .replace(b',"NodeNames"', b',"nodenames"')
    )
    async with small_service() as client:
        answers = [(await client.post("/prioritize", content=text)).json() for text in (body, lower)]
    request = json.loads(body)
    names = request["NodeNames"] or [node["metadata"]["name"] for node in request["Nodes"]["items"]]
    expected = {"node-1": 5, "node-2": 0, "node-3": 5, "node-4": 0}
    assert answers == [[{"Host": node, "Score": expected[node]} for node in names]] * 2


async def test_no_nodes_get_no_scores() -> None:
    assert await prioritize(by_names(db_pod(), ())) == []


def uneven_nodes() -> list[make.Object]:
    """Pods of x and y, 30Gi each: `home` has x; on `tight` both fit in a lucky order only; `uneven` is left with one full disk."""
    return make.flat(
        make.storage_class(),
        make.setting("storage-over-provisioning-percentage", "100"),
        [make.kube_node(name) for name in ("even", "home", "tight", "uneven")],
        make.longhorn_node("even", {"disk-1": make.disk(300), "disk-2": make.disk(300)}),
        make.longhorn_node("home", {"disk-1": make.disk(300), "disk-2": make.disk(300)}),
        make.longhorn_node("tight", {"disk-1": make.disk(60), "disk-2": make.disk(30)}),
        make.longhorn_node("uneven", {"disk-1": make.disk(300), "disk-2": make.disk(300, scheduled=300)}),
        make.bound("x", 30),
        make.replica("r", "vol-x", "home", size=30),
        make.claim("y", 30),
        make.claim("z", 60),
    )


async def test_data_and_safety_weigh_more_than_even_disks() -> None:
    options = Settings(options=FilterOptions(packing=Packing.EXACT))
    by_node = scores(
        await prioritize(by_names(make.pod("x", "y"), ("home", "even", "uneven")), uneven_nodes(), settings=options)
    )
    assert by_node == {"home": 10, "even": 5, "uneven": 4}


async def test_an_unsafe_order_costs_its_share() -> None:
    options = Settings(options=FilterOptions(packing=Packing.EXACT))
    by_node = scores(
        await prioritize(by_names(make.pod("y", "z"), ("even", "tight")), uneven_nodes(), settings=options)
    )
    assert by_node == {"even": 5, "tight": 1}


async def test_all_nodes_have_equal_scores_for_a_pod_without_volumes() -> None:
    """Longhorn's state does not matter, and nodes may be unknown."""
    assert set(scores(await prioritize(by_names(make.pod(), (*NODES, "unknown")))).values()) == {10}


async def test_all_nodes_have_equal_scores_for_a_pod_that_cannot_be_decided_about() -> None:
    """/filter reports its missing claim; kube-scheduler would not read an error here."""
    answer = await prioritize(by_names(make.pod("missing"), NODES))
    assert answer == [{"Host": name, "Score": 0} for name in NODES]


async def test_while_refusals_are_only_observed_no_node_is_preferred() -> None:
    observing = Settings(enforcement=Enforcement.OBSERVE)
    assert set(scores(await prioritize(by_names(db_pod()), settings=observing)).values()) == {0}


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
async def test_a_malformed_request_is_refused_as_by_filter(body: bytes, problem: str) -> None:
    async with small_service() as client:
        for route in ("/prioritize", "/filter"):
            response = await client.post(route, content=body)
            assert (response.status_code, response.json()) == (400, {"error": problem})


@dataclass
class OfferingService:
    """A service that makes offers."""

    cache: FakeStateSource
    refusal: str = ""  # why requests are refused, "" if they are answered
    observes: bool = False
    offers: Offers = field(init=False)
    app: FastAPI = field(init=False)

    def __post_init__(self) -> None:
        evaluator = Evaluator(self.cache, FilterOptions())
        metrics = Metrics()
        self.offers = Offers(self.cache, evaluator, ExtenderSettings, metrics, lambda: 0.0)
        verbs = Verbs(evaluator, PolicyInForce(), lambda: self.refusal, self.offers)
        self.app = live_application(
            AppState(evaluator, verbs, metrics, 1 << 20, MemoryBudget(1 << 30), observes=lambda: self.observes)
        )

    async def post(self, route: str, number: int) -> tuple[int, Any]:
        """Sends a request for the pod db-<number> and both nodes; returns status and answer."""
        body = json.dumps(by_names(database_pod(number), TWO_NODES)).encode()
        async with http_client(self.app) as client:
            response = await client.post(route, content=body)
            return response.status_code, response.json()


@virtually
async def test_a_process_that_does_not_lead_refuses() -> None:
    """Its connection is closed, so that the next one may reach the leader."""
    service = OfferingService(FakeStateSource(two_nodes(), make.claim("data-0", 60)), "not the leader, other is")
    for route in ("/prioritize", "/explain"):
        assert await service.post(route, 0) == (503, {"error": "not the leader, other is"})


@virtually
async def test_filter_tells_kube_scheduler_why_it_cannot_answer() -> None:
    service = OfferingService(FakeStateSource(two_nodes(), make.claim("data-0", 60)), "not the leader, other is")
    async with http_client(service.app) as client:
        response = await client.post("/filter", json=by_names(database_pod(0), TWO_NODES))
    answer = response.json()
    assert (response.status_code, response.headers["connection"]) == (200, "close")
    assert (answer["Error"], answer["NodeNames"], answer["Nodes"]) == ("not the leader, other is", None, None)
    assert answer["FailedNodes"] == answer["FailedAndUnresolvableNodes"] == {}


@virtually
async def test_while_refusals_are_only_observed_a_process_that_may_not_decide_lets_every_node_pass() -> None:
    service = OfferingService(FakeStateSource(two_nodes(), make.claim("data-0", 60)), "not ready: nodes not read yet")
    service.observes = True
    async with http_client(service.app) as client:
        response = await client.post("/filter", json=by_names(database_pod(0), TWO_NODES))
    answer = response.json()
    assert (answer["NodeNames"], answer.get("Error", "")) == (list(TWO_NODES), "")
    assert response.headers["connection"] == "close", "the next request may reach a process that may decide"
    service.observes = False
    _, answer = await service.post("/filter", 0)
    assert (answer["NodeNames"], answer["Error"]) == (None, "not ready: nodes not read yet")


@virtually
async def test_while_refusals_are_only_observed_preemption_is_held_up_by_no_process() -> None:
    service = OfferingService(FakeStateSource(two_nodes(), make.claim("data-0", 60)), "not ready: nodes not read yet")
    victims = {"a": {"Pods": [{"UID": "uid-9"}], "NumPDBViolations": 0}}
    request = {"Pod": database_pod(0), "NodeNameToMetaVictims": victims}
    service.observes = True
    async with http_client(service.app) as client:
        response = await client.post("/preempt", json=request)
        service.observes = False
        refused = await client.post("/preempt", json=request)
    assert (response.status_code, response.json()) == (200, {"NodeNameToMetaVictims": victims})
    assert (response.headers["connection"], refused.status_code) == ("close", 503)


@virtually
async def test_an_extender_that_is_switched_off_answers_no_verb() -> None:
    """It is in no EndpointSlice, so that kube-scheduler does not reach it."""
    service = OfferingService(FakeStateSource(two_nodes(), make.claim("data-0", 60)), SwitchedOff("enabled is false"))
    for route in ("/filter", "/prioritize", "/explain"):
        assert await service.post(route, 0) == (503, {"error": "enabled is false"})


@virtually
async def test_prioritize_makes_no_offer_and_ends_none() -> None:
    service = OfferingService(FakeStateSource(two_nodes(), make.claim("data-0", 60), database_pod(0)))
    first = await service.post("/prioritize", 0)
    assert scores(first[1]) == {"a": 5, "b": 5}
    assert service.offers.observed_ledger().outstanding == 0
    await service.post("/filter", 0)
    offer = service.offers.observed_ledger().offer_of("uid-0")
    assert offer is not None
    assert await service.post("/prioritize", 0) == first
    assert service.offers.observed_ledger().offer_of("uid-0") == offer
    service.offers.clear()


@virtually
async def test_offers_of_other_pods_count() -> None:
    service = OfferingService(
        FakeStateSource(two_nodes(), make.claim("data-0", 60), make.claim("data-1", 60), database_pod(0))
    )
    await service.post("/filter", 0)
    _, answer = await service.post("/prioritize", 1)
    assert scores(answer) == {"a": 0, "b": 0}
    service.offers.clear()
