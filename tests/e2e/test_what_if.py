"""What `what-if` predicts then happens on a real control plane.

It is compared pod by pod and disk by disk.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from app.kube.client import ApiError
from app.kube.resources import CLAIMS, DISRUPTION_BUDGETS, LONGHORN_NODES, PODS
from devcluster.programs import NAMESPACE
from devcluster.stack import disk_statuses
from tests.e2e.objects import statefulset
from tests.e2e.rig import RECOMMENDED_MANAGED, Rig
from tests.worlds.service import EXTENDER

pytestmark = [pytest.mark.e2e, pytest.mark.xdist_group("what-if"), pytest.mark.timeout(300)]

APP = "foreseen"
GUARDED = "guarded"
CLAIM = "data-0-grown-0"
GI = 1024**3


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    """One cluster whose three nodes have room for ten volumes of 100Gi.

    Two of its pods run.
    """
    with Rig(tmp_path_factory.mktemp("what-if"), config=RECOMMENDED_MANAGED) as started:
        started.add_nodes(APP, {"foreseen-1": ["500Gi"], "foreseen-2": ["300Gi"], "foreseen-3": ["200Gi"]})
        started.create(statefulset(APP, group=APP, replicas=2))
        started.until("its pods run", lambda: started.ready(APP, 2), 60)
        yield started


def predict(rig: Rig, *verbs: str) -> Any:
    """The answer of the command about the live cluster."""
    command = [EXTENDER, "what-if", *verbs, "--kubeconfig", str(rig.cluster.kubeconfig), "-o", "json", "--orders", "50"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode in (0, 1), done.stderr) == (True, "")
    return json.loads(done.stdout)


def scheduled_bytes(rig: Rig) -> dict[tuple[str, str], int]:
    """What Longhorn's status says is scheduled on each disk."""
    return {
        (node["metadata"]["name"], name): disk.get("storageScheduled", 0)
        for node in rig.items(LONGHORN_NODES.path(NAMESPACE))
        for name, disk in disk_statuses(node).items()
    }


def assert_foreseen(rig: Rig, answer: Any, before: dict[tuple[str, str], int], app: str = APP) -> None:
    """Asserts that pods and disks are as they were foreseen.

    Every pod is where it was foreseen, and every disk as full.
    """
    nodes = rig.nodes_of(app)
    for entry in (entry for entry in answer["pods"] if entry["pod"].startswith(f"default/{app}-")):
        node = nodes[entry["pod"].partition("/")[2]]
        assert node in entry["nodes"] if node else entry["outcome"] != "always", entry
    after = scheduled_bytes(rig)
    foreseen = {(entry["node"], entry["disk"]): (entry["least"], entry["most"]) for entry in answer["disks"]}
    for disk, size in after.items():
        least, most = foreseen.get(disk, (before[disk], before[disk]))
        assert least <= size <= most, (disk, size, foreseen)


def is_settled(rig: Rig, count: int) -> bool:
    """Whether `count` pods run, and each volume has one local replica.

    Longhorn's status shows it.
    """
    replicas = rig.items(f"/apis/longhorn.io/v1beta2/namespaces/{NAMESPACE}/replicas")
    return (
        sum(pod["status"].get("phase") == "Running" for pod in rig.pods(APP)) == count == len(replicas)
        and rig.misplaced_pods(APP) == []
        and sum(scheduled_bytes(rig).values()) == count * 100 * GI
    )


def test_scaling_up_and_a_drain_go_as_foreseen(rig: Rig) -> None:
    """Eight pods fit, and those of a drained node move.

    Afterwards no node is left for four more.
    """
    before = scheduled_bytes(rig)
    scaled = predict(rig, "--scale", f"sts/{APP}=8")
    assert {entry["outcome"] for entry in scaled["pods"]} == {"always"}
    rig.cluster.kubectl("scale", "statefulset", APP, "--replicas=8")
    rig.until("eight pods run", lambda: is_settled(rig, 8), 60)
    assert_foreseen(rig, scaled, before)

    before = scheduled_bytes(rig)
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
    rig.until("the new pods are refused", lambda: count_refused(rig) == 2, 30)
    assert_foreseen(rig, full, scheduled_bytes(rig))


def count_refused(rig: Rig) -> int:
    """How many pods kube-scheduler has found no node for."""
    return sum(
        condition["type"] == "PodScheduled" and condition.get("reason") == "Unschedulable"
        for pod in rig.pods(APP)
        for condition in pod["status"].get("conditions") or ()
    )


def test_an_expansion_goes_as_foreseen(rig: Rig) -> None:
    """The disk is fuller by what was foreseen.

    An expansion beyond the disk is refused.
    """
    rig.add_nodes("grown", {"grown-1": ["300Gi"]})
    rig.create(statefulset("grown", group="grown", replicas=1))
    try:
        rig.until("its pod runs", lambda: rig.ready("grown", 1))
        rig.until("its volume is counted", lambda: on_node(scheduled_bytes(rig), "grown-1") == [100 * GI])
        assert [entry["fits"] for entry in predict(rig, "--expand", f"{CLAIM}=310Gi")["expansions"]] == [False]
        answer = predict(rig, "--expand", f"{CLAIM}=150Gi")
        foreseen = {(entry["node"], entry["disk"]): entry["most"] for entry in answer["disks"]}
        assert [entry["fits"] for entry in answer["expansions"]] == [True]
        request = {"spec": {"resources": {"requests": {"storage": "150Gi"}}}}
        rig.cluster.api.patch(CLAIMS.path("default", CLAIM), request)
        rig.until(
            "it has grown",
            lambda: on_node(scheduled_bytes(rig), "grown-1") == on_node(foreseen, "grown-1") == [150 * GI],
            30,
        )
    finally:
        rig.remove("grown")


@pytest.fixture
def budget_pods(rig: Rig) -> Iterator[None]:
    """Three pods with a PodDisruptionBudget, and another node with room.

    The pods run on one node.
    """
    rig.add_nodes(GUARDED, {"guarded-1": ["400Gi"]})
    rig.create(statefulset(GUARDED, group=GUARDED, replicas=3), disruption_budget(GUARDED, 1))
    rig.until("its pods run", lambda: rig.ready(GUARDED, 3), 60)
    rig.add_nodes(GUARDED, {"guarded-2": ["400Gi"]})
    rig.until("their volumes are counted", lambda: on_node(scheduled_bytes(rig), "guarded-1") == [300 * GI], 30)
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
    """The budget's allowed evictions, and its number of healthy pods."""
    status = rig.cluster.api.get(DISRUPTION_BUDGETS.path("default", GUARDED)).get("status", {})
    return status.get("disruptionsAllowed", 0), status.get("currentHealthy", 0)


def evict(rig: Rig, pod: str) -> ApiError:
    """The API server's refusal to evict a pod."""
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod, "namespace": "default"}}
    with pytest.raises(ApiError) as refusal:
        rig.cluster.api.create(PODS.path("default", pod, "eviction"), eviction)
    return refusal.value


def test_a_drain_under_a_disruption_budget_goes_as_foreseen(rig: Rig, budget_pods: None) -> None:
    """One pod after the other leaves the node.

    Then budgets that refuse an eviction are foreseen to hold up the drain.
    """
    before = scheduled_bytes(rig)
    answer = predict(rig, "--drain", "guarded-1")
    assert [entry["outcome"] for entry in answer["drains"]] == ["always"]
    waiting = [step["waiting"] for step in answer["shownOrder"]["steps"]]
    assert max(waiting) - waiting[0] == 1  # pods of other tests may wait
    with ThreadPoolExecutor(1) as pool:
        drain = pool.submit(
            rig.cluster.kubectl, "drain", "guarded-1", "--ignore-daemonsets", "--timeout=100s", seconds=120
        )
        running = [count_running(rig)]
        while not drain.done():
            running.append(count_running(rig))
        drain.result()
    assert min(running) == 2
    rig.until("they run elsewhere", lambda: on_node(scheduled_bytes(rig), "guarded-2") == [300 * GI], 60)
    rig.until("the old replicas are gone", lambda: on_node(scheduled_bytes(rig), "guarded-1") == [0], 60)
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
        "deletionTimestamp" not in pod["metadata"]
        and any(
            condition["type"] == "Ready" and condition["status"] == "True"
            for condition in pod["status"].get("conditions") or ()
        )
        for pod in rig.pods(GUARDED)
    )


def on_node(sizes: dict[tuple[str, str], int], name: str) -> list[int]:
    """The sizes of one node's disks."""
    return [size for (node, _), size in sizes.items() if node == name]
