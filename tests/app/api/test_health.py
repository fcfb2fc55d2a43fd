"""What administrators, kubelets and Prometheus ask."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest
from fastapi import FastAPI
from prometheus_client.parser import text_string_to_metric_families

from app.api.dependencies import AppState
from app.bootstrap import application as assembled
from app.decisions.evaluator import Scheduling
from app.extender.metrics import Metrics, Outstanding
from app.extender.nudger import Waiting
from app.extender.verbs import Verbs
from app.policy.in_force import PolicyInForce, PolicyVerbs
from app.schemas.explain import ServiceState, Unsettled
from app.schemas.state import MOST_LISTED, MOST_NODES_LISTED
from scheduler_core.cooperative import finish
from scheduler_core.demand.derive import Source
from scheduler_core.evaluation.contention import Joint
from scheduler_core.extender.filter import Options
from scheduler_core.extender.placement_monitor import Survey
from scheduler_core.model.verdict import Reason
from scheduler_core.offers.ledger import Became, Ledger, Offered, PodSeen, TimePassed, step
from scheduler_core.volumes.resolve import resolve
from tests import builders as make
from tests.app.extender.test_node_reservation import cluster
from tests.builders import GI, disk, kube_node, longhorn_node, pod, replica, setting, storage_class
from tests.worlds.service import application, asking, by_names, db_pod, small_cluster, small_service
from tests.worlds.state_source import FakeCache

if TYPE_CHECKING:
    from app.extender.lifecycle import Live

pytestmark = pytest.mark.anyio

PREFIX = "longhorn_scheduler_extender"


@pytest.mark.parametrize("path", ["/healthz", "/readyz"])
async def test_a_served_snapshot_is_alive_and_ready(path: str) -> None:
    """A snapshot is there from the start, so both say ok."""
    async with small_service() as client:
        response = await client.get(path)
    assert (response.status_code, response.json()) == (200, {"status": "ok"})


async def test_state_tells_what_counts_on_each_disk() -> None:
    """Longhorn's own figures, what decisions make of them, and replicas its status does not list yet."""
    one = disk(100, available=70, reserved=10, listed={"r-listed": 20}, tags=["ssd"])
    cluster = [
        longhorn_node("node-b", {"disk-1": one}, zone="east", tags=["b", "a"]),
        longhorn_node("node-a", {}, allow=False, ready=False),
        replica("r-late", "vol", "node-b", size=30),
        setting("storage-over-provisioning-percentage", "100"),
    ]
    async with asking(application(cluster)) as client:
        answer = (await client.get("/state")).json()
    assert list(answer["nodes"]) == ["node-a", "node-b"]
    assert answer["nodes"]["node-a"] | {"disks": []} == answer["nodes"]["node-a"]
    assert not answer["nodes"]["node-a"]["ready"]
    node = answer["nodes"]["node-b"]
    assert (node["zone"], node["tags"]) == ("east", ["a", "b"])
    assert (
        node["disks"][0].items()
        >= {
            "name": "disk-1",
            "uuid": "node-b-disk-1",
            "tags": ["ssd"],
            "storageMaximum": 100 * GI,
            "storageReserved": 10 * GI,
            "storageAvailable": 70 * GI,
            "storageScheduled": 20 * GI,
            "free": (100 - 10 - 20 - 30) * GI,
            "replicas": {"r-listed": 20 * GI},
            "notYetScheduled": {"r-late": 30 * GI},
        }.items()
    )


Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def _parsed(text: str) -> Samples:
    """Samples by name and labels."""
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


async def _samples(*questions: object) -> Samples:
    """The metrics after some questions."""
    async with small_service() as client:
        for question in questions:
            await client.post("/filter", json=question)
        return _parsed((await client.get("/metrics")).text)


async def test_the_filter_histogram_has_the_name_and_buckets_promised() -> None:
    """Longhorn's proposal names it; buckets reach from half a millisecond to ten seconds."""
    samples = await _samples(by_names(db_pod()), by_names(pod("gone")))
    name = f"{PREFIX}_filter_duration_seconds"
    assert samples[f"{name}_count", ()] == 2
    bounds = [float(labels[0][1]) for key, labels in samples if key == f"{name}_bucket"]
    assert (min(bounds), max(bound for bound in bounds if bound != float("inf"))) == (0.0005, 10.0)


async def test_verdicts_are_counted_by_reason() -> None:
    """Every node judged counts once, under the name of its reason."""
    samples = await _samples(by_names(db_pod()), by_names(db_pod(), ["node-1", "compute-only"]))
    counted = {labels[0][1]: value for (name, labels), value in samples.items() if name == f"{PREFIX}_verdicts_total"}
    expected = dict.fromkeys((reason.name.lower() for reason in Reason), 0.0)
    assert counted == expected | {"room": 3, "insufficient_storage": 2, "not_a_longhorn_node": 1}


async def test_requests_are_counted_by_result() -> None:
    """A pod fits somewhere, is refused everywhere, or could not be decided about."""
    samples = await _samples(by_names(db_pod()), by_names(db_pod(), ["node-4"]), by_names(pod("gone")))
    name = f"{PREFIX}_filter_requests_total"
    assert {labels[0][1]: value for (key, labels), value in samples.items() if key == name} == {
        "fits": 1,
        "refused": 1,
        "error": 1,
    }


async def test_every_route_has_the_instrumentators_metrics() -> None:
    """prometheus-fastapi-instrumentator counts requests by handler and status."""
    samples = await _samples(by_names(db_pod()), [])
    by_status = {
        dict(labels)["status"]: value
        for (name, labels), value in samples.items()
        if name == "http_requests_total" and dict(labels)["handler"] == "/filter"
    }
    assert by_status == {"2xx": 1, "4xx": 1}


@pytest.mark.parametrize("path", ["/docs", "/redoc", "/openapi.json"])
async def test_documentation_needs_no_other_host(path: str) -> None:
    """A cluster without a way out can read it: nothing refers to another host."""
    async with small_service() as client:
        response = await client.get(path)
    assert response.status_code == 200
    assert re.findall(r"https?://|src=\"//|href=\"//", response.text) == []


async def test_what_the_documentation_refers_to_is_served() -> None:
    """Every script, style sheet and icon of /docs is there."""
    async with small_service() as client:
        page = (await client.get("/docs")).text
        found = re.findall(r"(?:src|href)=\"([^\"]+)\"", page)
        statuses = {path: (await client.get(path)).status_code for path in found}
    assert len(statuses) >= 3
    assert set(statuses.values()) == {200}


async def test_every_endpoint_is_documented() -> None:
    """The OpenAPI document lists every route."""
    async with small_service() as client:
        paths = (await client.get("/openapi.json")).json()["paths"]
    assert {"/filter", "/preempt", "/explain", "/healthz", "/readyz", "/state", "/metrics"} <= paths.keys()


async def test_the_root_leads_to_the_documentation() -> None:
    """Who opens the address in a browser sees /docs."""
    async with small_service() as client:
        response = await client.get("/")
    assert (response.status_code, response.headers["location"]) == (307, "/docs")


@pytest.mark.parametrize(
    ("method", "path", "status", "problem"),
    [
        pytest.param("POST", "/nothing", 404, "POST /nothing: Not Found", id="unknown path"),
        pytest.param("GET", "/filter", 405, "GET /filter: Method Not Allowed", id="GET a verb"),
        pytest.param("DELETE", "/state", 405, "DELETE /state: Method Not Allowed", id="DELETE the state"),
        pytest.param("GET", "/%00%ff", 404, "Not Found", id="odd characters"),
    ],
)
async def test_a_wrong_path_or_method_is_told_in_json(method: str, path: str, status: int, problem: str) -> None:
    """Like every error, as {"error": ...}."""
    async with small_service() as client:
        response = await client.request(method, path)
    assert response.status_code == status
    assert problem in response.json()["error"]


async def test_a_cluster_without_longhorn_is_served_too() -> None:
    """Nothing fits there, and everything answers."""
    async with asking(application(kube_node("node-1"), storage_class(), small_cluster()[-1])) as client:
        assert (await client.get("/state")).json()["nodes"] == {}
        answer = (await client.post("/filter", json=by_names(db_pod(), ["node-1"]))).json()
    assert answer["FailedAndUnresolvableNodes"] == {"node-1": "node is not a Longhorn node"}


OUTSTANDING = Outstanding(
    demands={"pod": 5, "attachment": 2},
    offers=7,
    hopeless_demands=1,
    misplaced_volumes=2,
    stuck_pods=3,
    waiting_pods=4,
)


@dataclass(frozen=True)
class Beside:
    """What the routes ask of a live service."""

    unsettled: Unsettled = field(default_factory=Unsettled)
    readiness_problem: str = ""

    def state(self) -> ServiceState:
        """It leads."""
        return ServiceState(
            answering=True,
            refusal="",
            leader="me",
            enabled=True,
            pod_scheduling_timeout=5,
            node_reservation_timeout=6,
            origins={"scheduler-extender-enabled": "environment"},
            refused_settings=["a problem"],
            reserved_nodes=["node-9"],
            outstanding=self.unsettled,
        )


def _live(cache: FakeCache, beside: Beside, metrics: Metrics | None = None) -> FastAPI:
    scheduling = Scheduling(cache, Options())
    verbs = Verbs(scheduling)
    policy = PolicyVerbs(verbs, scheduling, PolicyInForce())
    state = AppState(scheduling, verbs, metrics or Metrics(), 1 << 20, policy, cast("Live", beside))
    return assembled(state)


async def _service(cache: FakeCache, unsettled: Unsettled) -> Any:
    """The service part of /state."""
    async with asking(_live(cache, Beside(unsettled))) as client:
        return (await client.get("/state")).json()["service"]


async def test_state_over_a_snapshot_has_no_service() -> None:
    """Nobody leads, and nothing is outstanding."""
    async with small_service() as client:
        assert (await client.get("/state")).json()["service"] is None


async def test_state_beside_a_cluster_tells_who_answers() -> None:
    """With nothing outstanding, as under node reservations, all lists are empty."""
    lists = {name: list[Any]() for name in ("demands", "offers", "waiting", "misplaced", "stuck")}
    counts = dict.fromkeys(("demandCount", "offerCount", "waitingCount", "misplacedCount", "stuckCount"), 0)
    assert await _service(FakeCache(cluster()), Unsettled()) == {
        "answering": True,
        "refusal": "",
        "leader": "me",
        "enabled": True,
        "podSchedulingTimeout": 5,
        "nodeReservationTimeout": 6,
        "origins": {"scheduler-extender-enabled": "environment"},
        "refusedSettings": ["a problem"],
        "reservedNodes": ["node-9"],
        **lists,
        **counts,
    }


async def test_state_is_not_told_before_the_cluster_is_known() -> None:
    """As little as anything is decided."""
    async with asking(_live(FakeCache(cluster()), Beside(readiness_problem="pods not listed yet"))) as client:
        response = await client.get("/state")
    assert (response.status_code, response.json()) == (503, {"error": "pods not listed yet"})


def _wanted() -> FakeCache:
    """Pod db-0 is bound to a; its volume x was placed on b, and its claim y is too large for a."""
    claim = make.claim("y", 500)
    claim["metadata"]["creationTimestamp"] = "2026-01-01T00:00:00Z"
    return FakeCache(
        cluster(),
        make.claim("x", 10, bound=True),
        make.persistent_volume("x", uid="uid-x"),
        make.volume("vol-x", 10),
        make.replica("r", "vol-x", "b", size=10, healthy=False),
        claim,
        pod("x", "y", name="db-0", uid="uid-0", node="a"),
    )


def _surveyed(cache: FakeCache, *times: float) -> Survey:
    survey = Survey()
    for now in times:
        survey = finish(survey.after(cache.demands(), cache.memory(), Joint(), Ledger(), now))
    return survey


async def test_state_lists_demands() -> None:
    """By node and age, the hopeless ones marked."""
    cache = _wanted()
    service = await _service(cache, Unsettled(cache.demands(), report=_surveyed(cache, 0)))
    common = {"node": "a", "source": "pod", "pod": "default/db-0"}
    placed = {"volume": "vol-x", "claim": "default/x", "size": 10 * GI, "since": "", "hopeless": False}
    huge = {"volume": "y", "claim": "default/y", "size": 500 * GI, "since": "2026-01-01T00:00:00Z", "hopeless": True}
    assert service["demands"] == [common | placed, common | huge]
    assert service["demandCount"] == 2


async def test_state_lists_what_went_wrong() -> None:
    """Misplaced volumes, and the pods that wait for theirs."""
    cache = _wanted()
    service = await _service(cache, Unsettled(report=_surveyed(cache, 100, 165)))
    assert service["misplaced"] == [{"pod": "default/db-0", "volume": "vol-x", "node": "a", "replicasOn": ["b"]}]
    assert service["stuck"] == [{"pod": "default/db-0", "node": "a", "volumes": ["vol-x", "y"], "waitedSeconds": 65}]
    assert (service["misplacedCount"], service["stuckCount"]) == (1, 1)


async def test_state_lists_offers_oldest_first() -> None:
    """With some of the nodes' names and the number of all, and the claims they are for."""
    cache = FakeCache(cluster(), make.claim("x", 10), pod("x", name="db-0", uid="uid-0"))
    volumes = resolve(cache.memory().view.snapshot.pods["default", "db-0"], cache.memory().view).local
    many = frozenset(f"node-{number:03d}" for number in range(MOST_NODES_LISTED + 30))
    ledger, _ = step(Ledger(), Offered(PodSeen("uid-0", "default", "db-0"), many, volumes), 100.0)
    ledger, _ = step(ledger, Offered(PodSeen("uid-1", "default", "db-1"), frozenset("ba")), 101.0)
    ledger, _ = step(ledger, PodSeen("uid-1", "default", "db-1", nominated="b"), 102.0)
    ledger, _ = step(ledger, TimePassed(), 104.5)
    service = await _service(cache, Unsettled(ledger=ledger))
    assert service["offerCount"] == 2
    assert service["offers"] == [
        {
            "pod": "default/db-0",
            "uid": "uid-0",
            "nodes": sorted(many)[:MOST_NODES_LISTED],
            "nodeCount": MOST_NODES_LISTED + 30,
            "ageSeconds": 4.5,
            "narrowed": False,
            "volumes": ["default/x"],
        },
        {
            "pod": "default/db-1",
            "uid": "uid-1",
            "nodes": ["b"],
            "nodeCount": 1,
            "ageSeconds": 3.5,
            "narrowed": True,
            "volumes": [],
        },
    ]


async def test_state_lists_the_pods_that_wait_for_room() -> None:
    """As they were refused."""
    waiting = (Waiting(make.as_pod(pod("x", name="db-0", uid="uid-0")), 12.3456, 2),)
    service = await _service(FakeCache(cluster()), Unsettled(waiting=waiting))
    expected = {"pod": "default/db-0", "uid": "uid-0", "waitedSeconds": 12.346, "nudges": 2}
    assert (service["waiting"], service["waitingCount"]) == ([expected], 1)


async def test_lists_of_state_are_bounded() -> None:
    """Their counts are not."""
    count = MOST_LISTED + 5
    objects = [make.claim(f"c-{number:04d}", 1) for number in range(count)]
    mounts = [pod(f"c-{number:04d}", name=f"p-{number:04d}", uid=f"u-{number}", node="a") for number in range(count)]
    cache, ledger = FakeCache(cluster(), objects, mounts), Ledger()
    for number in range(count):
        ledger, _ = step(ledger, Offered(PodSeen(f"u-{number}"), frozenset("a")), 0.0)
    waiting = (Waiting(make.as_pod(mounts[0]), 1.0, 0),) * count
    service = await _service(cache, Unsettled(cache.demands(), ledger, _surveyed(cache, 0, 60), waiting))
    for single in ("demand", "offer", "waiting", "stuck"):
        listed = service[single if single in ("waiting", "stuck") else f"{single}s"]
        assert (len(listed), service[f"{single}Count"]) == (MOST_LISTED, count)
    assert service["demands"][0]["claim"] == "default/c-0000"


async def test_counters_of_what_became_of_pods_exist_from_the_start() -> None:
    """A rate over a counter that appears later misses its first increment."""
    samples = await _samples()
    labelled = {
        "nudges": ("result", ("patched", "gone", "failed")),
        "offers_ended": ("became", tuple(became.value for became in Became if became is not Became.NARROWED)),
    }
    for name, (label, values) in labelled.items():
        found = {labels: value for (key, labels), value in samples.items() if key == f"{PREFIX}_{name}_total"}
        assert found == {((label, value),): 0 for value in values}
    for name in ("misplacements", "would_refuse"):
        assert samples[f"{PREFIX}_{name}_total", ()] == 0


async def test_counters_of_what_became_of_pods_count() -> None:
    """Each by its own label."""
    metrics = Metrics()
    metrics.misplaced()
    metrics.nudged("patched")
    metrics.would_refuse()
    metrics.offer_ended(Became.DECIDED.value)
    async with asking(_live(FakeCache(cluster()), Beside(), metrics)) as client:
        samples = _parsed((await client.get("/metrics")).text)
    counted = {key for key, value in samples.items() if key[0].endswith("_total") and PREFIX in key[0] and value}
    assert counted == {
        (f"{PREFIX}_misplacements_total", ()),
        (f"{PREFIX}_nudges_total", (("result", "patched"),)),
        (f"{PREFIX}_would_refuse_total", ()),
        (f"{PREFIX}_offers_ended_total", (("became", "decided"),)),
    }


async def test_what_is_outstanding_is_read_when_prometheus_asks() -> None:
    """Every source of demand is there, those without any as well."""
    metrics, reads = Metrics(), list[Outstanding]()

    def read() -> Outstanding:
        reads.append(OUTSTANDING)
        return OUTSTANDING

    metrics.outstanding(read)
    assert reads == []
    async with asking(_live(FakeCache(cluster()), Beside(), metrics)) as client:
        samples = _parsed((await client.get("/metrics")).text)
    assert len(reads) == 1
    demands = {labels[0][1]: value for (name, labels), value in samples.items() if name == f"{PREFIX}_demands"}
    assert demands == {source.name.lower(): OUTSTANDING.demands.get(source.name.lower(), 0) for source in Source}
    numbers = ("offers", "hopeless_demands", "misplaced_volumes", "stuck_pods", "waiting_pods")
    assert [samples[f"{PREFIX}_{name}", ()] for name in numbers] == [7, 1, 2, 3, 4]


async def test_every_metric_is_documented() -> None:
    """docs/http-api.md has a row for each, and none for another."""
    metrics = Metrics()
    metrics.outstanding(lambda: OUTSTANDING)
    metrics.caches(dict, lambda: 0.0)
    document = (Path(__file__).parents[3] / "docs/http-api.md").read_text()
    documented = set(re.findall(rf"^\| `{PREFIX}_([a-z_]+)`", document, re.MULTILINE))
    collected = {
        f"{family.name}{'_total' if family.type == 'counter' else ''}".removeprefix(f"{PREFIX}_")
        for family in metrics.registry.collect()
        if family.name.startswith(PREFIX)
    }
    assert documented == collected
