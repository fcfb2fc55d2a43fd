"""`serve --policy` on the whole stack, with a kube-scheduler that requests scores. The extender runs under its ServiceAccount with
manifests/policy. The tests check where pods go.
"""

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from devcluster.stack import ROOT
from tests.control_plane import ControlPlane
from tests.e2e.objects import Object, Volume, Workload, name_of, runs, scheduling_message, statefulset
from tests.e2e.rig import RECOMMENDED_MANAGED, Rig
from tests.manifests.load import with_scores

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(400)]

CANDIDATE = "extender-1"
POLICY = {
    "kind": "Policy",
    "predicates": [
        {"name": "RequireZone", "argument": {"labelsPresence": {"labels": ["zone"], "presence": True}}},
        {"name": "OneZone", "argument": {"serviceAffinity": {"labels": ["zone"]}}},
    ],
    "priorities": [{"name": "LonghornLeastFragmentation", "weight": 1}],
}
PREFER_GOLD = {
    "kind": "Policy",
    "predicates": [],
    "priorities": [
        {"name": "PreferGold", "weight": 10, "argument": {"labelPreference": {"label": "gold", "presence": True}}}
    ],
}
REFUSALS = "longhorn_scheduler_extender_policy_refusals_total"
RELOADS = 'longhorn_scheduler_extender_policy_reloads_total{result="loaded"}'


@dataclass(frozen=True)
class PolicyStack:
    """A stack with a policy."""

    rig: Rig  # the stack
    policy: Path  # the policy file, which the extender reads again when it changes
    scored: Path  # kube-scheduler's configuration that requests scores
    unpermitted: tuple[int, Any]  # the answer of /readyz before the extender might read services


@pytest.fixture(scope="module")
def stack(control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PolicyStack]:
    """Starts the extender with manifests/access, then adds manifests/policy."""
    folder = tmp_path_factory.mktemp("policy")
    policy = folder / "policy.json"
    scored = folder / "scored.yaml"
    policy.write_text(json.dumps(POLICY))
    scored.write_text(with_scores(RECOMMENDED_MANAGED))
    arguments = ("--policy", str(policy))
    with Rig(folder, control_plane, candidates=0, config=scored, more_arguments=arguments) as rig:
        rig.start_candidate(CANDIDATE)
        rig.until("a call is forbidden", lambda: "forbidden" in str(rig.request(CANDIDATE, "/readyz")))
        unpermitted = rig.request(CANDIDATE, "/readyz")
        rig.cluster.apply(ROOT / "manifests/policy/access")
        rig.until("it leads", rig.leader)
        yield PolicyStack(rig, policy, scored, unpermitted)


def add_nodes(rig: Rig, group: str, disks: Mapping[str, list[str]], zones: Mapping[str, str]) -> None:
    rig.add_nodes(group, disks)
    for name, zone in zones.items():
        rig.cluster.kubectl("label", "node", name, f"zone={zone}")


def best_scores(rig: Rig, pod: str = "") -> list[int]:
    """The best score of each answer to /prioritize, by the leader's log. `pod` selects the answers about one pod."""
    lines = rig.cluster.processes[CANDIDATE].log_text().splitlines()
    entries = [json.loads(line) for line in lines if line.startswith("{")]
    return [entry["best"] for entry in entries if entry["event"] == "prioritize" and entry["pod"].endswith(pod)]


@pytest.mark.smoke
def test_the_extender_is_not_ready_until_it_may_read_services(stack: PolicyStack) -> None:
    """The rules about services need manifests/policy, and /readyz says so."""
    code, body = stack.unpermitted
    assert code == 503
    assert "policy: services not listed yet" in str(body)


def test_the_pods_of_a_service_fill_one_zone_and_no_node_without_one(stack: PolicyStack) -> None:
    """The ninth pod waits, although the nodes of the other zone are empty. Eight volumes of 50Gi fill the two nodes of
    the first pod's zone.
    """
    rig = stack.rig
    zones = {"east-1": "east", "east-2": "east", "west-1": "west", "west-2": "west"}
    add_nodes(rig, "zones", {**{name: ["200Gi"] for name in zones}, "bare": ["1000Gi"]}, zones)
    service = {"selector": {"app": "web"}, "ports": [{"port": 80}]}
    rig.create({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web"}, "spec": service})
    # The rule follows a bound pod; a pod that is only decided would not count.
    rig.create(statefulset("web", group="zones", size="50Gi", replicas=1))
    rig.until("the first pod runs", lambda: rig.ready("web", 1))
    zone = zones[rig.nodes_of("web")["web-0"]]
    rig.create(statefulset("web", group="zones", size="50Gi", replicas=9))
    try:
        rig.until("its zone is full", lambda: sum(map(runs, rig.pods("web"))) == 8)
        (late,) = (pod for pod, node in rig.nodes_of("web").items() if not node)

        def message() -> str:
            return next(scheduling_message(pod) for pod in rig.pods("web") if name_of(pod) == late)

        rig.until("the ninth has a reason", lambda: "OneZone" in message())
        assert "1 RequireZone: a required node label is missing" in message()
        assert "2 OneZone: service affinity does not match" in message()
        placed = Counter(node for node in rig.nodes_of("web").values() if node)
        assert placed == {f"{zone}-1": 4, f"{zone}-2": 4}
        assert (rig.misplaced_pods("web"), rig.overbooked_disks()) == ([], [])
        assert rig.metric(CANDIDATE, REFUSALS) >= 3
    finally:
        rig.remove("web")


@pytest.fixture
def prefer_gold(stack: PolicyStack) -> Iterator[None]:
    """The policy prefers nodes with the label gold."""

    def use(policy: Object) -> None:
        count = stack.rig.metric(CANDIDATE, RELOADS)
        stack.policy.write_text(json.dumps(policy))
        stack.rig.until("the policy is loaded", lambda: stack.rig.metric(CANDIDATE, RELOADS) > count, 60)

    use(PREFER_GOLD)
    yield
    use(POLICY)


@pytest.mark.usefixtures("prefer_gold")
def test_every_pod_of_a_burst_goes_to_a_preferred_node_with_plenty_of_room(stack: PolicyStack) -> None:
    rig = stack.rig
    names = [f"metal-{number}" for number in range(8)]
    gold = set(names[:2])
    rig.add_nodes("metals", {name: ["1000Gi"] for name in names})
    for name in gold:
        rig.cluster.kubectl("label", "node", name, "gold=yes")
    workload = Workload(app="miner", group="metals", volumes=[Volume("2Gi")])
    rig.post(entry for number in range(12) for entry in workload.loose(number))
    try:
        rig.until("every pod runs", lambda: rig.ready("miner", 12))
        assert set(rig.nodes_of("miner").values()) <= gold
    finally:
        rig.remove("miner")


def test_scores_outweigh_a_free_processor_once_they_are_requested(stack: PolicyStack) -> None:
    """Least fragmentation prefers `whole`, which has a single disk and is busier."""
    rig = stack.rig
    # A pod soon after a burst is offered fewer nodes (`Ledger.recent`); a new process has seen no burst.
    rig.cluster.processes[CANDIDATE].restart()
    rig.until("it leads again", rig.leader)
    disks = {"split": ["150Gi"] * 4, "whole": ["600Gi"]}
    add_nodes(rig, "scores", disks, dict.fromkeys(disks, "scores"))
    rig.load("whole", 0.3)
    rig.use_config(RECOMMENDED_MANAGED)
    try:
        before = best_scores(rig)
        assert place_alone(rig, "unscored") == "split"
        assert best_scores(rig) == before
    finally:
        rig.use_config(stack.scored)
    body = {"Pod": loose_pod("probed")[-1], "NodeNames": sorted(disks)}
    rig.post(loose_pod("probed")[:-1])
    scores = rig.request(CANDIDATE, "/prioritize", body)
    assert scores == (200, [{"Host": "split", "Score": 3}, {"Host": "whole", "Score": 10}])
    rig.remove("probed")
    metric = 'http_requests_total{handler="/prioritize",method="POST",status="2xx"}'
    count = rig.metric(CANDIDATE, metric)
    assert place_alone(rig, "scored") == "whole"
    assert best_scores(rig, "/scored-0") == [10]
    assert rig.metric(CANDIDATE, metric) == count + 1


def loose_pod(app: str) -> list[Object]:
    """A claim, and a pod that belongs to no service."""
    return Workload(app=app, group="scores", volumes=[Volume("100Gi")]).loose()


def place_alone(rig: Rig, app: str) -> str:
    """Places a pod on nodes without volumes; returns its node. Pod and volume are gone afterwards."""
    rig.post(loose_pod(app))
    try:
        rig.until("it runs", lambda: rig.ready(app, 1))
        return rig.nodes_of(app)[f"{app}-0"]
    finally:
        rig.remove(app)
