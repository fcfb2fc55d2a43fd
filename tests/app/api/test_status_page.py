"""The status page: what it shows, and to whom it answers. Nothing in a name becomes markup."""

import asyncio
import re
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any
from urllib.parse import quote

import pytest
from httpx import AsyncClient

from app.api.app_state import AppState
from app.api.page.views import router
from app.bootstrap import application as application_of
from app.kube.reflector import CacheStatus, Phase
from app.schemas.state import GuardActivity, OutstandingState, PlacementGuardState
from app.settings import Settings
from scheduler_core.decide.extender_settings import Enforcement
from scheduler_core.decide.nudge_limits import WaitingPod
from scheduler_core.evaluation.contention import Contention
from scheduler_core.model.kube import Pod
from scheduler_core.monitor.demand_monitor import PlacementReport
from scheduler_core.offers.ledger import Ledger
from scheduler_core.predict.node_loss import NodeLossOutcome
from scheduler_core.structs import replace
from tests import builders as make
from tests.builders import Object
from tests.worlds.service import application, by_names, db_pod, http_client, lifecycle, small_cluster
from tests.worlds.web_page import Element, page_problems, read_page, rows

PAGES = ("/", "/pods", "/pods/default/db-0", "/nodes/node-1", "/decision-log")
HOSTILE = '"><img src=x onerror=alert(1)>'
SMALL = make.flat(small_cluster(), db_pod())


@asynccontextmanager
async def client_of(
    *objects: Object | Iterable[Object], sources: Mapping[str, object] | None = None, **state: object
) -> AsyncIterator[AsyncClient]:
    """A client of the service over some objects. Sources and parts of the state may be replaced."""
    app = application(*objects)
    services: AppState = app.state.services
    status = services.status
    assert status is not None
    services = replace(services, status=replace(status, **(sources or {})), **state)  # type: ignore[arg-type]
    async with http_client(application_of(services)) as client:
        yield client


async def get(path: str, *objects: Object | Iterable[Object], **parts: Any) -> str:
    """A page, which is well-formed and accessible."""
    async with client_of(*objects, **parts) as client:
        response = await client.get(path)
    assert response.status_code == 200, response.text
    assert page_problems(response.text) == []
    return response.text


async def page_of(path: str, *objects: Object | Iterable[Object], **parts: Any) -> Element:
    return read_page(await get(path, *objects, **parts))


def nodes(number: int, disks: int = 2) -> list[Object]:
    """Nodes of two zones, the last by name the fullest."""
    return [
        make.longhorn_node(
            f"worker-{index:04d}",
            {
                f"disk-{each}": make.disk(1000, scheduled=index / 2, available=900, reserved=100)
                for each in range(disks)
            },
            zone=("east", "west")[index % 2],
        )
        for index in range(number)
    ]


async def test_the_first_page_has_the_cluster_in_a_few_numbers() -> None:
    page = await page_of("/", SMALL, make.claim("huge", 500), make.pod("huge", name="huge-0"))
    (glance,) = [part for part in page.all("dl") if part.attributes["class"] == "tiles"]
    tiles = {tile.one("dt").text: tile.one("dd", class_="number").text for tile in glance.all("div")}
    assert tiles == {
        "Waiting pods": "2 (look at this)",
        "Stuck pods": "n/a",
        "Misplaced volumes": "n/a",
        "Largest volume that fits": "100Gi",
        "Nodes that can be lost": "n/a",
        "Free by the rules": "210Gi",
    }


async def test_waiting_pods_have_reason_closest_node_and_remedy() -> None:
    huge = [make.claim("huge", 500), make.pod("huge", name="huge-0", uid="u2")]
    async with client_of(SMALL, huge) as client:
        page = read_page(await eventually(client, "/pods", "grow disk"))
    reason = "insufficient Longhorn storage (4)"
    assert rows(page, "Waiting pods") == [
        ["default/db-0", "", "50Gi", "fits on 2 nodes of 4 now; waits for kube-scheduler", "", "none needed"],
        ["default/huge-0", "", "500Gi", reason, "node-1 lacks 400Gi on one disk", "grow disk node-1/disk-1 by 400Gi"],
    ]


async def test_waiting_pods_have_ages_and_numbers_in_names_count() -> None:
    times = {"wait-10": "2026-01-01T00:00:00Z", "wait-2": "2026-01-01T00:00:00Z", "wait-3": "2025-01-01T00:00:00Z"}
    pods = [make.pod("huge", name=name, uid=name) for name in times]
    for entry in pods:
        entry["metadata"]["creationTimestamp"] = times[entry["metadata"]["name"]]
    async with client_of(SMALL, make.claim("huge", 500), pods) as client:
        page = read_page(await eventually(client, "/pods?q=wait", "grow disk"))
    ages = {row[0]: row[1] for row in rows(page, "Waiting pods")}
    assert list(ages) == ["default/wait-3", "default/wait-2", "default/wait-10"]
    assert all(re.fullmatch("[0-9]+ d", age) for age in ages.values())


async def test_a_disk_over_its_limit_is_marked_in_the_table_too() -> None:
    page = read_page(await get("/nodes/bad", make.longhorn_node("bad", {"b": make.disk(100, scheduled=120)})))
    assert rows(page, "Disks")[0][4] == "120Gi over limit"
    assert page.all("svg", role="img")[0].attributes["aria-label"].endswith(", over the limit")


async def test_nodes_come_worst_first_with_their_disks() -> None:
    full = make.disk(100, scheduled=120)
    half = make.disk(200, scheduled=100, reserved=20, available=160)
    good = make.longhorn_node("good", {"a": half}, zone="east")
    page = await page_of("/", good, make.longhorn_node("bad", {"b": full, "c": half}))
    assert rows(page, "Nodes") == [
        ["bad", "▲ over limit 1 of 2 disks closed: disk b has no space left to schedule", "b over limit c 80Gi free",
         "220Gi of 280Gi", "", "80Gi 80Gi on one", "40Gi of 300Gi"],
        ["good east", "● open", "a 80Gi free", "100Gi of 180Gi", "", "80Gi", "40Gi of 200Gi"],
    ]  # fmt: skip
    labels = [bar.attributes["aria-label"] for bar in page.all("svg", role="img")]
    assert labels[1] == "c: 100Gi scheduled and 0 promised of 180Gi, 80Gi free; 40Gi written and 20Gi reserved of 200Gi"
    widths = [
        (rect.attributes["class"], rect.attributes["width"]) for rect in page.all("svg", role="img")[1].all("rect")
    ]
    assert widths == [("t", "100"), ("s", "55.6"), ("t", "100"), ("w", "20.0"), ("r", "10.0")]


async def test_fifty_nodes_are_on_a_page() -> None:
    async with client_of(nodes(120)) as client:
        first = read_page((await client.get("/")).text)
        last = read_page((await client.get("/?page=3")).text)
        beyond = read_page((await client.get("/?page=99")).text)
        found = read_page((await client.get("/?q=WORKER-00&page=2")).text)
    names = [row[0].split()[0] for row in rows(first, "Nodes")]
    assert names == [f"worker-{index:04d}" for index in range(119, 69, -1)]
    assert [row[0].split()[0] for row in rows(last, "Nodes")] == [f"worker-{index:04d}" for index in range(19, -1, -1)]
    assert rows(beyond, "Nodes") == rows(last, "Nodes")
    assert len(rows(found, "Nodes")) == 50
    pages = found.one("nav", aria_label="Pages of nodes")
    assert "51 to 100 of 100 nodes" in pages.text
    assert [link.attributes["href"] for link in pages.all("a")] == ["/?q=WORKER-00"]
    assert first.one("a", rel="next").attributes["href"] == "/?page=2"


async def test_nodes_are_grouped_by_zone() -> None:
    page = await page_of("/?group=zone&page=2", nodes(120))
    heads = [head.text for head in page.all("th", scope="rowgroup")]
    assert [head.split(",")[0] for head in heads] == ["zone east 60 nodes", "zone west 60 nodes"]
    assert len(rows(page, "Nodes")) == 50 + len(heads)
    assert page.one("a", rel="next").attributes["href"] == "/?group=zone&page=3"


async def test_one_zone_can_be_shown() -> None:
    page = await page_of("/?zone=west", nodes(4))
    assert [row[0] for row in rows(page, "Nodes")] == ["worker-0003 west", "worker-0001 west"]
    assert "show every zone" in [link.text for link in page.all("a", href="/")]


async def test_a_node_with_many_disks_shows_the_worst() -> None:
    async with client_of(nodes(50, disks=12)) as client:
        many = read_page((await client.get("/")).text)
        own = read_page((await client.get("/nodes/worker-0007")).text)
    assert [len(item.all("li")) for item in many.all("ul", class_="disks")] == [2] * 50
    assert "and 10 more disks" in many.text
    assert len(rows(own, "Disks")) == 12


async def test_a_pod_has_its_explanation() -> None:
    page = await page_of("/pods/default/db-0", SMALL)
    fits = ["node-1", "● yes", "has room for all local volumes", "", "data-db-0 on disk-1"]
    assert rows(page, "Why each node")[0] == fits
    assert rows(page, "Why each node")[2] == [
        "node-2", "○ no", "insufficient Longhorn storage", "10Gi",
        "data-db-0 needs 50Gi; disk disk-1 has 40Gi left to schedule",
    ]  # fmt: skip
    assert rows(page, "Volumes")[0][:3] == ["default/data-db-0", "not created yet", "50Gi"]
    assert "It fits on 2 nodes of 4." in page.text


async def test_an_explanation_is_paged_and_filtered() -> None:
    objects = [*nodes(120), make.storage_class(), make.claim("c", 5000), make.pod("c", name="p")]
    page = await page_of("/pods/default/p?page=3", objects)
    assert len(rows(page, "Why each node")) == 20
    assert "120 nodes: insufficient Longhorn storage" in page.text
    found = await page_of("/pods/default/p?q=0007+insufficient", objects)
    assert [row[0] for row in rows(found, "Why each node")] == ["worker-0007"]


async def test_the_reasons_of_a_page_are_those_of_the_whole_decision() -> None:
    homes = [make.replica("r", "vol-c", "worker-0000", size=10, disk="disk-0")]
    objects = [*nodes(60), make.storage_class(), *make.bound("c", 10), *homes, make.pod("c", name="p")]
    page = await page_of("/pods/default/p?page=2", objects)
    assert {row[2] for row in rows(page, "Why each node")} == {"volume replicas are on another node"}


async def test_a_cordoned_node_is_refused_by_kube_scheduler() -> None:
    cordoned = make.kube_node("node-1")
    cordoned["spec"] = {"unschedulable": True}
    others = [entry for entry in SMALL if not (entry["kind"] == "Node" and entry["apiVersion"] == "v1")]
    kube_nodes = [cordoned, *(make.kube_node(f"node-{number}") for number in (2, 3, 4))]
    page = await page_of("/pods/default/db-0", others, kube_nodes)
    assert rows(page, "Why each node")[-1] == ["node-1", "○ no", "node is unschedulable", "", ""]
    assert "It fits on 1 node of 4." in page.text


async def test_a_pod_that_cannot_be_decided_about_says_why() -> None:
    assert "absent" in (await page_of("/pods/default/pod", SMALL, make.pod("absent"))).text


async def test_a_running_pod_leads_to_its_node() -> None:
    page = await page_of("/pods/default/pod", SMALL, make.pod("data-db-0", node="node-3"))
    assert page.all("a", href="/nodes/node-3")
    assert "Where it could run" in [heading.text.split(" ●")[0] for heading in page.all("h2")]


@pytest.mark.parametrize("path", ["/pods/default/absent", "/pods/x/db-0", "/nodes/absent", "/nodes/absent/drain"])
async def test_what_does_not_exist_is_a_page_with_status_404(path: str) -> None:
    async with client_of(SMALL) as client:
        response = await client.get(path)
    assert (response.status_code, page_problems(response.text)) == (404, [])


@pytest.mark.parametrize(
    "query",
    ["page=0", "page=-1", "page=x", "page=1e3", "page=²", "page=99999999", "q=" + "x" * 101, "zone=" + "x" * 101,
     "group=rack", "color=red", "page=1&page=2", "page="],
)  # fmt: skip
@pytest.mark.parametrize("path", PAGES)
async def test_a_bad_query_is_refused(path: str, query: str) -> None:
    async with client_of(SMALL) as client:
        response = await client.get(f"{path}?{query}")
    assert response.status_code == 400
    assert response.json()["error"]


@pytest.mark.parametrize("path", PAGES)
@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH"])
async def test_pages_are_only_read(path: str, method: str) -> None:
    async with client_of(SMALL) as client:
        assert (await client.request(method, path)).status_code == 405


@pytest.mark.parametrize("path", [*PAGES, "/nodes/absent"])
async def test_pages_are_accessible_and_allow_nothing_but_their_own_files(path: str) -> None:
    async with client_of(SMALL) as client:
        response = await client.get(path)
    assert page_problems(response.text) == []
    headers = response.headers
    assert headers["content-type"] == "text/html; charset=utf-8"
    assert "unsafe" not in headers["content-security-policy"]
    assert headers["content-security-policy"].startswith("default-src 'none'; style-src 'self'; script-src 'self';")
    assert "frame-ancestors 'none'" in headers["content-security-policy"]
    assert (headers["cache-control"], headers["x-content-type-options"]) == ("no-store", "nosniff")
    assert (headers["referrer-policy"], headers["x-frame-options"]) == ("no-referrer", "DENY")


async def test_assets_are_kept_by_their_content() -> None:
    async with client_of(SMALL) as client:
        page = read_page((await client.get("/")).text)
        addresses = {
            element.attributes[name]
            for element in page
            for name in ("href", "src")
            if "/assets/" in element.attributes.get(name, "")
        }
        answers = {address: await client.get(address) for address in addresses}
        absent = [
            await client.get(path)
            for path in ("/assets/absent.css", "/assets/..%2Fviews.py", "/assets/%2e%2e/views.py")
        ]
    assert {address.partition("?")[0] for address in addresses} == {
        "/assets/icon.svg",
        "/assets/status.css",
        "/assets/status.js",
    }
    assert all("immutable" in answer.headers["cache-control"] for answer in answers.values())
    types = {answer.headers["content-type"].partition(";")[0] for answer in answers.values()}
    assert types == {"image/svg+xml", "text/css", "text/javascript"}
    assert [answer.status_code for answer in absent] == [404, 404, 404]


async def test_names_never_become_markup() -> None:
    hostile_node = make.longhorn_node(HOSTILE, {HOSTILE: make.disk(tags=[HOSTILE])}, zone=HOSTILE, tags=[HOSTILE])
    pod = make.pod(HOSTILE, name=HOSTILE, namespace="x", uid=HOSTILE)
    pod["status"]["conditions"] = [
        {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": HOSTILE}
    ]
    address = quote(HOSTILE)
    first = ("/", "/?group=zone", f"/?q={address}", f"/?zone={address}")
    others = ("/pods", f"/pods/x/{address}", f"/nodes/{address}", f"/nodes/{address}/drain", "/decision-log")
    paths = first + others
    async with client_of(hostile_node, make.storage_class(), pod) as client:
        await client.post("/filter", json=by_names(pod, [HOSTILE]))
        pages = [await client.get(path) for path in paths]
    for path, response in zip(paths, pages, strict=True):
        assert "<img src=x" not in response.text, path
        assert page_problems(response.text) == [], path
        assert "alert(1)" in response.text, path


async def test_decisions_are_listed_the_latest_first() -> None:
    async with client_of(SMALL) as client:
        for names in (["node-1", "node-2"], ["node-4"]):
            await client.post("/filter", json=by_names(db_pod(), names))
        everything = (await client.get("/decision-log")).text
        found = read_page((await client.get("/decision-log?q=fits")).text)
        pod = read_page((await client.get("/pods/default/db-0")).text)
    page = read_page(everything)
    assert page_problems(everything) == []
    assert [row[1:6] for row in rows(page, "Decisions")] == [
        ["default/db-0", "filter", "0 of 1", "", "insufficient Longhorn storage (1)"],
        ["default/db-0", "filter", "1 of 2", "node-1", "insufficient Longhorn storage (1)"],
    ]
    assert len(rows(found, "Decisions")) == 1
    assert len(rows(pod, "Decisions about this pod")) == 2


async def test_a_thousand_decisions_are_paged() -> None:
    async with client_of(SMALL) as client:
        for _ in range(60):
            await client.post("/filter", json=by_names(db_pod(), ["node-1"]))
        page = read_page((await client.get("/decision-log?page=2")).text)
    assert len(rows(page, "Decisions")) == 10


async def test_the_page_can_be_switched_off() -> None:
    app = application(SMALL, settings=Settings(status_page=False))
    async with http_client(app) as client:
        root = await client.get("/")
        others = [(await client.get(path)).status_code for path in PAGES[1:]]
    assert (root.status_code, root.headers["location"]) == (307, "/docs")
    assert set(others) == {404}


async def test_pages_are_no_part_of_the_api_description() -> None:
    async with client_of(SMALL) as client:
        described = (await client.get("/openapi.json")).json()["paths"]
    assert not {route.path for route in router.routes if hasattr(route, "path")} & described.keys()


async def test_no_view_of_a_large_cluster_exceeds_100_kb() -> None:
    waiting = [
        [make.claim(f"c-{index}", 5000), make.pod(f"c-{index}", name=f"p-{index}", uid=f"u-{index}")]
        for index in range(200)
    ]
    paths = ("/", "/?group=zone", "/?page=20", "/pods", "/pods/default/p-0", "/nodes/worker-0001")
    async with client_of(nodes(1000, disks=4), make.storage_class(), *waiting) as client:
        sizes = {path: len((await client.get(path)).content) for path in paths}
    assert {path: size for path, size in sizes.items() if not 1_000 < size < 100_000} == {}


def placement_report() -> PlacementReport:
    """A pod on node-1 whose only volume is on node-3. Longhorn placed it there a minute ago."""
    replica = make.replica("r", "vol-m", "node-3", size=10, healthy=False)
    claim = make.claim("m", 10, bound=True)
    volume = [claim, make.persistent_volume("m", uid="uid-m"), make.volume("vol-m", 10), replica]
    state = make.state(small_cluster(), volume, make.pod("m", name="m-0", node="node-1"))
    report = PlacementReport()
    for now in (0.0, 61.0):
        report = report.update(state, Contention(), Ledger(), now)
    return report


async def test_a_leader_shows_what_it_watches() -> None:
    outstanding = OutstandingState(
        report=placement_report(), waiting=[WaitingPod(Pod("default", "db-0", "uid-db-0"), 200.0, 1)]
    )
    stale = CacheStatus(phase=Phase.SYNCED, disconnected_at=-100.0, problem="no answer")
    sources = {
        "identity": "pod-1",
        "caches": lambda: {"nodes": stale},
        "now": lambda: datetime(2026, 11, 23, tzinfo=UTC),
    }
    async with client_of(SMALL, sources=sources, lifecycle=lifecycle(outstanding=outstanding)) as client:
        text = (await client.get("/")).text
        waiting = read_page((await client.get("/pods")).text)
    page = read_page(text)
    assert page_problems(text) == []
    assert "1 (act on this) default/m-0 on node-1" in page.text
    assert "vol-m, wanted on node-1" in page.text
    assert re.search(r"pod-1 answers ?; its caches may be \d+ \w+ behind · as of 2026-11-23 00:00:00 UTC", page.text)
    assert rows(page, "How far each cache")[0][0::3] == ["nodes", "no answer"]
    assert rows(waiting, "Waiting pods")[0][0] == "default/db-0 refused for 3 min"


async def test_a_follower_says_that_it_does_not_answer() -> None:
    fields: dict[str, Any] = {"answering": False, "refusal": "not the leader, pod-2 is", "leader": "pod-2"}
    text = await get("/", SMALL, lifecycle=lifecycle(**fields))
    assert "not the leader, pod-2 is." in read_page(text).text
    assert text.count("known to the leader of a live cluster") == len(["stuck", "misplaced", "lost"])


async def test_a_process_that_is_not_ready_shows_the_problem() -> None:
    async with client_of(SMALL, lifecycle=lifecycle("nodes not listed yet", answering=False)) as client:
        responses = [await client.get(path) for path in PAGES]
    assert {response.status_code for response in responses} == {503}
    assert all("nodes not listed yet" in response.text for response in responses)
    assert page_problems(responses[0].text) == []


async def test_settings_and_objects_that_cannot_be_read_are_named() -> None:
    fields: dict[str, Any] = {
        "refused_settings": ["x must be a number"],
        "unreadable": ["nodes: Node a"],
        "enforcement": Enforcement.OBSERVE,
    }
    text = (await page_of("/", SMALL, lifecycle=lifecycle(**fields))).text
    assert "Setting refused: x must be a number" in text
    assert "1 object cannot be read and left out: nodes: Node a" in text
    assert "Refusals are only counted and logged" in text


async def test_promised_space_that_was_taken_is_counted() -> None:
    activity = GuardActivity(outcomes={"promised-space-taken": 2})
    guard = PlacementGuardState("enforce", published=True, problem="no answer", activity=activity)
    text = (await page_of("/", SMALL, lifecycle=lifecycle(guard=guard))).text
    assert "Placement guard: no answer; promised space was taken 2 times" in text


async def test_the_loss_of_nodes_is_shown() -> None:
    outcomes = [
        NodeLossOutcome("node-1", orders=3, pods=0, volumes=0, problems={}),
        NodeLossOutcome("node-2", orders=3, pods=1, volumes=0, problems={"pod default/a-0 finds no node: x": 2}),
    ]
    losses = SimpleNamespace(latest={outcome.node: outcome for outcome in outcomes})
    async with client_of(small_cluster(), sources={"losses": losses}) as client:
        cluster = (await client.get("/")).text
        node = read_page((await client.get("/nodes/node-2")).text)
    page = read_page(cluster)
    assert page_problems(cluster) == []
    answers = {row[0]: row[-1] for row in rows(page, "Nodes")}
    assert answers == {"node-1": "yes", "node-2": "no", "node-3": "n/a", "node-4": "n/a"}
    assert (
        "Nodes that can be lost 1 of 2 (look at this) predicted for 2 of 4 nodes so far, the fullest first" in page.text
    )
    assert "no: pod default/a-0 finds no node: x" in node.text


@pytest.mark.parametrize(
    ("outcomes", "tile"),
    [
        pytest.param({}, "n/a not predicted yet", id="none"),
        pytest.param({"node-1": True}, "1 of 1 predicted for 1 of 4 nodes so far, the fullest first", id="the first"),
        pytest.param(
            {f"node-{number}": True for number in (1, 2, 3, 4)},
            "4 of 4 each on its own, without waiting pods or lost data",
            id="all",
        ),
        pytest.param(
            {"node-1": False, "gone": True}, "0 of 1 (look at this) predicted for 1 of 4", id="a node is gone"
        ),
    ],
)
async def test_losses_count_among_those_that_are_predicted(outcomes: Mapping[str, bool], tile: str) -> None:
    """So that a prediction that is not made yet is no node that cannot be lost."""
    losses = {
        name: NodeLossOutcome(name, orders=3, pods=0, volumes=0, problems={} if safe else {"x": 1})
        for name, safe in outcomes.items()
    }
    sources = {"losses": SimpleNamespace(latest=losses)}
    text = (await page_of("/", small_cluster(), sources=sources)).text
    assert f"Nodes that can be lost {tile}" in text


async def eventually(client: AsyncClient, path: str, text: str) -> str:
    """A page as soon as it has a text that takes time."""
    for _ in range(100):
        page = (await client.get(path)).text
        if text in page:
            return page
        await asyncio.sleep(0.05)
    raise AssertionError(f"{path} never has {text}")


async def test_a_pod_that_fits_nowhere_has_remedies() -> None:
    cordoned = make.longhorn_node("spare", 200, allow=False)
    waiting = [make.claim("large", 150), make.pod("large", name="large-0")]
    async with client_of(small_cluster(), cordoned, make.kube_node("spare"), waiting) as client:
        pod = await eventually(client, "/pods/default/large-0", "kubectl -n longhorn-system patch")
        await eventually(client, "/pods", "allow")
        waiting_list = read_page((await client.get("/pods")).text)
    assert page_problems(pod) == []
    first = read_page(pod).all("li")
    assert any("spare" in entry.text and "allowScheduling" in entry.text for entry in first)
    assert "spare" in rows(waiting_list, "Waiting pods")[0][-1]


@pytest.mark.parametrize(
    ("size", "answer", "placed"),
    [
        pytest.param(50, "Yes, as far as storage is concerned: the drain finishes, and every pod", "always", id="fits"),
        pytest.param(90, "Not as the cluster is now.", "never", id="fits nowhere else"),
    ],
)
async def test_a_drain_says_what_leaves(size: int, answer: str, placed: str) -> None:
    volume = [*make.bound("m", size), make.replica("r", "vol-m", "node-1", size=size)]
    runs = make.pod("m", name="m-0", node="node-1", phase="Running")
    runs["metadata"]["ownerReferences"] = [{"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "m", "uid": "u"}]
    async with client_of(small_cluster(), volume, runs) as client:
        text = await eventually(client, "/nodes/node-1/drain", "What leaves")
        idle = await eventually(client, "/nodes/node-4/drain", "What leaves")
    assert page_problems(text) == page_problems(idle) == []
    page = read_page(text)
    assert [row[:2] for row in rows(page, "Pods that leave")] == [["default/m-0", placed]]
    assert answer in page.text
    assert "Yes, as far as storage is concerned: the drain finishes" in read_page(idle).text
    assert "Not compared are CPU and memory, taints" in page.text
    assert "PodDisruptionBudgets of workloads" in page.text


@pytest.mark.parametrize(
    ("live", "command"),
    [
        pytest.param(True, "longhorn-extender what-if --drain node-1", id="live"),
        pytest.param(False, "longhorn-extender what-if --snapshot FILE --drain node-1", id="snapshot"),
    ],
)
async def test_a_drain_names_the_command_that_compares_everything(*, live: bool, command: str) -> None:
    state: dict[str, Any] = {"lifecycle": lifecycle()} if live else {}
    async with client_of(small_cluster(), **state) as client:
        page = read_page(await eventually(client, "/nodes/node-1/drain", "What leaves"))
    assert [entry.text for entry in page.all("pre")] == [command]


async def test_a_pod_without_a_controller_holds_up_a_drain() -> None:
    async with client_of(small_cluster(), make.pod("data-db-0", name="lone", node="node-1")) as client:
        text = await eventually(client, "/nodes/node-1/drain", "Answer")
        text = await eventually(client, "/nodes/node-1/drain", "has no controller")
    assert "pod default/lone has no controller" in read_page(text).text
