"""What administrators, kubelets and Prometheus ask."""

from __future__ import annotations

import re

import pytest
from prometheus_client.parser import text_string_to_metric_families

from scheduler_core.verdict import Reason
from tests.app.service import application, asking, by_names, db_pod, small_cluster, small_service
from tests.builders import GI, disk, kube_node, longhorn_node, pod, replica, setting, storage_class

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


async def _samples(*questions: object) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """The metrics after some questions, by name and labels."""
    async with small_service() as client:
        for question in questions:
            await client.post("/filter", json=question)
        text = (await client.get("/metrics")).text
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


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
