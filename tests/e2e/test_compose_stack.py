"""The services of compose.yaml as processes of this machine. What their command lines and variables make of the parts is tested."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from app.kube.resources import LEASES, PODS
from devcluster.process import http_ok
from devcluster.programs import LOOPBACK, NAMESPACE, SERVICE, primary_address
from devcluster.stack import ROOT
from tests.control_plane import ControlPlane
from tests.e2e.objects import node_of
from tests.e2e.rig import CANDIDATES, Rig

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]
SERVICES = yaml.safe_load((ROOT / "compose.yaml").read_text())["services"]
PODS_OF_EXAMPLE = 12


@pytest.fixture
def rig(control_plane: ControlPlane, tmp_path: Path) -> Iterator[Rig]:
    """What the service `cluster` runs: everything but the candidates and Prometheus."""
    with Rig(tmp_path, control_plane, candidates=0) as started:
        started.add_nodes("compose", {f"node-{number}": ["400Gi"] for number in range(1, 5)})
        yield started


def start_service(rig: Rig, name: str) -> None:
    """Starts a candidate as its service describes it. Folder, port and address are this machine's."""
    service = SERVICES[name]
    port, guard_port = (str(rig.cluster.free_port()) for _ in range(2))
    words = [word.replace("/run/cluster", str(rig.cluster.directory)) for word in service["command"]]
    words[words.index("--port") + 1] = port
    rig.cluster.spawn(
        name,
        [Path(sys.executable).with_name("longhorn-extender"), *words],
        env={
            **service["environment"],
            "POD_IP": primary_address(),
            "LONGHORN_EXTENDER_PLACEMENT_GUARD_PORT": guard_port,
        },
        ready=http_ok(f"http://{LOOPBACK}:{port}/healthz"),
    )


def leader(rig: Rig) -> str:
    """Returns the holder of the Lease, "" without one."""
    return str(rig.cluster.api.get(LEASES.path(NAMESPACE, SERVICE))["spec"].get("holderIdentity") or "")


def placed_pods(rig: Rig) -> int:
    return sum(bool(node_of(pod)) for pod in rig.items(PODS.path("default")))


def test_two_services_place_the_example_and_one_takes_over(rig: Rig) -> None:
    """kube-scheduler reaches the leader, and its successor after a kill. Both run under the extender's account."""
    for name in CANDIDATES:
        start_service(rig, name)
    rig.until("a leader", lambda: leader(rig).startswith(CANDIDATES))
    first = next(name for name in CANDIDATES if leader(rig).startswith(name))
    rig.cluster.apply(ROOT / "examples/dev/statefulset.yaml")
    rig.until("all pods to have a node", lambda: placed_pods(rig) == PODS_OF_EXAMPLE)
    rig.cluster.processes[first].kill()
    (second,) = set(CANDIDATES) - {first}
    rig.until("the successor", lambda: leader(rig).startswith(second))
    patch = json.dumps({"spec": {"replicas": PODS_OF_EXAMPLE + 2}})
    rig.cluster.kubectl("patch", "statefulset", "shop", "--patch", patch)
    rig.until("two more pods to have a node", lambda: placed_pods(rig) == PODS_OF_EXAMPLE + 2)
    assert leader(rig).startswith(second), "they were placed by the successor"
