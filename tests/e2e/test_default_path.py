"""The documented way with the real kube-scheduler: workloads without any change, asked for by a policy."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from app.kube.resources import PODS
from devcluster.components import API_SERVER
from devcluster.scheduler_config import DEFAULT
from tests.e2e.objects import PAUSE, Object, Volume, Workload
from tests.e2e.rig import RECOMMENDED_MANAGED, Rig
from tests.manifests.ask_policy import (
    ASK,
    OVERLAYS,
    SCHEDULER_NAME,
    api_server_arguments,
    asking_containers,
    overlay_for_this_version,
    pod,
)

pytestmark = [pytest.mark.e2e, pytest.mark.xdist_group("default-path"), pytest.mark.timeout(600)]
SECOND = OVERLAYS / "second-scheduler/config/kube-scheduler.yaml"
GROUP = "default-path"
ROOMY = "roomy"


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    """A node on which two volumes of 100Gi fit, and three idle ones on which one fits."""
    folder = tmp_path_factory.mktemp("default-path")
    extra = {API_SERVER: api_server_arguments()}
    with Rig(folder, config=RECOMMENDED_MANAGED, extra_args=extra) as running:
        running.add_nodes(GROUP, {ROOMY: ["1000Gi"], **{f"small-{number}": ["150Gi"] for number in range(3)}})
        running.load(ROOMY, 0.6)  # so kube-scheduler prefers the others
        yield running


def admitted(rig: Rig) -> dict[str, Any]:
    """A pod with a claim as it would be stored now."""
    answer: dict[str, Any] = rig.cluster.api.create(f"{PODS.path('default')}?dryRun=All", pod())
    return answer


@pytest.fixture
def ask_policy(rig: Rig) -> Iterator[None]:
    """The policy by which pods with claims ask, in effect."""
    path = overlay_for_this_version(ASK)
    rig.use_config(RECOMMENDED_MANAGED)
    rig.cluster.kubectl("apply", "--server-side", "-k", path)
    rig.until("the policy", lambda: asking_containers(admitted(rig)))
    yield
    rig.cluster.kubectl("delete", "-k", path)
    rig.until("its end", lambda: not asking_containers(admitted(rig)))


@pytest.fixture
def second_scheduler(rig: Rig, tmp_path: Path) -> Iterator[None]:
    """A cluster's own kube-scheduler without an extender, a second one with, and the policy that names it."""
    plain = tmp_path / "plain.yaml"
    plain.write_text(DEFAULT)
    rig.use_config(plain)
    process = rig.cluster.start_scheduler("second", SECOND, url_prefix=rig.address)
    path = overlay_for_this_version(SCHEDULER_NAME)
    rig.cluster.kubectl("apply", "--server-side", "-k", path)
    rig.until("the policy", lambda: admitted(rig)["spec"]["schedulerName"] != "default-scheduler")
    yield
    rig.cluster.kubectl("delete", "-k", path)
    rig.until("its end", lambda: admitted(rig)["spec"]["schedulerName"] == "default-scheduler")
    process.stop()


def unchanged(app: str) -> Workload:
    """Pods with two claims of 100Gi, which name neither the extender nor its resource."""
    return Workload(app=app, group=GROUP, volumes=[Volume(), Volume()], asks=False)


def plain(app: str) -> Object:
    """A pod without claims."""
    spec = {"terminationGracePeriodSeconds": 0, "containers": [{"name": "main", "image": PAUSE}]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": app, "labels": {"app": app}}, "spec": spec}


@pytest.mark.usefixtures("ask_policy")
def test_a_statefulset_without_any_change_is_placed_by_the_extenders_answer(rig: Rig) -> None:
    """Only one node has room for both volumes of a pod, and kube-scheduler prefers the others."""
    rig.create(unchanged("asked").statefulset(2))
    rig.until("both run", lambda: rig.ready("asked", 2))
    assert set(rig.nodes_of("asked").values()) == {ROOMY}
    assert rig.misplaced_pods("asked") == []
    rig.remove("asked")


@pytest.mark.usefixtures("ask_policy")
def test_a_pod_without_claims_is_not_asked_about(rig: Rig) -> None:
    """It would fit on every node, and the extender's counter of pods that fit stays."""
    before = rig.count_fits()
    rig.create(plain("not-asked"))
    rig.until("it runs", lambda: rig.ready("not-asked", 1))
    assert rig.count_fits() == before
    rig.remove("not-asked")


@pytest.mark.usefixtures("ask_policy")
def test_without_an_extender_pods_with_claims_wait_and_others_run(rig: Rig) -> None:
    """The waiting pod is placed once an extender answers again."""
    (name,) = rig.candidates
    rig.cluster.processes[name].stop()
    try:
        rig.create(unchanged("waiting").statefulset(1), plain("running"))
        rig.until("the other pod runs", lambda: rig.ready("running", 1))
        rig.until("kube-scheduler has asked in vain", lambda: problem(rig, "waiting"))
        assert rig.nodes_of("waiting") == {"waiting-0": ""}
    finally:
        rig.start_candidate(name)
    rig.until("the pod runs", lambda: rig.ready("waiting", 1), 120)
    assert rig.nodes_of("waiting") == {"waiting-0": ROOMY}
    for app in ("waiting", "running"):
        rig.remove(app)


def problem(rig: Rig, app: str) -> str:
    """Why kube-scheduler has not placed an app's pods."""
    conditions = [entry for raw in rig.pods(app) for entry in raw["status"].get("conditions", [])]
    return " ".join(entry.get("message", "") for entry in conditions if entry["type"] == "PodScheduled")


@pytest.mark.usefixtures("second_scheduler")
def test_with_a_second_scheduler_the_same_statefulset_is_placed_as_well(rig: Rig) -> None:
    """The cluster's own kube-scheduler knows nothing of the extender, and places the pods without claims."""
    rig.create(unchanged("second").statefulset(2), plain("own"))
    rig.until("all run", lambda: rig.ready("second", 2) and rig.ready("own", 1))
    assert set(rig.nodes_of("second").values()) == {ROOMY}
    schedulers = {raw["spec"]["schedulerName"] for app in ("second", "own") for raw in rig.pods(app)}
    assert schedulers == {"longhorn-scheduler", "default-scheduler"}
    for app in ("second", "own"):
        rig.remove(app)
