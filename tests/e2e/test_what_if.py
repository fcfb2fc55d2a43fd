"""What planning and the status page say then happens. It is compared on a real control plane, pod by pod and disk by disk."""

import html
import json
import re
import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from app.kube import resources
from app.kube.client import ApiError
from devcluster.programs import NAMESPACE
from scheduler_core.model.quantity import parse_bytes
from tests import builders
from tests.builders import GI
from tests.control_plane import ControlPlane
from tests.e2e.objects import condition_of, name_of, node_of, runs, statefulset
from tests.e2e.rig import Rig, run_extender
from tests.e2e.waiting_pods import (
    GROUP,
    MOVED,
    SHIFTED,
    WAITING_PODS,
    WaitingPod,
    change_disk,
    movable_volume,
    refuse_pods,
    small_pod,
    storage_classes,
)

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

APP = "foreseen"
GUARDED = "guarded"
SHOWN = "shown"
SHARDED = "sharded"
ZONAL = "zonal"
ZONE = "topology.kubernetes.io/zone"
CLAIM = "data-0-grown-0"
# The nodes of the volumes whose replicas are moved, with a number each.
FULL_NODES = ((MOVED, 1), (MOVED, 2), (MOVED, 3), (SHIFTED, 1), (SHIFTED, 2))


@pytest.fixture(scope="module")
def rig(control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    """One cluster whose three nodes have room for ten volumes of 100Gi. Two of its pods run."""
    with Rig(tmp_path_factory.mktemp("what-if"), control_plane) as started:
        started.add_nodes(APP, {"foreseen-1": ["500Gi"], "foreseen-2": ["300Gi"], "foreseen-3": ["200Gi"]})
        started.create(statefulset(APP, group=APP, replicas=2))
        started.until("its pods run", lambda: started.ready(APP, 2), 60)
        yield started


def predict(rig: Rig, *verbs: str) -> Any:
    """The answer of `what-if` about the live cluster."""
    return json.loads(run_extender(rig.cluster, "what-if", *verbs, "-o", "json", "--orders", "50"))


def outcomes(answer: Any, app: str) -> list[str]:
    """What is foreseen for the pods of one app; those of other tests may wait."""
    return [entry["outcome"] for entry in answer["pods"] if entry["pod"].startswith(f"default/{app}-")]


def assert_foreseen(rig: Rig, answer: Any, before: dict[tuple[str, str], int], app: str = APP) -> None:
    """Asserts that pods and disks are as they were foreseen. Every pod is where it was foreseen, and every disk as full."""
    nodes = rig.nodes_of(app)
    for entry in (entry for entry in answer["pods"] if entry["pod"].startswith(f"default/{app}-")):
        node = nodes[entry["pod"].partition("/")[2]]
        assert node in entry["nodes"] if node else entry["outcome"] != "always", entry
    after = rig.scheduled_bytes()
    foreseen = {(entry["node"], entry["disk"]): (entry["least"], entry["most"]) for entry in answer["disks"]}
    for disk, size in after.items():
        least, most = foreseen.get(disk, (before[disk], before[disk]))
        assert least <= size <= most, (disk, size, foreseen)


def is_settled(rig: Rig, count: int) -> bool:
    """Whether `count` pods run, and each volume has one local replica. Longhorn's status shows it."""
    return (
        sum(map(runs, rig.pods(APP))) == count == len(rig.longhorn(resources.LONGHORN_REPLICAS))
        and rig.misplaced_pods(APP) == []
        and sum(rig.scheduled_bytes().values()) == count * 100 * GI
    )


def test_scaling_up_and_a_drain_go_as_foreseen(rig: Rig) -> None:
    """Eight pods fit, and those of a drained node move. Afterwards no node is left for four more."""
    before = rig.scheduled_bytes()
    scaled = predict(rig, "--scale", f"sts/{APP}=8")
    assert {entry["outcome"] for entry in scaled["pods"]} == {"always"}
    rig.cluster.kubectl("scale", "statefulset", APP, "--replicas=8")
    rig.until("eight pods run", lambda: is_settled(rig, 8), 60)
    assert_foreseen(rig, scaled, before)

    before = rig.scheduled_bytes()
    drained = predict(rig, "--drain", "foreseen-3")
    assert [entry["outcome"] for entry in drained["drains"]] == ["always"]
    moved = {entry["pod"].partition("/")[2] for entry in drained["pods"]}
    assert moved == {name for name, node in rig.nodes_of(APP).items() if node == "foreseen-3"}
    rig.cluster.kubectl("drain", "foreseen-3", "--ignore-daemonsets", "--timeout=60s")
    rig.until("they run elsewhere", lambda: is_settled(rig, 8), 60)
    assert_foreseen(rig, drained, before)

    full = predict(rig, "--scale", f"sts/{APP}=10")
    assert [entry["outcome"] for entry in full["pods"]] == ["never", "never"]
    rig.cluster.kubectl("scale", "statefulset", APP, "--replicas=10")
    rig.until("the new pods are refused", lambda: len(rig.refused_pods(APP)) == 2, 30)
    assert_foreseen(rig, full, rig.scheduled_bytes())


@pytest.mark.smoke
def test_an_expansion_goes_as_foreseen(rig: Rig) -> None:
    """The disk is fuller by what was foreseen. An expansion beyond the disk is refused."""
    rig.add_nodes("grown", {"grown-1": ["300Gi"]})
    rig.create(statefulset("grown", group="grown", replicas=1))
    try:
        rig.until("its pod runs", lambda: rig.ready("grown", 1))
        rig.until("its volume is counted", lambda: on_node(rig.scheduled_bytes(), "grown-1") == [100 * GI])
        assert [entry["fits"] for entry in predict(rig, "--expand", f"{CLAIM}=310Gi")["expansions"]] == [False]
        answer = predict(rig, "--expand", f"{CLAIM}=150Gi")
        foreseen = {(entry["node"], entry["disk"]): entry["most"] for entry in answer["disks"]}
        assert [entry["fits"] for entry in answer["expansions"]] == [True]
        request = {"spec": {"resources": {"requests": {"storage": "150Gi"}}}}
        rig.cluster.api.patch(resources.CLAIMS.path("default", CLAIM), request)
        rig.until(
            "it has grown",
            lambda: on_node(rig.scheduled_bytes(), "grown-1") == on_node(foreseen, "grown-1") == [150 * GI],
            30,
        )
    finally:
        rig.remove("grown")


@pytest.fixture
def sharded_pod(rig: Rig) -> Iterator[None]:
    """A pod with a volume of 60Gi in 2 data shards and a parity shard, and four nodes whose v2 disks have room for two shards each."""
    disk = {"size": "70Gi", "type": "block"}
    rig.add_nodes(SHARDED, {f"{SHARDED}-{number}": [disk] for number in range(1, 5)})
    rig.create(sharded_class(), statefulset(SHARDED, group=SHARDED, replicas=1, storage_class=SHARDED, size="60Gi"))
    rig.until("its pod runs", lambda: rig.ready(SHARDED, 1))
    rig.until("its shards are counted", lambda: count_parts(rig, SHARDED, 30) == 3)
    try:
        yield
    finally:
        rig.remove(SHARDED)
        rig.cluster.api.delete(resources.STORAGE_CLASSES.path(name=SHARDED))


def sharded_class() -> Any:
    """A StorageClass of sharded volumes; its data locality says nothing to Longhorn."""
    layout = {"type": "sharded", "mode": "erasureCoding", "dataChunks": "2", "parityChunks": "1", "stripSizeKB": "64"}
    parameters = {"dataEngine": "v2", "dataLocality": "best-effort"}
    parameters |= {f"dataLayout.{key}": value for key, value in layout.items()}
    return {**builders.storage_class(SHARDED), "parameters": parameters}


def count_parts(rig: Rig, group: str, size: int) -> int:
    """How many parts of some Gi, with their metadata, Longhorn's status counts on the disks of a group of nodes."""
    return sum(used // (size * GI) for (node, _), used in rig.scheduled_bytes().items() if node.startswith(group))


@pytest.mark.usefixtures("sharded_pod")
def test_sharded_volumes_go_as_foreseen(rig: Rig) -> None:
    """A second pod runs wherever the first one's shards are, and a third finds room for two shards at most."""
    before = rig.scheduled_bytes()
    second = predict(rig, "--scale", f"sts/{SHARDED}=2")
    assert outcomes(second, SHARDED) == ["always"]
    rig.cluster.kubectl("scale", "statefulset", SHARDED, "--replicas=2")
    rig.until("two pods run", lambda: rig.ready(SHARDED, 2))
    rig.until("their shards are counted", lambda: count_parts(rig, SHARDED, 30) == 6)
    assert_foreseen(rig, second, before, SHARDED)
    on_disks = Counter(shard["spec"]["nodeID"] for shard in rig.longhorn(resources.LONGHORN_SHARDS))
    assert (sum(on_disks.values()), max(on_disks.values())) == (6, 2)

    third = predict(rig, "--scale", f"sts/{SHARDED}=3")
    assert outcomes(third, SHARDED) == ["never"]
    rig.cluster.kubectl("scale", "statefulset", SHARDED, "--replicas=3")
    rig.until("the third pod is refused", lambda: len(rig.refused_pods(SHARDED)) == 1)
    rig.cluster.kubectl("scale", "statefulset", SHARDED, "--replicas=2")
    rig.cluster.kubectl("delete", "pod", f"{SHARDED}-0")
    rig.until("a pod with an existing volume runs again", lambda: rig.ready(SHARDED, 2))
    assert count_parts(rig, SHARDED, 30) == 6


@pytest.fixture
def zonal_pod(rig: Rig) -> Iterator[None]:
    """A pod with a volume of 100Gi that is tied to a zone, and two zones of a node each with room for two and for one of them."""
    rig.add_nodes(ZONAL, {f"{ZONAL}-1": ["220Gi"], f"{ZONAL}-2": ["120Gi"]})
    for number in (1, 2):
        rig.cluster.kubectl("label", "node", f"{ZONAL}-{number}", f"{ZONE}=z{number}")
    setting = resources.LONGHORN_SETTINGS.path(NAMESPACE, "csi-allowed-topology-keys")
    rig.cluster.api.patch(setting, {"value": ZONE})
    rig.until("Longhorn knows the zones", lambda: {"z1", "z2"} <= set(zones_of(rig).values()))
    storage_class = builders.storage_class(ZONAL, dataLocality="disabled", volumeTopology="zonal")
    rig.create(storage_class, statefulset(ZONAL, group=ZONAL, replicas=1, storage_class=ZONAL))
    rig.until("its pod runs", lambda: rig.ready(ZONAL, 1))
    rig.until("its volume is counted", lambda: count_parts(rig, ZONAL, 100) == 1)
    try:
        yield
    finally:
        rig.remove(ZONAL)
        rig.cluster.api.delete(resources.STORAGE_CLASSES.path(name=ZONAL))
        rig.cluster.api.patch(setting, {"value": ""})


def zones_of(rig: Rig) -> dict[str, str]:
    """The zone of each of Longhorn's nodes."""
    return {name_of(node): node["status"]["zone"] for node in rig.longhorn(resources.LONGHORN_NODES)}


@pytest.mark.usefixtures("zonal_pod")
def test_zonal_volumes_and_their_clones_go_as_foreseen(rig: Rig, tmp_path: Path) -> None:
    """A volume is in its pod's zone, and so is a clone; where no zone has room, the pod waits."""
    clone = statefulset(ZONAL, group=ZONAL, replicas=1, storage_class=ZONAL)
    (claim,) = clone["spec"]["volumeClaimTemplates"]
    source = {"kind": "PersistentVolumeClaim", "name": f"{claim['metadata']['name']}-{ZONAL}-0"}
    claim["spec"]["dataSource"] = source
    clone["metadata"]["name"] = f"{ZONAL}-copy"
    file = tmp_path / "clone.json"
    file.write_text(json.dumps(clone))
    foreseen = predict(rig, "--apply", str(file))
    assert outcomes(foreseen, ZONAL) == ["always"]
    rig.create(clone)
    rig.until("the clone's pod runs", lambda: rig.ready(ZONAL, 2))
    rig.until("both volumes are counted", lambda: count_parts(rig, ZONAL, 100) == 2)
    sources = [volume["spec"].get("dataSource", "") for volume in rig.longhorn(resources.LONGHORN_VOLUMES)]
    assert len([source for source in sources if source.startswith("vol://")]) == 1
    zones = zones_of(rig)
    for replica in rig.longhorn(resources.LONGHORN_REPLICAS):
        if zone := zones.get(replica["spec"]["nodeID"]):
            volume = rig.cluster.api.get(resources.LONGHORN_VOLUMES.path(NAMESPACE, replica["spec"]["volumeName"]))
            assert zone == zones[volume["spec"]["nodeID"]]

    before = rig.scheduled_bytes()
    scaled = predict(rig, "--scale", f"sts/{ZONAL}=2")
    assert outcomes(scaled, ZONAL) == ["always"]
    rig.cluster.kubectl("scale", "statefulset", ZONAL, "--replicas=2")
    rig.until("three pods run", lambda: rig.ready(ZONAL, 3))
    rig.until("their volumes are counted", lambda: count_parts(rig, ZONAL, 100) == 3)
    assert_foreseen(rig, scaled, before, ZONAL)
    assert outcomes(predict(rig, "--scale", f"sts/{ZONAL}=3"), ZONAL) == ["never"]
    rig.cluster.kubectl("scale", "statefulset", ZONAL, "--replicas=3")
    rig.until("the fourth pod is refused", lambda: len(rig.refused_pods(ZONAL)) == 1)


@pytest.fixture
def budget_pods(rig: Rig) -> Iterator[None]:
    """Three pods with a PodDisruptionBudget, and another node with room. The pods run on one node."""
    rig.add_nodes(GUARDED, {"guarded-1": ["400Gi"]})
    rig.create(statefulset(GUARDED, group=GUARDED, replicas=3), disruption_budget(GUARDED, 1))
    rig.until("its pods run", lambda: rig.ready(GUARDED, 3), 60)
    rig.add_nodes(GUARDED, {"guarded-2": ["400Gi"]})
    rig.until("their volumes are counted", lambda: on_node(rig.scheduled_bytes(), "guarded-1") == [300 * GI], 30)
    rig.until("the budget is counted", lambda: budget_status(rig) == (1, 3), 30)
    try:
        yield
    finally:
        rig.cluster.kubectl("delete", "poddisruptionbudgets", "--all", "-n", "default")
        rig.cluster.kubectl("uncordon", "guarded-1", "guarded-2")
        rig.remove(GUARDED)


def disruption_budget(name: str, max_unavailable: int) -> Any:
    """A PodDisruptionBudget of the app `guarded`."""
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"maxUnavailable": max_unavailable, "selector": {"matchLabels": {"app": GUARDED}}},
    }


def budget_status(rig: Rig) -> tuple[int, int]:
    status = rig.cluster.api.get(resources.DISRUPTION_BUDGETS.path("default", GUARDED)).get("status", {})
    return status.get("disruptionsAllowed", 0), status.get("currentHealthy", 0)


def evict(rig: Rig, pod: str) -> ApiError:
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod, "namespace": "default"}}
    with pytest.raises(ApiError) as refusal:
        rig.cluster.api.create(resources.PODS.path("default", pod, "eviction"), eviction)
    return refusal.value


@pytest.mark.timeout(600)
def test_a_drain_under_a_disruption_budget_goes_as_foreseen(rig: Rig, budget_pods: None) -> None:
    """One pod after the other leaves the node. Then budgets that refuse an eviction are foreseen to hold up the drain."""
    before = rig.scheduled_bytes()
    answer = predict(rig, "--drain", "guarded-1")
    assert [entry["outcome"] for entry in answer["drains"]] == ["always"]
    waiting = [step["waiting"] for step in answer["shownOrder"]["steps"]]
    assert max(waiting) - waiting[0] == 1  # pods of other tests may wait
    # A pod that has its name again before Kubernetes' disruption controller looks counts as evicted for two minutes (DeletionTimeout).
    with ThreadPoolExecutor(1) as pool:
        drain = pool.submit(
            rig.cluster.kubectl, "drain", "guarded-1", "--ignore-daemonsets", "--timeout=400s", seconds=420
        )
        running = [count_running(rig)]
        while not drain.done():
            running.append(count_running(rig))
        drain.result()
    assert min(running) == 2
    rig.until("they run elsewhere", lambda: on_node(rig.scheduled_bytes(), "guarded-2") == [300 * GI], 60)
    rig.until("the old replicas are gone", lambda: on_node(rig.scheduled_bytes(), "guarded-1") == [0], 60)
    assert_foreseen(rig, answer, before, GUARDED)

    rig.cluster.kubectl("uncordon", "guarded-1")
    rig.create(disruption_budget(GUARDED, 0))
    rig.until("the budget is counted again", lambda: budget_status(rig) == (0, 3), 30)
    (held_up,) = predict(rig, "--drain", "guarded-2")["drains"]
    needs = f"PodDisruptionBudget default/{GUARDED} needs 3 healthy pods and has 3"
    assert list(held_up["blockers"]) == [f"pod default/{GUARDED}-{n} stays on guarded-2: {needs}" for n in range(3)]
    refusal = evict(rig, f"{GUARDED}-0")
    assert (refusal.status, "would violate the pod's disruption budget" in str(refusal)) == (429, True)

    rig.create(disruption_budget("second", 3))
    (held_up,) = predict(rig, "--drain", "guarded-2")["drains"]
    assert all("evicts no pod with more than one" in text for text in held_up["blockers"])
    assert "more than one PodDisruptionBudget" in str(evict(rig, f"{GUARDED}-0"))
    assert count_running(rig) == 3


def count_running(rig: Rig) -> int:
    """How many pods of the app `guarded` are ready and stay."""
    return sum(
        "deletionTimestamp" not in pod["metadata"] and condition_of(pod, "Ready").get("status") == "True"
        for pod in rig.pods(GUARDED)
    )


def on_node(sizes: dict[tuple[str, str], int], name: str) -> list[int]:
    return [size for (node, _), size in sizes.items() if node == name]


@pytest.fixture
def mended(rig: Rig) -> Iterator[None]:
    """Nodes that refuse their pods; the pods and the StorageClasses are gone afterwards."""
    disks: dict[str, Mapping[str, Any]] = {entry.name: entry.disk for entry in WAITING_PODS}
    disks |= {f"{name}-{number}": {"size": "200Gi", "tags": [name]} for name, number in FULL_NODES}
    rig.add_nodes(GROUP, {name: [disk] for name, disk in disks.items()})
    classes = storage_classes()
    rig.create(*classes)
    try:
        yield
    finally:
        apps = {pod["metadata"]["labels"]["app"] for pod in suite_pods(rig)}
        rig.remove(*apps)
        for entry in classes:
            rig.cluster.api.delete(resources.STORAGE_CLASSES.path(name=entry["metadata"]["name"]))


def suite_pods(rig: Rig) -> list[Any]:
    return rig.items(f"{resources.PODS.path('default')}?labelSelector=suite%3D{GROUP}")


def unscheduled(rig: Rig) -> set[str]:
    """The apps of the pods of these nodes that kube-scheduler has found no node for."""
    return {
        pod["metadata"]["labels"]["app"]
        for pod in suite_pods(rig)
        if not node_of(pod) and condition_of(pod, "PodScheduled").get("reason") == "Unschedulable"
    }


def replica_nodes(rig: Rig, app: str) -> set[str]:
    """The nodes of the healthy replicas of the volume of an app's pod."""
    claim = rig.cluster.api.get(resources.CLAIMS.path("default", f"data-0-{app}-0"))
    volume = claim["spec"]["volumeName"]
    return {
        replica["spec"]["nodeID"]
        for replica in rig.longhorn(resources.LONGHORN_REPLICAS)
        if replica["spec"]["volumeName"] == volume and replica["spec"].get("healthyAt")
    }


def run_printed(rig: Rig, commands: Sequence[str]) -> None:
    """Runs printed commands, each as soon as the one before has succeeded."""
    for command in commands:
        program, *arguments = shlex.split(command)
        assert program == "kubectl"
        rig.cluster.kubectl(*arguments, seconds=150)


def apply_remedy(rig: Rig, entry: WaitingPod, answer: Any) -> None:
    """Makes the steps of the first remedy of the expected kind; what has no command is done to the simulated disk."""
    remedy = next(each for each in answer["remedies"] if each["kind"] == entry.remedy)
    for step in remedy["steps"]:
        match step["kind"]:
            case "free-scheduled":
                assert step["size"] == parse_bytes(entry.present[0])
                rig.remove(entry.present_apps()[0])
            case "free-available":
                change_disk(rig, entry.name, "used", -step["size"])
            case "grow-disk":
                change_disk(rig, entry.name, "size", step["size"])
            case _:
                assert step["commands"]
        run_printed(rig, step["commands"])


@pytest.mark.usefixtures("mended")
def test_printed_changes_make_waiting_pods_run(rig: Rig) -> None:
    """Every kind of remedy, and a move of `rebalance`: before it the pod waits, after it the pod runs with its replica on its node."""
    refuse_pods(rig)
    present = [each for entry in WAITING_PODS for each in entry.present_objects()]
    rig.create(*present, *movable_volume(MOVED, f"{MOVED}-1"), *movable_volume(SHIFTED, f"{SHIFTED}-1"))
    rig.until("they run", lambda: all(map(runs, suite_pods(rig))), 60)
    rig.until("the moved volume is complete", lambda: len(replica_nodes(rig, f"{MOVED}-has")) == 2)
    (remote,) = replica_nodes(rig, f"{MOVED}-has") - {f"{MOVED}-1"}
    (shifted,) = replica_nodes(rig, f"{SHIFTED}-has")
    entries = (WaitingPod(remote, "move-replica"), *WAITING_PODS)
    rig.create(*(each for entry in entries for each in entry.objects()), *small_pod("shifted", shifted))
    apps = {entry.name for entry in entries} | {"shifted"}
    rig.until("all are refused", lambda: unscheduled(rig) == apps, 60)

    with ThreadPoolExecutor(2) as pool:
        answers = pool.map(lambda entry: run_extender(rig.cluster, "remedies", entry.pod, "-o", "json"), entries)
        for entry, answer in zip(entries, answers, strict=True):
            assert entry.name in unscheduled(rig)
            apply_remedy(rig, entry, json.loads(answer))
    rig.until("they run", lambda: unscheduled(rig) == {"shifted"} and all_run(rig, apps - {"shifted"}), 60)
    assert replica_nodes(rig, f"{MOVED}-has") == {f"{MOVED}-{number}" for number in (1, 2, 3)} - {remote}

    plan = run_extender(rig.cluster, "rebalance", "--goal", "waiting-pods")
    run_printed(rig, [line for line in plan.splitlines() if line.startswith("kubectl ")])
    rig.until("the last pod runs", lambda: all_run(rig, apps), 60)
    assert replica_nodes(rig, f"{SHIFTED}-has") == {f"{SHIFTED}-1", f"{SHIFTED}-2"} - {shifted}


def all_run(rig: Rig, apps: Iterable[str]) -> bool:
    return all(rig.ready(app, 1) and not rig.misplaced_pods(app) for app in apps)


@pytest.fixture
def shown(rig: Rig) -> Iterator[None]:
    """A pod with 900Gi on a node, and another node that is too small for it."""
    rig.add_nodes(SHOWN, {"shown-1": ["1Ti"], "shown-2": ["100Gi"]})
    rig.create(statefulset(SHOWN, group=SHOWN, replicas=1, size="900Gi"))
    rig.until("its pod runs", lambda: rig.ready(SHOWN, 1))
    try:
        yield
    finally:
        rig.cluster.kubectl("uncordon", "shown-1")
        rig.remove(SHOWN)


def page_text(rig: Rig, candidate: str, path: str) -> str:
    """The text of a page of the status page, without tags and with single spaces."""
    status, page = rig.request(candidate, path)
    assert status == 200, (path, status, page)
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", page)).split())


@pytest.mark.usefixtures("shown")
def test_the_status_page_shows_what_happens(rig: Rig) -> None:
    """The leader's pages about kube-scheduler's decision, a drain, and the pod that then waits; a follower names the leader."""
    leader = rig.leader()
    log = page_text(rig, leader, f"/decision-log?q={SHOWN}-0")
    assert f"UTC default/{SHOWN}-0 filter 1 of 1 shown-1 " in log
    rig.until("the volume is counted", lambda: "900Gi of 1Ti" in page_text(rig, leader, "/nodes/shown-1"))
    drain = rig.until("the drain is predicted", lambda: answered(page_text(rig, leader, "/nodes/shown-1/drain")))
    assert f"Pod default/{SHOWN}-0 finds no node in 5 of 5 orders." in drain
    other_drain = rig.until(
        "another drain is predicted", lambda: answered(page_text(rig, leader, "/nodes/shown-2/drain"))
    )
    assert "No pod leaves." in other_drain

    rig.cluster.kubectl("drain", "shown-1", "--ignore-daemonsets", "--timeout=60s")
    row = re.compile(
        rf"default/{SHOWN}-0 refused for .{{1,12}} \d+ (?:s|min) 900Gi [^.]{{0,80}}insufficient Longhorn storage \(\d+\)"
    )
    rig.until("the first page shows the pod", lambda: row.search(page_text(rig, leader, "/")))
    rig.until("the list shows the pod", lambda: row.search(page_text(rig, leader, "/pods")))
    assert re.search(rf"{leader}_\w+ answers; ", page_text(rig, leader, "/"))
    pod_path = f"/pods/default/{SHOWN}-0"
    rig.until("its page shows why", lambda: refusal_text(rig) in page_text(rig, leader, pod_path), 30)
    pod = page_text(rig, leader, pod_path)
    assert "fits nowhere" in pod
    assert "filter 0 of 1 insufficient Longhorn storage (1)" in pod

    follower = rig.start_candidate("follower")
    try:
        text = rig.until("the follower knows the leader", lambda: follower_text(rig))
        assert f" follower does not answer kube-scheduler; the leader is {leader}_" in text
        assert f"default/{SHOWN}-0" in text
        assert "kube-scheduler has not asked this process yet." in page_text(rig, "follower", "/decision-log")
    finally:
        follower.stop()


def answered(text: str) -> str:
    """The text of a page, "" while its answer is worked out."""
    return "" if "It is being worked out." in text else text


def follower_text(rig: Rig) -> str:
    """The text of the follower's first page, "" before it has read the cluster and the Lease."""
    status, _ = rig.request("follower", "/")
    text = page_text(rig, "follower", "/") if status == 200 else ""
    return "" if "the leader is unknown" in text else text


def refusal_text(rig: Rig) -> str:
    """What the page of the pod shows of kube-scheduler's refusal."""
    message = rig.until("kube-scheduler finds no node", lambda: rig.scheduling_problem(SHOWN), 30)
    return f"Unschedulable: {' '.join(message.split())}"
