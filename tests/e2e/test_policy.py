"""`serve --policy` on the whole stack: the extender under its ServiceAccount and manifests/policy, and a kube-scheduler that asks
for scores, too. What the rules say is where pods go.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest

from devcluster.stack import ROOT
from tests.e2e.objects import Object, Volume, Workload, statefulset
from tests.e2e.rig import RECOMMENDED_MANAGED, Rig
from tests.manifests.load import with_scores

pytestmark = [pytest.mark.e2e, pytest.mark.xdist_group("policy"), pytest.mark.timeout(400)]

CANDIDATE: Final = "extender-1"
POLICY: Final = {
    "kind": "Policy",
    "predicates": [
        {"name": "RequireZone", "argument": {"labelsPresence": {"labels": ["zone"], "presence": True}}},
        {"name": "OneZone", "argument": {"serviceAffinity": {"labels": ["zone"]}}},
    ],
    "priorities": [{"name": "LonghornLeastFragmentation", "weight": 1}],
}
REFUSALS: Final = "longhorn_scheduler_extender_policy_refusals_total"


@dataclass(frozen=True)
class Started:
    """The stack, both configurations of kube-scheduler, and what the extender said before it might read services."""

    rig: Rig
    scored: Path
    unpermitted: tuple[int, Any]


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Started]:
    """The extender starts with the permissions of manifests/access alone, and is then granted those of manifests/policy."""
    folder = tmp_path_factory.mktemp("policy")
    policy, scored = folder / "policy.json", folder / "scored.yaml"
    policy.write_text(json.dumps(POLICY))
    scored.write_text(with_scores(RECOMMENDED_MANAGED))
    with Rig(folder, candidates=0, config=scored, more_arguments=["--policy", str(policy)]) as rig:
        rig.start_candidate(CANDIDATE)
        rig.until("it was refused them", lambda: "forbidden" in str(rig.ask(CANDIDATE, "/readyz")))
        unpermitted = rig.ask(CANDIDATE, "/readyz")
        rig.cluster.apply(ROOT / "manifests/policy/access")
        rig.until("it leads", rig.leader)
        yield Started(rig, scored, unpermitted)


def add_nodes(rig: Rig, group: str, disks: Mapping[str, list[str]], zones: Mapping[str, str]) -> None:
    """Nodes of a group; those with a zone get the label that the policy reads."""
    rig.add_nodes(group, disks)
    for name, zone in zones.items():
        rig.cluster.kubectl("label", "node", name, f"zone={zone}")


def asked_for_scores(rig: Rig, pod: str = "") -> list[int]:
    """The best score of each answer to /prioritize about a pod (of all pods if none is named), by the leader's log."""
    lines = rig.cluster.processes[CANDIDATE].log_text().splitlines()
    entries = [json.loads(line) for line in lines if line.startswith("{")]
    return [entry["best"] for entry in entries if entry["event"] == "prioritize" and entry["pod"].endswith(pod)]


def complaint(rig: Rig, app: str, pod: str) -> str:
    """What kube-scheduler says about a pod that waits."""
    (raw,) = (entry for entry in rig.pods(app) if entry["metadata"]["name"] == pod)
    conditions = raw["status"].get("conditions", [])
    return " ".join(entry.get("message", "") for entry in conditions if entry["type"] == "PodScheduled")


def test_it_decides_nothing_until_it_may_read_services(started: Started) -> None:
    """Rules about services need manifests/policy; /readyz says what is missing."""
    code, body = started.unpermitted
    assert code == 503
    assert "policy: services not listed yet" in str(body)


def test_the_pods_of_a_service_fill_one_zone_and_no_node_without_one(started: Started) -> None:
    """Eight volumes of 50Gi fill the two nodes of the first pod's zone; the ninth waits, although the others are empty."""
    rig = started.rig
    zones = {"east-1": "east", "east-2": "east", "west-1": "west", "west-2": "west"}
    add_nodes(rig, "zones", {**{name: ["200Gi"] for name in zones}, "bare": ["1000Gi"]}, zones)
    service = {"selector": {"app": "web"}, "ports": [{"port": 80}]}
    rig.create({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web"}, "spec": service})
    # The zone follows a pod that is bound: one that is only decided about would not be seen.
    rig.create(statefulset("web", group="zones", size="50Gi", replicas=1))
    rig.until("the first pod runs", lambda: rig.ready("web", 1))
    zone = zones[rig.nodes_of("web")["web-0"]]
    rig.create(statefulset("web", group="zones", size="50Gi", replicas=9))
    try:
        rig.until("its zone is full", lambda: running(rig, "web") == 8)
        (late,) = (pod for pod, node in rig.nodes_of("web").items() if not node)
        rig.until("the ninth is told why", lambda: "OneZone" in complaint(rig, "web", late))
        told = complaint(rig, "web", late)
        assert "1 RequireZone: a required node label is missing" in told
        assert "2 OneZone: service affinity does not match" in told
        placed = Counter(node for node in rig.nodes_of("web").values() if node)
        assert placed == {f"{zone}-1": 4, f"{zone}-2": 4}
        assert (rig.misplaced("web"), rig.overfull()) == ([], [])
        assert rig.metric(CANDIDATE, REFUSALS) >= 3
    finally:
        rig.remove("web")


def running(rig: Rig, app: str) -> int:
    """How many of an app's pods are Running."""
    return sum(1 for pod in rig.pods(app) if pod["status"].get("phase") == "Running")


def test_scores_outweigh_a_free_processor_once_kube_scheduler_asks_for_them(started: Started) -> None:
    """`split` is idle and has four small disks, `whole` is busier and has one large disk: least fragmentation says `whole`."""
    rig = started.rig
    disks = {"split": ["150Gi"] * 4, "whole": ["600Gi"]}
    add_nodes(rig, "scores", disks, dict.fromkeys(disks, "scores"))
    rig.load("whole", 0.3)
    rig.use_config(RECOMMENDED_MANAGED)
    try:
        before = asked_for_scores(rig)
        assert placed_alone(rig, "unscored") == "split"
        assert asked_for_scores(rig) == before
    finally:
        rig.use_config(started.scored)
    question = {"Pod": loose("probed")[-1], "NodeNames": sorted(disks)}
    rig.post(loose("probed")[:-1])
    scores = rig.ask(CANDIDATE, "/prioritize", question)
    assert scores == (200, [{"Host": "split", "Score": 3}, {"Host": "whole", "Score": 10}])
    rig.remove("probed")
    answered = 'http_requests_total{handler="/prioritize",method="POST",status="2xx"}'
    count = rig.metric(CANDIDATE, answered)
    assert placed_alone(rig, "scored") == "whole"
    assert asked_for_scores(rig, "/scored-0") == [10]
    assert rig.metric(CANDIDATE, answered) == count + 1


def loose(app: str) -> list[Object]:
    """One pod that no service has, after its claim."""
    return Workload(app=app, group="scores", volumes=[Volume("100Gi")]).loose()


def placed_alone(rig: Rig, app: str) -> str:
    """The node of a pod that was placed while the nodes had no volume; pod and volume are gone afterwards."""
    rig.post(loose(app))
    try:
        rig.until("it runs", lambda: rig.ready(app, 1))
        return rig.nodes_of(app)[f"{app}-0"]
    finally:
        rig.remove(app)
