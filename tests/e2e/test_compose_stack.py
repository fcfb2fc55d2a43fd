"""The services of compose.yaml as processes of this machine. What their command lines and variables make of the parts is tested."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
import yaml

from app.kube.resources import LEASES, PODS
from devcluster.polling import wait_until
from devcluster.process import http_ok
from devcluster.programs import LOOPBACK, NAMESPACE, SERVICE, primary_address
from devcluster.stack import ROOT, Stack, StackOptions
from tests.control_plane import ControlPlane
from tests.e2e.rig import RECOMMENDED_MANAGED

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]
SERVICES: Final = yaml.safe_load((ROOT / "compose.yaml").read_text())["services"]
NAMES: Final = ("extender-1", "extender-2")
PODS_OF_EXAMPLE: Final = 12


@pytest.fixture
def stack(control_plane: ControlPlane, tmp_path: Path) -> Iterator[Stack]:
    """What the service `cluster` runs: everything but the candidates and Prometheus."""
    options = StackOptions(
        nodes={f"node-{number}": ["400Gi"] for number in range(1, 5)},
        candidates=0,
        create_free_lease=True,
        scheduler_config=RECOMMENDED_MANAGED,
        audit=False,
    )
    with control_plane.borrow() as cluster, Stack(tmp_path / "cluster", options, running=cluster) as running:
        yield running


def start_service(stack: Stack, name: str) -> None:
    """Starts a candidate as its service describes it. Folder, port and address are this machine's."""
    service = SERVICES[name]
    port, guard_port = (str(stack.cluster.free_port()) for _ in range(2))
    words = [word.replace("/run/cluster", str(stack.cluster.directory)) for word in service["command"]]
    words[words.index("--port") + 1] = port
    stack.cluster.spawn(
        name,
        [Path(sys.executable).with_name("longhorn-extender"), *words],
        env={
            **service["environment"],
            "POD_IP": primary_address(),
            "LONGHORN_EXTENDER_PLACEMENT_GUARD_PORT": guard_port,
        },
        ready=http_ok(f"http://{LOOPBACK}:{port}/healthz"),
    )


def leader(stack: Stack) -> str:
    """Returns the holder of the Lease, "" without one."""
    return str(stack.cluster.api.get(LEASES.path(NAMESPACE, SERVICE))["spec"].get("holderIdentity") or "")


def placed_pods(stack: Stack) -> int:
    return sum(1 for pod in stack.cluster.api.get(PODS.path("default"))["items"] if pod["spec"].get("nodeName"))


def test_two_services_place_the_example_and_one_takes_over(stack: Stack) -> None:
    """kube-scheduler reaches the leader, and its successor after a kill. Both run under the extender's account."""
    for name in NAMES:
        start_service(stack, name)
    wait_until("a leader", lambda: leader(stack).startswith(NAMES))
    first = next(name for name in NAMES if leader(stack).startswith(name))
    stack.cluster.apply(ROOT / "examples/dev/statefulset.yaml")
    wait_until("all pods to have a node", lambda: placed_pods(stack) == PODS_OF_EXAMPLE)
    stack.cluster.processes[first].kill()
    (second,) = set(NAMES) - {first}
    wait_until("the successor", lambda: leader(stack).startswith(second))
    patch = json.dumps({"spec": {"replicas": PODS_OF_EXAMPLE + 2}})
    stack.cluster.kubectl("patch", "statefulset", "shop", "--patch", patch)
    wait_until("two more pods to have a node", lambda: placed_pods(stack) == PODS_OF_EXAMPLE + 2)
    assert leader(stack).startswith(second), "they were placed by the successor"
