"""The documented way with the real kube-scheduler. A policy sends workloads to the extender without any change."""

import os
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from app.kube.resources import PODS
from devcluster.build import API_SERVER
from devcluster.programs import NAMESPACE, SERVICE
from devcluster.scheduler_config import DEFAULT
from tests.e2e.objects import PAUSE, Object, Volume, Workload
from tests.e2e.placement_audit import PlacementAudit
from tests.e2e.rig import CANDIDATES, RECOMMENDED_MANAGED, Rig
from tests.manifests.ask_policy import (
    ASK,
    OVERLAYS,
    SCHEDULER_NAME,
    api_server_arguments,
    asking_containers,
    overlay_for_this_version,
    pod,
)
from tests.manifests.load import MANIFESTS, ROOT
from tests.manifests.platform_pages import page
from tests.worlds.installed_extender import mend_longhorn, print_scheduler_config, run_doctor, show_as_pod

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]
SECOND = OVERLAYS / "second-scheduler/config/kube-scheduler.yaml"
GROUP = "default-path"
ROOMY = "roomy"
# The product's own, so that the time to the first answer is what administrators wait.
LEASE = ("--lease-duration", "15", "--renew-deadline", "10", "--retry-period", "2")


@dataclass(frozen=True, slots=True)
class Journey:
    """From a cluster without the extender to a workload under it."""

    seconds: dict[str, float]  # after which each step was done, by step
    findings: dict[str, str]  # of doctor, as its severities by check
    nodes: set[str]  # of the workload's pods


@pytest.fixture(scope="module")
def empty_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    """A cluster with Longhorn, of which one node is large. Two volumes of 100Gi fit on it. On each of three idle ones, one fits."""
    folder = tmp_path_factory.mktemp("default-path")
    plain = folder / "plain.yaml"
    plain.write_text(DEFAULT)
    extra = {API_SERVER: api_server_arguments()}
    longhorn = {"storage_capacity": False}
    with Rig(
        folder, candidates=0, config=plain, simulator=longhorn, more_arguments=LEASE, extra_args=extra, free_lease=False
    ) as running:
        running.add_nodes(GROUP, {ROOMY: ["1000Gi"], **{f"small-{number}": ["150Gi"] for number in range(3)}})
        running.load(ROOMY, 0.6)  # so kube-scheduler prefers the others
        mend_longhorn(running.cluster)
        # The rig has created what the extender needs, for tests that do not install it.
        running.cluster.kubectl("delete", "-k", str(MANIFESTS / "access"))
        yield running


@pytest.fixture(scope="module")
def journey(empty_cluster: Rig, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Journey]:
    """The commands of docs/platforms/kubeadm.md, one after the other. Those that uninstall come at the end, and leave nothing."""
    rig = empty_cluster
    cluster = rig.cluster
    folder = tmp_path_factory.mktemp("my-cluster")
    (folder / "kustomization.yaml").write_text(documented_kustomization(folder))
    seconds = {}
    started = time.monotonic()

    def note(step: str) -> None:
        seconds[step] = round(time.monotonic() - started, 1)

    cluster.kubectl("apply", "-k", str(folder))
    # In other clusters the kubelets start these.
    cluster.service_account_kubeconfig(NAMESPACE, SERVICE)
    for name in CANDIDATES:
        rig.start_candidate(name)
        show_as_pod(cluster, name, rig.url(name), rig.guard_port(name), ROOMY)
    rig.wait_for_leader()
    note("the extender answers")
    file = folder / "kube-scheduler-config.yaml"
    file.write_text(print_scheduler_config(cluster, "kubeadm"))
    rig.use_config(file)
    note("kube-scheduler has started with the printed file")
    cluster.kubectl("apply", "-k", overlay_for_this_version(ASK))
    rig.until("the policy", lambda: asking_containers(admitted_pod(rig)))
    note("pods with claims ask")
    findings = doctors_severities(rig)
    note("doctor has looked at everything")
    rig.create(unchanged_workload("first").statefulset(2))
    rig.until("both run", lambda: rig.ready("first", 2))
    note("a StatefulSet without any change runs")
    nodes = set(rig.nodes_of("first").values())
    assert rig.misplaced_pods("first") == []
    rig.remove("first")
    cluster.kubectl("delete", "-k", overlay_for_this_version(ASK))
    yield Journey(seconds, findings, nodes)
    uninstall(rig, folder)
    assert named_objects(rig) == []


def doctors_severities(rig: Rig, *arguments: str) -> dict[str, str]:
    """The severity that doctor finds, by check."""
    _, findings = run_doctor(rig.cluster, *arguments)
    return {entry["check"]: entry["severity"] for entry in findings}


def uninstall(rig: Rig, folder: Path) -> None:
    """Runs the commands that uninstall, of docs/platforms/kubeadm.md. Those for the policy are run by each test."""
    plain = folder / "plain.yaml"
    plain.write_text(DEFAULT)
    rig.use_config(plain)
    assert run_doctor(rig.cluster, "--uninstall")[0] == 0
    # In other clusters these end with their Deployment.
    for name in rig.candidates:
        rig.cluster.processes[name].stop()
        rig.cluster.kubectl("delete", "pod", "-n", NAMESPACE, name)
    for command in page("kubeadm").matching("kubectl"):
        if "delete" in command and not any("overlays" in word for word in command):
            arguments = [str(folder) if word == "my-cluster" else word for word in command[1:]]
            rig.cluster.kubectl(*arguments)


def named_objects(rig: Rig) -> list[str]:
    """All objects with the extender's name, of every kind. Events end by themselves."""
    kinds = rig.cluster.kubectl("api-resources", "--verbs=list,delete", "--output=name").split()
    kinds = [kind for kind in kinds if kind.partition(".")[0] != "events"]
    names = rig.cluster.kubectl("get", ",".join(kinds), "-A", "--output=name", "--ignore-not-found").split()
    return [name for name in names if SERVICE in name]


@pytest.fixture
def rig(empty_cluster: Rig, journey: Journey) -> Rig:
    assert journey.seconds
    return empty_cluster


def documented_kustomization(folder: Path) -> str:
    """The kustomization of docs/installation.md in a folder. Its Deployment has no pods, which no kubelet here could start."""
    (text,) = re.findall(r"```yaml\n# my-cluster/[^\n]*\n(.*?)```", (ROOT / "docs/installation.md").read_text(), re.S)
    base = os.path.relpath(MANIFESTS / "base", folder)
    assert text.count("../manifests/base") == 1
    return f"{text.replace('../manifests/base', base)}replicas: [{{name: {SERVICE}, count: 0}}]\n"


def admitted_pod(rig: Rig) -> dict[str, Any]:
    answer: dict[str, Any] = rig.cluster.api.create(f"{PODS.path('default')}?dryRun=All", pod())
    return answer


@pytest.fixture
def ask_policy(rig: Rig) -> Iterator[None]:
    """The policy by which pods with claims ask, in effect."""
    path = overlay_for_this_version(ASK)
    rig.use_config(RECOMMENDED_MANAGED)
    rig.cluster.kubectl("apply", "--server-side", "-k", path)
    rig.until("the policy", lambda: asking_containers(admitted_pod(rig)))
    yield
    rig.cluster.kubectl("delete", "-k", path)
    rig.until("its end", lambda: not asking_containers(admitted_pod(rig)))


@pytest.fixture
def second_scheduler(rig: Rig, tmp_path: Path) -> Iterator[None]:
    """A second kube-scheduler with an extender, and its policy. The cluster's own kube-scheduler has none."""
    plain = tmp_path / "plain.yaml"
    plain.write_text(DEFAULT)
    rig.use_config(plain)
    process = rig.cluster.start_scheduler("second", SECOND, url_prefix=rig.address)
    path = overlay_for_this_version(SCHEDULER_NAME)
    rig.cluster.kubectl("apply", "--server-side", "-k", path)
    rig.until("the policy", lambda: admitted_pod(rig)["spec"]["schedulerName"] != "default-scheduler")
    yield
    rig.cluster.kubectl("delete", "-k", path)
    rig.until("its end", lambda: admitted_pod(rig)["spec"]["schedulerName"] == "default-scheduler")
    process.stop()


def unchanged_workload(app: str) -> Workload:
    """Pods with two claims of 100Gi, which do not name the extender. They do not name its resource either."""
    return Workload(app=app, group=GROUP, volumes=[Volume(), Volume()], asks=False)


def plain(app: str) -> Object:
    """A pod without claims."""
    spec = {"terminationGracePeriodSeconds": 0, "containers": [{"name": "main", "image": PAUSE}]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": app, "labels": {"app": app}}, "spec": spec}


@pytest.mark.smoke
def test_from_an_empty_cluster_every_check_of_doctor_finds_nothing(journey: Journey) -> None:
    """After three commands: kustomize, the printed file, the policy."""
    print("seconds after the first command:", journey.seconds)
    assert set(journey.findings.values()) == {"ok"}, journey.findings


@pytest.mark.smoke
def test_from_an_empty_cluster_the_first_statefulset_is_placed_right(journey: Journey) -> None:
    """Only one node fits a pod, and kube-scheduler prefers others."""
    assert journey.nodes == {ROOMY}


@pytest.mark.smoke
@pytest.mark.usefixtures("ask_policy")
def test_as_installed_longhorn_keeps_the_plan_of_goal_2(rig: Rig) -> None:
    """Four claims of 100Gi fill the four disks of a node, though Longhorn chooses on figures that lag. From then on the
    placement guard is proven, and `auto` offers nodes that are not even order-safe.
    """
    nodes = [f"goal-2-{count}" for count in (1, 2, 3, 4)]
    rig.add_nodes("goal-2", {name: ["100Gi"] * count for count, name in enumerate(nodes, start=1)})
    with PlacementAudit(rig) as audit:
        rig.create(Workload(app="four", group="goal-2", volumes=[Volume()] * 4, asks=False).statefulset(1))
        rig.until("it runs", lambda: rig.ready("four", 1))
        assert rig.nodes_of("four") == {"four-0": "goal-2-4"}
        assert (audit.bytes_overbooked, audit.misplacements) == (0, 0)
    guard = rig.service()["placementGuard"]
    assert (guard["mode"], guard["health"], guard["problem"]) == ("enforce", "proven", "")
    rig.remove("four")
    rig.remove_nodes(*nodes)


@pytest.mark.usefixtures("ask_policy")
def test_a_pod_without_claims_is_not_asked_about(rig: Rig) -> None:
    """It fits on every node, and the extender does not count it."""
    before = rig.count_fits()
    rig.create(plain("not-asked"))
    rig.until("it runs", lambda: rig.ready("not-asked", 1))
    assert rig.count_fits() == before
    rig.remove("not-asked")


@pytest.mark.smoke
@pytest.mark.usefixtures("ask_policy")
def test_without_an_extender_pods_with_claims_wait_and_others_run(rig: Rig) -> None:
    names = rig.candidates
    for name in names:
        rig.cluster.processes[name].stop()
    try:
        rig.create(unchanged_workload("waiting").statefulset(1), plain("running"))
        rig.until("the other pod runs", lambda: rig.ready("running", 1))
        rig.until("kube-scheduler has asked in vain", lambda: rig.scheduling_problem("waiting"))
        assert rig.nodes_of("waiting") == {"waiting-0": ""}
    finally:
        for name in names:
            rig.start_candidate(name)
    rig.until("the pod runs", lambda: rig.ready("waiting", 1), 120)
    assert rig.nodes_of("waiting") == {"waiting-0": ROOMY}
    rig.remove("waiting", "running")


@pytest.mark.usefixtures("second_scheduler")
def test_with_a_second_scheduler_the_same_statefulset_is_placed_as_well(rig: Rig) -> None:
    """The cluster's own kube-scheduler places the pods without claims. It knows nothing of the extender."""
    rig.create(unchanged_workload("second").statefulset(2), plain("own"))
    rig.until("all run", lambda: rig.ready("second", 2) and rig.ready("own", 1))
    assert set(rig.nodes_of("second").values()) == {ROOMY}
    schedulers = {raw["spec"]["schedulerName"] for app in ("second", "own") for raw in rig.pods(app)}
    assert schedulers == {"longhorn-scheduler", "default-scheduler"}
    rig.remove("second", "own")


@pytest.mark.usefixtures("second_scheduler")
def test_a_drain_moves_a_pod_of_the_second_scheduler(rig: Rig) -> None:
    """The extender decides again, and the pod runs with its volume."""
    small = Workload(app="moved", group=GROUP, volumes=[Volume("1Gi")], asks=False)
    rig.create(small.statefulset(1))
    rig.until("it runs", lambda: rig.ready("moved", 1))
    (home,) = rig.nodes_of("moved").values()
    try:
        rig.cluster.kubectl("drain", home, "--ignore-daemonsets", "--delete-emptydir-data", "--timeout=60s")
        rig.until("it runs elsewhere", lambda: rig.ready("moved", 1) and home not in rig.nodes_of("moved").values())
    finally:
        rig.cluster.kubectl("uncordon", home)
    assert {raw["spec"]["schedulerName"] for raw in rig.pods("moved")} == {"longhorn-scheduler"}
    rig.remove("moved")


@pytest.mark.usefixtures("second_scheduler")
def test_doctor_probes_the_second_scheduler_that_the_policy_names(rig: Rig) -> None:
    """A new pod with a claim has the second scheduler's name. No flag says so, and the cluster's own kube-scheduler calls no extender."""
    severities = doctors_severities(rig)
    assert (severities["registration"], severities["ask-policy"]) == ("ok", "ok")
    assert doctors_severities(rig, "--scheduler-name", "default-scheduler")["registration"] == "error"
