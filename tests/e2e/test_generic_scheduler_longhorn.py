"""The stand-alone scheduler with Longhorn's rules, and simulated Longhorn. It runs under its ServiceAccount, with the permissions in
manifests/ and nothing more.
"""

import json
from collections.abc import Iterator

import pytest

from app.kube.resources import LEASES
from app.scheduler.lifecycle import LEASE
from devcluster.process import log_has
from devcluster.programs import NAMESPACE
from devcluster.stack import FAST_LEASE, ROOT
from tests.control_plane import ControlPlane
from tests.e2e.objects import Object, Volume, Workload
from tests.e2e.rig import PROPOSAL, Rig
from tests.worlds.service import EXTENDER

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(400)]

NAME = "classic-longhorn"
POLICY = {
    "kind": "Policy",
    "predicates": [{"name": "PodFitsResources"}, {"name": "MatchNodeSelector"}, {"name": "LonghornVolumeFit"}],
    "priorities": [{"name": "LonghornDataLocality", "weight": 4}, {"name": "LonghornOrderSafe", "weight": 4}],
}
NODES = 5


@pytest.fixture(scope="module")
def rig(control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    """Five nodes with one disk each, and a scheduler without an extender."""
    folder = tmp_path_factory.mktemp("generic-longhorn")
    with Rig(folder, control_plane, candidates=0, config=PROPOSAL) as started:
        cluster = started.cluster
        for directory in ("access", "longhorn-rules"):
            cluster.apply(ROOT / "manifests/generic-scheduler" / directory)
        released = {"metadata": {"name": LEASE}, "spec": {"holderIdentity": "", "leaseDurationSeconds": 1}}
        cluster.api.create(LEASES.path(NAMESPACE), released)
        started.add_nodes("own", {f"own-{number}": ["100Gi"] for number in range(1, NODES + 1)})
        policy = folder / "policy.json"
        policy.write_text(json.dumps(POLICY))
        account = cluster.service_account_kubeconfig(NAMESPACE, LEASE)
        command = [EXTENDER, "schedule", "--watch", "--scheduler-name", NAME, "--policy", str(policy)]
        command += ["--kubeconfig", str(account), "--log-format", "json", *FAST_LEASE]
        process = cluster.spawn("scheduler-of-our-own", command, ready=log_has("Scheduling pods"))
        yield started
        process.stop()
        assert "Traceback" not in process.log_text()
        assert "forbidden" not in process.log_text()


def own_pod(app: str, number: int) -> list[Object]:
    """A claim that waits for its first consumer, and its pod. The volume fills more than half a disk."""
    *claims, pod = Workload(app=app, group="own", volumes=[Volume("60Gi")], asks=False).loose(number)
    pod["spec"]["schedulerName"] = NAME
    return [*claims, pod]


@pytest.mark.smoke
def test_each_pod_of_a_burst_gets_a_node_where_its_volume_fits(rig: Rig) -> None:
    """One more pod has a reason until a disk is added."""
    rig.post(entry for number in range(NODES) for entry in own_pod("vol", number))
    rig.until("every pod runs", lambda: rig.ready("vol", NODES))
    assert sorted(rig.nodes_of("vol").values()) == [f"own-{number}" for number in range(1, NODES + 1)]
    assert (rig.misplaced_pods("vol"), rig.overbooked_disks(), rig.misplacements()) == ([], [], 0)
    rig.post(own_pod("late", 0))

    def messages() -> list[str]:
        path = "/api/v1/namespaces/default/events?fieldSelector=involvedObject.name%3Dlate-0"
        return [event["message"] for event in rig.items(path) if event["reason"] == "FailedScheduling"]

    # An attempt before the claim is observed has an Event with another reason.
    reason = f"{NODES} insufficient Longhorn storage"
    rig.until("its Event has the reason", lambda: any(reason in message for message in messages()))
    rig.add_nodes("own", {"own-late": ["100Gi"]})
    rig.until("it runs", lambda: rig.ready("late", 1))
    assert rig.nodes_of("late") == {"late-0": "own-late"}
    assert rig.misplaced_pods("late") == []
