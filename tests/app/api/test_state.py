"""What administrators, kubelets and Prometheus read."""

import re
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from prometheus_client.parser import text_string_to_metric_families

from app.api.app_state import AppState
from app.bootstrap import application as live_application
from app.evaluator import Evaluator
from app.extender.metrics import Metrics, Outstanding
from app.extender.verbs import Verbs
from app.memory_budget import MemoryBudget
from app.policy import PolicyInForce
from app.runtime.connections import ServerMetrics
from app.schemas import state as schemas
from scheduler_core.decide.decision import FilterOptions
from scheduler_core.decide.extender_settings import Enforcement
from scheduler_core.decide.nudge_limits import WaitingPod
from scheduler_core.evaluation.contention import Contention
from scheduler_core.model.verdict import Reason
from scheduler_core.monitor.demand_monitor import PlacementReport
from scheduler_core.monitor.overbooking_monitor import Overbooked, OverbookingReport
from scheduler_core.offers.ledger import Ledger, step
from scheduler_core.offers.outstanding_offer import ObservedPod, Offered, OutcomeKind, Tick
from scheduler_core.volumes.outstanding_demand import DemandSource
from scheduler_core.volumes.resolve import resolve
from tests import builders as make
from tests.builders import GI, disk, kube_node, longhorn_node, pod, replica, setting, storage_class
from tests.worlds.service import application, by_names, db_pod, http_client, lifecycle, small_cluster, small_service
from tests.worlds.state_source import FakeStateSource
from tests.worlds.two_nodes import two_nodes

PREFIX = "longhorn_scheduler_extender"


@pytest.mark.parametrize("path", ["/healthz", "/readyz"])
async def test_a_served_snapshot_is_alive_and_ready(path: str) -> None:
    async with small_service() as client:
        response = await client.get(path)
    assert (response.status_code, response.json()) == (200, {"status": "ok"})


async def test_readyz_and_state_name_objects_and_settings_that_cannot_be_read() -> None:
    """Such objects are left out, so a pod may be refused."""
    unreadable = ["nodes: Node a: metadata.name: is missing"]
    refused = ["x: there is no such setting"]
    app = _live(FakeStateSource(two_nodes()), unreadable=unreadable, refused_settings=refused)
    async with http_client(app) as client:
        ready = await client.get("/readyz")
        state = (await client.get("/state")).json()
    assert ready.status_code == 200
    assert ready.json() == {"status": "ok", "unreadable": unreadable, "refusedSettings": refused}
    assert state["service"]["unreadable"] == unreadable


async def test_state_shows_what_counts_on_each_disk() -> None:
    first_disk = disk(100, available=70, reserved=10, listed={"r-listed": 20}, tags=["ssd"])
    cluster = [
        longhorn_node("node-b", {"disk-1": first_disk}, zone="east", tags=["b", "a"]),
        longhorn_node("node-a", {}, allow=False, ready=False),
        replica("r-late", "vol", "node-b", size=30),
        setting("storage-over-provisioning-percentage", "100"),
    ]
    async with http_client(application(cluster)) as client:
        answer = (await client.get("/state")).json()
    assert (answer["service"], list(answer["nodes"])) == (None, ["node-a", "node-b"])
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


def _parse_samples(text: str) -> Samples:
    """Samples by name and labels."""
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


async def _samples(*requests: object) -> Samples:
    async with small_service() as client:
        for request in requests:
            await client.post("/filter", json=request)
        return _parse_samples((await client.get("/metrics")).text)


async def test_answers_are_counted_by_result_and_reason_and_timed() -> None:
    """A pod fits, is refused everywhere, or could not be decided about."""
    requests = (by_names(db_pod()), by_names(db_pod(), ["node-4", "compute-only"]), by_names(pod("gone")))
    samples = await _samples(*requests)

    def counted(name: str) -> dict[str, float]:
        return {labels[0][1]: value for (key, labels), value in samples.items() if key == f"{PREFIX}_{name}"}

    assert counted("filter_requests_total") == {"fits": 1, "refused": 1, "error": 1}
    reasons = dict.fromkeys((reason.name.lower() for reason in Reason), 0.0)
    expected = {"room": 2, "insufficient_storage": 3, "not_a_longhorn_node": 1}
    assert counted("verdicts_total") == reasons | expected
    bounds = [float(bound) for bound in counted("filter_duration_seconds_bucket")]
    assert samples[f"{PREFIX}_filter_duration_seconds_count", ()] == 3
    assert (min(bounds), sorted(bounds)[-2:]) == (0.0005, [10.0, float("inf")])


async def test_pods_sent_to_unsafe_nodes_are_counted_by_the_worst_reason() -> None:
    """Volumes that may meet on a disk, or take another one's disk.

    Two volumes of 60Gi may meet on a disk of 100Gi. Of 50Gi and 100Gi the small one may take the only disk for the
    large one.
    """
    cluster = [
        storage_class(),
        longhorn_node("safe", 120),
        longhorn_node("stale", {"a": disk(100), "b": disk(100)}),
        longhorn_node("order", {"a": disk(100), "b": disk(60)}),
        *[make.claim(f"c{size}", size) for size in (50, 60, 61, 100)],
    ]
    requests = (
        by_names(pod("c60", "c50"), ["safe", "stale"]),
        by_names(pod("c60", "c61"), ["stale"]),
        by_names(pod("c50", "c100"), ["order"]),
    )
    async with http_client(application(make.flat(*cluster))) as client:
        for request in requests:
            await client.post("/filter", json=request)
        samples = _parse_samples((await client.get("/metrics")).text)
    name = f"{PREFIX}_unsafe_answers_total"
    counted = {labels[0][1]: value for (key, labels), value in samples.items() if key == name}
    assert counted == {"stale_unsafe": 1, "order_unsafe": 1}


async def test_the_metrics_have_the_space_of_every_disk() -> None:
    async with small_service() as client:
        samples = _parse_samples((await client.get("/metrics")).text)
        nodes = (await client.get("/state")).json()["nodes"]
    name = f"{PREFIX}_disk_free_bytes"
    free = {labels: value for (key, labels), value in samples.items() if key == name}
    assert free == {
        (("disk", disk["name"]), ("node", node)): disk["free"]
        for node, entry in nodes.items()
        for disk in entry["disks"]
    }
    assert len(free) == len(nodes) > 0


async def test_every_route_has_the_instrumentators_metrics() -> None:
    samples = await _samples(by_names(db_pod()), [])
    by_status = {
        dict(labels)["status"]: value
        for (name, labels), value in samples.items()
        if name == "http_requests_total" and dict(labels)["handler"] == "/filter"
    }
    assert by_status == {"2xx": 1, "4xx": 1}


@pytest.mark.parametrize(("path", "least"), [("/docs", 3), ("/redoc", 1), ("/openapi.json", 0)])
async def test_documentation_needs_no_other_host(path: str, least: int) -> None:
    async with small_service() as client:
        page = await client.get(path)
        paths = re.findall(r"(?:src|href)=\"([^\"]+)\"", page.text)
        statuses = [(await client.get(path)).status_code for path in paths]
    assert page.status_code == 200
    assert re.findall(r"https?://|src=\"//|href=\"//", page.text) == []
    assert len(statuses) >= least
    assert set(statuses) <= {200}


@pytest.mark.parametrize(
    ("method", "path", "status", "problem"),
    [
        pytest.param("POST", "/nothing", 404, "POST /nothing: Not Found", id="unknown path"),
        pytest.param("GET", "/filter", 405, "GET /filter: Method Not Allowed", id="GET a verb"),
        pytest.param("DELETE", "/state", 405, "DELETE /state: Method Not Allowed", id="DELETE the state"),
        pytest.param("GET", "/%00%ff", 404, "Not Found", id="odd characters"),
    ],
)
async def test_a_wrong_path_or_method_is_an_error_in_json(method: str, path: str, status: int, problem: str) -> None:
    async with small_service() as client:
        response = await client.request(method, path)
    assert response.status_code == status
    assert problem in response.json()["error"]


async def test_a_cluster_without_longhorn_is_served_too() -> None:
    async with http_client(application(kube_node("node-1"), storage_class(), small_cluster()[-1])) as client:
        assert (await client.get("/state")).json()["nodes"] == {}
        answer = (await client.post("/filter", json=by_names(db_pod(), ["node-1"]))).json()
    assert answer["FailedAndUnresolvableNodes"] == {"node-1": "node is not a Longhorn node"}


OUTSTANDING = Outstanding(
    demands={"pod": 5, "attachment": 2},
    offers=7,
    hopeless_demands=1,
    misplaced_volumes=2,
    overbooked_disks=6,
    stuck_pods=3,
    waiting_pods=4,
    oldest_waiting_pod_seconds=62.5,
)


def _live(cache: FakeStateSource, metrics: Metrics | None = None, problem: str = "", **fields: Any) -> FastAPI:
    """The application of a process that leads."""
    evaluator = Evaluator(cache, FilterOptions())
    verbs = Verbs(evaluator, PolicyInForce())
    budget = MemoryBudget(1 << 30)
    return live_application(
        AppState(evaluator, verbs, metrics or Metrics(), 1 << 20, budget, lifecycle(problem, **fields))
    )


async def _service(cache: FakeStateSource, outstanding: schemas.OutstandingState, **fields: Any) -> Any:
    async with http_client(_live(cache, outstanding=outstanding, **fields)) as client:
        return (await client.get("/state")).json()["service"]


async def test_state_of_a_live_cluster_shows_the_leader() -> None:
    lists = {name: list[Any]() for name in ("demands", "offers", "waiting", "misplaced", "overbooked", "stuck")}
    names = ("demandCount", "offerCount", "waitingCount", "misplacedCount", "overbookedCount", "stuckCount")
    counts = dict.fromkeys(names, 0)
    service = await _service(
        FakeStateSource(two_nodes()),
        schemas.OutstandingState(),
        enforcement=Enforcement.OBSERVE,
        origins={"scheduler-extender-enabled": "environment"},
        refused_settings=["a problem"],
        reserved_nodes=["node-9"],
        guard=schemas.PlacementGuardState("observe", published=False, problem="no certificate"),
    )
    assert service == {
        "answering": True,
        "refusal": "",
        "leader": "pod-1",
        "enabled": True,
        "enforcement": "observe",
        "podSchedulingTimeout": 5,
        "nodeReservationTimeout": 6,
        "origins": {"scheduler-extender-enabled": "environment"},
        "refusedSettings": ["a problem"],
        "unreadable": [],
        "reservedNodes": ["node-9"],
        **lists,
        **counts,
        "placementGuard": {
            "mode": "observe",
            "published": False,
            "problem": "no certificate",
            "health": "",
            "outcomes": {},
            "observations": {},
            "awaited": [],
            "awaitedCount": 0,
        },
    }


async def test_state_is_unavailable_until_the_cluster_is_listed() -> None:
    """Decisions are unavailable until then, too."""
    async with http_client(_live(FakeStateSource(two_nodes()), problem="pods not listed yet")) as client:
        response = await client.get("/state")
    assert (response.status_code, response.json()) == (503, {"error": "pods not listed yet"})


def _cluster_with_problems() -> FakeStateSource:
    """Pod db-0 is bound to a. Its volume x was placed on b, and its claim y is too large for a."""
    claim = make.claim("y", 500)
    claim["metadata"]["creationTimestamp"] = "2026-01-01T00:00:00Z"
    return FakeStateSource(
        two_nodes(),
        make.claim("x", 10, bound=True),
        make.persistent_volume("x", uid="uid-x"),
        make.volume("vol-x", 10),
        make.replica("r", "vol-x", "b", size=10, healthy=False),
        claim,
        pod("x", "y", name="db-0", uid="uid-0", node="a"),
    )


def _report(cache: FakeStateSource, *times: float) -> PlacementReport:
    report = PlacementReport()
    for now in times:
        report = report.update(cache.state(), Contention(), Ledger(), now)
    return report


async def test_state_lists_demand() -> None:
    """It is sorted by node and age, and marks hopeless demand. It also marks what may be placed on another node."""
    cache = _cluster_with_problems()
    service = await _service(cache, schemas.OutstandingState(cache.state().demand, report=_report(cache, 0)))
    common = {"node": "a", "source": "pod", "pod": "default/db-0"}
    placed = {
        "volume": "vol-x",
        "claim": "default/x",
        "size": 10 * GI,
        "since": "",
        "hopeless": False,
        "roaming": False,
    }
    huge = {
        "volume": "y",
        "claim": "default/y",
        "size": 500 * GI,
        "since": "2026-01-01T00:00:00Z",
        "hopeless": True,
        "roaming": True,
    }
    assert service["demands"] == [common | placed, common | huge]
    assert service["demandCount"] == 2


async def test_state_lists_misplaced_volumes_and_stuck_pods() -> None:
    cache = _cluster_with_problems()
    service = await _service(cache, schemas.OutstandingState(report=_report(cache, 100, 165)))
    assert service["misplaced"] == [{"pod": "default/db-0", "volume": "vol-x", "node": "a", "replicasOn": ["b"]}]
    assert service["stuck"] == [{"pod": "default/db-0", "node": "a", "volumes": ["vol-x", "y"], "waitedSeconds": 65}]
    assert (service["misplacedCount"], service["stuckCount"]) == (1, 1)


async def test_state_lists_overbooked_disks() -> None:
    names = tuple(f"vol-{number:02d}" for number in range(schemas.MAX_VOLUMES_LISTED + 1))
    disks = [Overbooked("a", f"disk-{number}", names, 5, 360) for number in range(schemas.MAX_LISTED + 1)]
    report = OverbookingReport(overbooked=tuple(disks))
    service = await _service(FakeStateSource(two_nodes()), schemas.OutstandingState(overbookings=report))
    assert service["overbookedCount"] == schemas.MAX_LISTED + 1
    assert len(service["overbooked"]) == schemas.MAX_LISTED
    assert service["overbooked"][0] == {
        "node": "a",
        "disk": "disk-0",
        "volumes": list(names[: schemas.MAX_VOLUMES_LISTED]),
        "volumeCount": schemas.MAX_VOLUMES_LISTED + 1,
        "bytesOver": 5,
        "withinMilliseconds": 360,
    }


async def test_state_lists_offers_oldest_first() -> None:
    cache = FakeStateSource(two_nodes(), make.claim("x", 10), pod("x", name="db-0", uid="uid-0"))
    view = cache.state().view
    volumes = resolve(view.snapshot.pods["default", "db-0"], view).local
    many = frozenset(f"node-{number:03d}" for number in range(schemas.MAX_NODES_LISTED + 30))
    ledger, _ = step(Ledger(), Offered(ObservedPod("uid-0", "default", "db-0"), many, volumes), 100.0)
    ledger, _ = step(ledger, Offered(ObservedPod("uid-1", "default", "db-1"), frozenset("ba"), priority=7), 101.0)
    ledger, _ = step(ledger, ObservedPod("uid-1", "default", "db-1", nominated_node="b"), 102.0)
    ledger, _ = step(ledger, Tick(), 104.5)
    service = await _service(cache, schemas.OutstandingState(ledger=ledger))
    assert service["offerCount"] == 2
    assert service["offers"] == [
        {
            "pod": "default/db-0",
            "uid": "uid-0",
            "nodes": sorted(many)[: schemas.MAX_NODES_LISTED],
            "nodeCount": schemas.MAX_NODES_LISTED + 30,
            "ageSeconds": 4.5,
            "narrowed": False,
            "heldFromPriority": None,
            "volumes": ["default/x"],
        },
        {
            "pod": "default/db-1",
            "uid": "uid-1",
            "nodes": ["b"],
            "nodeCount": 1,
            "ageSeconds": 3.5,
            "narrowed": True,
            "heldFromPriority": 7,
            "volumes": [],
        },
    ]


async def test_state_lists_refused_pods() -> None:
    waiting = (WaitingPod(make.as_pod(pod("x", name="db-0", uid="uid-0")), 12.3456, 2),)
    service = await _service(FakeStateSource(two_nodes()), schemas.OutstandingState(waiting=waiting))
    expected = {"pod": "default/db-0", "uid": "uid-0", "waitedSeconds": 12.346, "nudges": 2}
    assert (service["waiting"], service["waitingCount"]) == ([expected], 1)


async def test_lists_of_state_are_bounded() -> None:
    count = schemas.MAX_LISTED + 5
    objects = [make.claim(f"c-{number:04d}", 1) for number in range(count)]
    mounts = [pod(f"c-{number:04d}", name=f"p-{number:04d}", uid=f"u-{number}", node="a") for number in range(count)]
    cache = FakeStateSource(two_nodes(), objects, mounts)
    ledger = Ledger()
    for number in range(count):
        ledger, _ = step(ledger, Offered(ObservedPod(f"u-{number}"), frozenset("a")), 0.0)
    waiting = (WaitingPod(make.as_pod(mounts[0]), 1.0, 0),) * count
    service = await _service(
        cache, schemas.OutstandingState(cache.state().demand, ledger, _report(cache, 0, 60), waiting=waiting)
    )
    for single in ("demand", "offer", "waiting", "stuck"):
        listed = service[single if single in ("waiting", "stuck") else f"{single}s"]
        assert (len(listed), service[f"{single}Count"]) == (schemas.MAX_LISTED, count)
    assert service["demands"][0]["claim"] == "default/c-0000"


async def test_counters_of_outcomes_exist_from_the_start() -> None:
    samples = await _samples()
    labelled = {
        "nudges": ("result", ("patched", "gone", "failed")),
        "offers_ended": ("became", tuple(kind.value for kind in OutcomeKind if kind is not OutcomeKind.NARROWED)),
    }
    for name, (label, values) in labelled.items():
        counters = {labels: value for (key, labels), value in samples.items() if key == f"{PREFIX}_{name}_total"}
        assert counters == {((label, value),): 0 for value in values}
    for name in ("misplacements", "overbookings", "would_refuse"):
        assert samples[f"{PREFIX}_{name}_total", ()] == 0


async def test_counters_of_outcomes_count() -> None:
    metrics = Metrics()
    metrics.misplacements.inc()
    metrics.overbookings.inc()
    metrics.nudges.count("patched")
    metrics.would_refuse.inc()
    metrics.offers_ended.count(OutcomeKind.DECIDED.value)
    async with http_client(_live(FakeStateSource(two_nodes()), metrics)) as client:
        samples = _parse_samples((await client.get("/metrics")).text)
    counted = {key for key, value in samples.items() if key[0].endswith("_total") and PREFIX in key[0] and value}
    assert counted == {
        (f"{PREFIX}_misplacements_total", ()),
        (f"{PREFIX}_overbookings_total", ()),
        (f"{PREFIX}_nudges_total", (("result", "patched"),)),
        (f"{PREFIX}_would_refuse_total", ()),
        (f"{PREFIX}_offers_ended_total", (("became", "decided"),)),
    }


async def test_outstanding_numbers_are_read_when_prometheus_scrapes() -> None:
    metrics = Metrics()
    reads: list[Outstanding] = []

    def read() -> Outstanding:
        reads.append(OUTSTANDING)
        return OUTSTANDING

    metrics.outstanding(read)
    assert reads == []
    async with http_client(_live(FakeStateSource(two_nodes()), metrics)) as client:
        samples = _parse_samples((await client.get("/metrics")).text)
    assert len(reads) == 1
    demands = {labels[0][1]: value for (name, labels), value in samples.items() if name == f"{PREFIX}_demands"}
    assert demands == {source.name.lower(): OUTSTANDING.demands.get(source.name.lower(), 0) for source in DemandSource}
    numbers = ("offers", "hopeless_demands", "misplaced_volumes", "overbooked_disks", "stuck_pods", "waiting_pods")
    assert [samples[f"{PREFIX}_{name}", ()] for name in numbers] == [7, 1, 2, 6, 3, 4]
    assert samples[f"{PREFIX}_oldest_waiting_pod_seconds", ()] == 62.5


async def test_every_metric_is_documented() -> None:
    metrics = Metrics()
    metrics.outstanding(lambda: OUTSTANDING)
    metrics.caches(dict, lambda: 0.0)
    metrics.request_memory(MemoryBudget(1))
    metrics.guard_proven()
    metrics.capacity(lambda: None)
    metrics.node_losses(dict)
    ServerMetrics(metrics.registry)
    document = (Path(__file__).parents[3] / "docs/http-api.md").read_text()
    documented = set(re.findall(rf"^\| `{PREFIX}_([a-z_]+)`", document, re.MULTILINE))
    collected = {
        f"{family.name}{'_total' if family.type == 'counter' else ''}".removeprefix(f"{PREFIX}_")
        for family in metrics.registry.collect()
        if family.name.startswith(PREFIX)
    }
    assert documented == collected
